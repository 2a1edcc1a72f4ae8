"""`confluent_kafka.Producer` with a `list_topics` that may be called inside a callback of the producer.

confluent_kafka keeps the state of a running call for each client and thread. `list_topics`, `poll` or `consume` inside
a callback of the same client erases the state of the outer `poll`, and the next callback in that `poll` ends the
process: `CallState_get: Assertion 'cs != NULL' failed` (2.16.1, our measurement). Callbacks are those of rebalances,
delivery reports, commits, errors, log lines and statistics.

A thread of its own has a state of its own. A consumer cannot be helped so: it lets one thread in at a time, and waits
for its callback to return. Our consumers ask a second client (`kafka.lookups`).
(test_a_callback_of_a_producer_may_list_topics,
test_the_kafka_in_memory_refuses_what_ends_the_process_of_a_real_consumer)
"""

import threading
from collections.abc import Callable
from typing import Any

import confluent_kafka

__all__ = ["Producer", "in_own_thread"]


def in_own_thread(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Make a call in a new thread, and wait for it; raise what it raises."""
    results: list[Any] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(call(*arguments, **options))
        except Exception as error:  # noqa: BLE001 - raised in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="rocketshim-lookup", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


class Producer(confluent_kafka.Producer):
    """The producer of confluent_kafka; `list_topics` may be called inside a callback."""

    def list_topics(self, *arguments: Any, **options: Any) -> Any:
        """As the original's."""
        return in_own_thread(super().list_topics, *arguments, **options)

"""A listener that always fails: every retry of RocketMQ's schedule, and the dead letter. Runs in memory, in a second.

    python examples/retry_ladder.py

The consumer is an ordinary one. `Harness` runs it on a Kafka in memory and moves the clock, so that 4 hours and 46
minutes pass immediately. On a real cluster run it with `rocketshim run`, beside `rocketshim worker --allow orders`.
"""

from datetime import timedelta

from rocketshim import Message, MessageView, PushConsumer
from rocketshim.harness import Harness

consumer = PushConsumer("localhost:9092", group="payments")
attempts: list[int] = []


@consumer.listener("orders")
def charge(message: MessageView) -> None:
    """Fail, as if the bank were away."""
    attempts.append(message.reconsume_times)
    raise ConnectionError("the bank does not answer")


def main() -> None:
    """Send one order, and watch it until it is dead."""
    with Harness() as harness:
        harness.run(consumer)
        harness.send(Message("orders", b"o-7"))
        began_ms = harness.waiting()[0].appended_ms
        while waiting := harness.waiting():
            due_ms = waiting[0].due_ms or 0
            after = timedelta(milliseconds=due_ms - began_ms)
            print(f"failed {len(attempts):>2} times, the next attempt comes {str(after).split('.')[0]} after the first")
            harness.pass_time((due_ms - harness.clock.wall_ms()) / 1_000)
        (letter,) = harness.dead("payments")
        print(f"{letter.body!r} is dead after {letter.reconsume_times} failures")
    if attempts != list(range(17)):
        raise SystemExit(f"not as it should be: {attempts}")


if __name__ == "__main__":
    main()

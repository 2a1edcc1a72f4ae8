"""Lookups of topics, on a client whose answers the test controls."""

import threading
from types import SimpleNamespace as Of
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from rocketshim.worker.topic_lookup import Answer, TopicLookup

GUARD_S = 30.0


class Client:
    """A consumer for metadata: `there` maps topics to partition counts; `hidden` ones are found by name only."""

    def __init__(self, there: dict[str, int], hidden: tuple[str, ...] = ()) -> None:
        self.there = there
        self.hidden = hidden
        self.asked: list[str | None] = []
        self.is_silent = False
        self.is_closed = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.is_asked = threading.Event()

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        assert timeout > 0
        self.asked.append(topic)
        self.is_asked.set()
        assert self.may_answer.wait(GUARD_S)
        if self.is_silent:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "nobody answers"))
        if topic is None:
            return Of(topics={name: _topic(count) for name, count in self.there.items() if name not in self.hidden})
        missing = Of(error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), partitions={})
        return Of(topics={topic: _topic(self.there[topic]) if topic in self.there else missing})

    def poll(self, timeout: float = -1) -> None:
        assert timeout == 0

    def close(self) -> None:
        self.is_closed.set()


def _topic(count: int) -> Any:
    return Of(error=None, partitions=dict.fromkeys(range(count)))


def lookup_with(client: Any, *, in_background: bool) -> TopicLookup:
    return TopicLookup(lambda: client, in_background=in_background)


def asked(client: Client, names: list[str]) -> tuple[TopicLookup, list[Answer]]:
    """Return a lookup without a thread, and its first answers."""
    lookup = lookup_with(client, in_background=False)
    for ticket, name in enumerate(names):
        lookup.ask(name, ticket, is_urgent=True)
    return lookup, list(lookup.answers())


def test_a_few_topics_are_looked_up_by_name() -> None:
    client = Client({"a": 3, "b": 1})
    _, answers = asked(client, ["a", "b", "gone"])
    assert answers == [Answer("a", 0, 3), Answer("b", 1, 1), Answer("gone", 2, 0)]
    assert client.asked == ["a", "b", "gone"]


def test_many_topics_are_looked_up_in_one_request() -> None:
    names = [f"t{number}" for number in range(1_000)]
    client = Client(dict.fromkeys(names, 2))
    _, answers = asked(client, names)
    assert answers == [Answer(name, ticket, 2) for ticket, name in enumerate(names)]
    assert client.asked == [None]


def test_the_larger_the_cluster_the_more_topics_are_looked_up_by_name() -> None:
    names = [f"t{number}" for number in range(200)]
    client = Client(dict.fromkeys(names, 200))
    lookup, _ = asked(client, names)
    for ticket, name in enumerate(names[:100]):
        lookup.ask(name, ticket, is_urgent=False)
    answers = [answer for _ in range(5) for answer in lookup.answers()]
    assert answers == [Answer(name, ticket, 200) for ticket, name in enumerate(names[:100])]
    assert client.asked == [None, *names[:100]], "an answer for all has 40,000 partitions"


def test_a_topic_that_is_not_visible_counts_as_missing_only_after_a_lookup_by_name() -> None:
    names = [f"t{number}" for number in range(50)]
    client = Client(dict.fromkeys(names, 2), hidden=("t7", "t8"))
    _, answers = asked(client, [*names, "gone"])
    assert {answer.topic: answer.partitions for answer in answers} == {**dict.fromkeys(names, 2), "gone": 0}
    assert client.asked == [None, "t7", "t8", "gone"]


def test_many_missing_topics_are_looked_up_a_few_at_a_time_and_do_not_block_others() -> None:
    client = Client({"a": 1})
    lookup, first = asked(client, [f"gone{number}" for number in range(100)])
    assert len(first) == 20
    lookup.ask("a", 1_000, is_urgent=True)
    assert Answer("a", 1_000, 1) in list(lookup.answers())
    for _ in range(5):
        first += lookup.answers()
    assert len(client.asked) == len(set(client.asked)), "each is asked for once"


def test_a_topic_requested_twice_is_looked_up_once_and_the_later_ticket_is_answered() -> None:
    client = Client({"a": 1})
    _, answers = asked(client, ["a", "a"])
    assert answers == [Answer("a", 1, 1)]


@pytest.mark.parametrize("count", [3, 50])
def test_a_cluster_that_does_not_answer_is_asked_once_and_all_topics_stay_unknown(count: int) -> None:
    client = Client({})
    client.is_silent = True
    _, answers = asked(client, [f"t{number}" for number in range(count)])
    assert [answer.partitions for answer in answers] == [None] * count
    assert all(answer.error for answer in answers)
    assert len(client.asked) == 1


def test_a_topic_that_is_answered_keeps_its_answer_if_the_next_one_gets_none() -> None:
    client = Client({"a": 1})
    lookup = lookup_with(client, in_background=False)
    for ticket, name in enumerate(["a", "gone", "b"]):
        lookup.ask(name, ticket, is_urgent=True)
    by_name = client.list_topics

    def silent_about_b(topic: str | None = None, timeout: float = -1) -> Any:
        client.is_silent = topic == "b"
        return by_name(topic, timeout)

    client.list_topics = silent_about_b  # type: ignore[method-assign]
    found = [(answer.topic, answer.partitions) for answer in lookup.answers()]
    assert found == [("a", 1), ("gone", 0), ("b", None)]


def test_a_client_that_cannot_be_made_is_a_failure_and_the_thread_still_ends_when_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rocketshim.worker.topic_lookup._CLOSE_S", GUARD_S)
    is_tried = threading.Event()

    def refuse() -> Any:
        is_tried.set()
        raise ValueError("a setting is wrong")

    lookup = TopicLookup(refuse, in_background=True)
    lookup.ask("a", 1, is_urgent=True)
    assert is_tried.wait(GUARD_S)
    lookup.close()
    assert str(lookup.failure) == "a setting is wrong"
    assert lookup._thread is not None
    assert not lookup._thread.is_alive()


def test_the_thread_answers_while_the_loop_continues_and_ends_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketshim.worker.topic_lookup._CLOSE_S", GUARD_S)
    client = Client({"a": 4})
    lookup = lookup_with(client, in_background=True)
    client.may_answer.clear()
    lookup.ask("a", 1, is_urgent=True)
    assert client.is_asked.wait(GUARD_S)
    assert list(lookup.answers()) == [], "nobody waits for the answer"
    client.may_answer.set()
    answers: list[Answer] = []
    while not answers:
        answers += lookup.answers()
    assert answers == [Answer("a", 1, 4)]
    lookup.close()
    assert client.is_closed.is_set()
    assert lookup._thread is not None
    assert not lookup._thread.is_alive()


def test_a_thread_that_waits_for_a_broker_does_not_delay_the_shutdown_and_ends_later() -> None:
    client = Client({"a": 4})
    client.may_answer.clear()
    lookup = lookup_with(client, in_background=True)
    lookup.ask("a", 1, is_urgent=True)
    assert client.is_asked.wait(GUARD_S)
    lookup.close()
    assert not client.is_closed.is_set()
    client.may_answer.set()
    assert client.is_closed.wait(GUARD_S)

"""Topics by name and by pattern: which listener, which topics are read, which topics no pattern matches."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.consumer.listeners import subscription_of
from rocketshim.core.subscriptions import Subscription, Subscriptions
from rocketshim.errors import ConfigError
from rocketshim.filters import MessageSelector
from rocketshim_topics import TopicNames

from .conftest import settings_of


def of(*topics: str) -> Subscriptions:
    subscriptions = Subscriptions(TopicNames())
    for topic in topics:
        subscriptions.add(Subscription(topic, print, expression=f"filter of {topic}", digest=topic))
    return subscriptions


def heard_by(subscriptions: Subscriptions, topic: str) -> str | None:
    found = subscriptions.get(topic)
    return None if found is None else found.topic


def test_a_pattern_matches_the_beginning_of_topic_names() -> None:
    subscriptions = of("^orders[.]", "^eu$")
    subscriptions.match_patterns(["orders.eu", "orders.us", "orders", "old-orders.eu", "eu", "europe"])
    assert subscriptions.topics() == ["eu", "orders.eu", "orders.us"]
    assert heard_by(subscriptions, "orders.us") == "^orders[.]"
    assert heard_by(subscriptions, "europe") is None


def test_names_take_precedence_over_patterns_and_earlier_patterns_over_later_ones() -> None:
    subscriptions = of("^o", "^or", "orders")
    subscriptions.match_patterns(["orders", "orchids"])
    assert subscriptions.topics() == ["orchids", "orders"]
    assert heard_by(subscriptions, "orders") == "orders"
    assert heard_by(subscriptions, "orchids") == "^o"


NAMESPACES = st.sampled_from(["", "pay", "a_b", "X-1"])
GROUPS = st.text(min_size=1, max_size=20).filter(
    lambda text: text.strip() and text.isprintable() and text != "DEFAULT_CONSUMER"
)


@given(NAMESPACES, GROUPS)
def test_no_pattern_matches_an_internal_topic(namespace: str, group: str) -> None:
    names = TopicNames(namespace)
    ours = [names.schedule, names.parked, names.retry(group), names.dead_letter(group), names.group_log(group)]
    subscriptions = of("^.*", "^", "^.*rmq", f"^{namespace}[.]?")
    subscriptions.match_patterns([*ours, "__consumer_offsets", "__transaction_state", "orders"])
    assert subscriptions.topics() == ["orders"]


def test_deleted_topics_are_no_longer_read() -> None:
    subscriptions = of("^o")
    subscriptions.match_patterns(["o1", "o2"])
    subscriptions.match_patterns(["o2"])
    assert subscriptions.topics() == ["o2"]
    assert heard_by(subscriptions, "o1") == "^o"  # its retries may still be scheduled


def test_a_removed_topic_is_not_read_and_keeps_its_listener_for_retries() -> None:
    subscriptions = of("orders", "^p")
    subscriptions.match_patterns(["orders", "p1"])
    assert subscriptions.remove("orders")
    assert not subscriptions.remove("orders")
    assert subscriptions.topics() == ["p1"]
    assert heard_by(subscriptions, "orders") == "orders"
    assert subscriptions.remove("^p")
    assert subscriptions.topics() == []
    assert heard_by(subscriptions, "p1") == "^p"
    assert heard_by(subscriptions, "p2") == "^p"
    assert not subscriptions.has_patterns
    assert len(subscriptions) == 0


def test_a_remaining_pattern_may_match_a_removed_name() -> None:
    subscriptions = of("orders", "^o")
    subscriptions.match_patterns(["orders"])
    subscriptions.remove("orders")
    subscriptions.match_patterns(["orders"])
    assert subscriptions.topics() == ["orders"]
    assert heard_by(subscriptions, "orders") == "^o"


def test_a_topic_has_one_listener() -> None:
    subscriptions = of("orders")
    with pytest.raises(ConfigError, match="one listener"):
        subscriptions.add(Subscription("orders", print))


def test_a_pattern_that_is_not_a_regular_expression_is_rejected() -> None:
    subscriptions = of()
    with pytest.raises(ConfigError, match="not a regular expression"):
        subscriptions.add(Subscription("^(", print))
    assert len(subscriptions) == 0


def test_different_subscriptions_have_different_digests() -> None:
    assert of("a", "b").digest() == of("b", "a").digest()
    assert len({of(*topics).digest() for topics in [("a",), ("b",), ("a", "b"), ("^a",), ()]}) == 5
    assert of("b", "a").text() == "a=filter of a, b=filter of b"


def test_put_replaces_a_subscription() -> None:
    subscriptions = of("orders", "^o")
    subscriptions.put(Subscription("orders", print, expression="new", digest="new"))
    found = subscriptions.get("orders")
    assert found is not None
    assert found.expression == "new"
    assert subscriptions.text() == "^o=filter of ^o, orders=new"
    assert subscriptions.digest() != of("orders", "^o").digest()
    assert len(subscriptions) == 2


def test_a_replaced_pattern_keeps_its_rank_and_its_topics() -> None:
    subscriptions = of("^o", "^or")
    subscriptions.match_patterns(["orders"])
    subscriptions.put(Subscription("^o", print, digest="new"))
    assert heard_by(subscriptions, "orders") == "^o"
    assert subscriptions.topics() == ["orders"]


def test_a_name_that_is_added_no_longer_belongs_to_a_pattern() -> None:
    subscriptions = of("^o")
    subscriptions.match_patterns(["orders"])
    subscriptions.put(Subscription("orders", print))
    assert heard_by(subscriptions, "orders") == "orders"
    assert subscriptions.topics() == ["orders"]
    subscriptions.remove("^o")
    assert subscriptions.topics() == ["orders"]


def test_a_removed_topic_that_is_added_again_is_read_again() -> None:
    subscriptions = of("orders")
    subscriptions.remove("orders")
    kept = subscriptions.own("orders")
    assert kept is not None
    subscriptions.put(kept)
    assert subscriptions.topics() == ["orders"]
    assert heard_by(subscriptions, "orders") == "orders"
    assert subscriptions.own("^o") is None


NAMES_AND_PATTERNS = st.sampled_from(["a", "ab", "b", "^a", "^b", "^.*"])
TOPICS = ["a", "ab", "b", "c"]
STEPS = st.lists(st.tuples(st.sampled_from(["put", "remove", "see"]), NAMES_AND_PATTERNS), max_size=12)


@given(STEPS)
def test_against_a_naive_model(steps: list[tuple[str, str]]) -> None:
    """After any sequence of changes, the model and the code agree on listeners and topics to read."""
    subscriptions = Subscriptions(TopicNames())
    active: list[str] = []
    retired: list[str] = []
    known: set[str] = set()  # topics that were there at the last look, while a pattern stood for them
    for step, name in steps:
        if step == "put":
            subscriptions.put(Subscription(name, print, digest=name))
            active = active if name in active else [*active, name]
            retired = [each for each in retired if each != name]
        elif step == "remove":
            assert subscriptions.remove(name) == (name in active)
            if name in active:
                active = [each for each in active if each != name]
                retired = [*[each for each in retired if each != name], name]
        else:
            subscriptions.match_patterns(TOPICS)
        patterns = [each for each in active if each[0] == "^"]
        caught = {topic for topic in TOPICS if topic not in active and any(re.match(each, topic) for each in patterns)}
        known = caught if step == "see" else known & caught
        assert set(subscriptions.topics()) == {each for each in active if each not in patterns} | known
        for topic in TOPICS:
            heard = next(
                (
                    found
                    for names in (active, retired)
                    for found in [topic, *[each for each in names if each[0] == "^" and re.match(each, topic)]]
                    if found in names
                ),
                None,
            )
            assert heard_by(subscriptions, topic) == heard


@pytest.mark.parametrize("asked", [{"sql": "a = 1"}, {"selector": MessageSelector.by_sql("a = 1")}], ids=str)
def test_sql_is_evaluated_again_for_retried_messages(asked: dict[str, Any]) -> None:
    none, again = Subscriptions(TopicNames()), settings_of(filter_support_retry=True)
    assert subscription_of("orders", print, none, again, **asked).matches_retry is not None
    assert subscription_of("orders", print, none, settings_of(), **asked).matches_retry is None
    assert subscription_of("orders", print, none, again, tags="a").matches_retry is None


def test_all_listeners_of_a_consumer_have_the_same_kind() -> None:
    async def await_it(_: Any) -> None: ...

    there = Subscriptions(TopicNames())
    assert there.orderly is there.awaits is None
    there.add(subscription_of("orders", print, there, settings_of(), orderly=True))
    there.remove("orders")
    assert there.orderly, "what it was stays, since retries may be on their way"
    for listener, orderly, why in ((print, False, "all orderly or all concurrent"), (await_it, True, "plain function")):
        with pytest.raises(ConfigError, match=why):
            subscription_of("other", listener, there, settings_of(), orderly=orderly)
    assert subscription_of("other", print, there, settings_of()).orderly
    assert (
        subscription_of("orders", None, there, settings_of()).listener
        is subscription_of("orders", print, there, settings_of()).listener
    )
    with pytest.raises(ConfigError, match="needs a listener"):
        subscription_of("other", None, there, settings_of())

"""Scenarios: members of a group, their callbacks, and committed offsets."""

from typing import Any

from confluent_kafka import OFFSET_INVALID, KafkaError, Message, TopicPartition

from rocketshim.kafka.clients import ConsumerClient
from rocketshim.testing.kafka_errors import Code

from .backend import (
    Backend,
    assigned,
    at,
    consumer_of,
    drive,
    equal,
    holds,
    places,
    receive,
    refused,
    send,
    wait_for,
)

__all__: list[str] = []

COOPERATIVE = "cooperative-sticky"
BY_COORDINATOR = "KIP-848"
Event = tuple[str, list[int]]


def _member(backend: Backend, group: str, strategy: str, **config: Any) -> ConsumerClient:
    if strategy == BY_COORDINATOR:
        return consumer_of(backend, group_id=group, group_protocol="consumer", **config)
    return consumer_of(
        backend,
        group_id=group,
        partition_assignment_strategy=strategy,
        session_timeout_ms=30_000,
        heartbeat_interval_ms=200,
        **config,
    )


def _subscribe(consumer: ConsumerClient, topics: list[str], events: list[Event]) -> None:
    """Subscribe and write down each callback; the binding assigns by itself afterwards."""

    def note(kind: str) -> Any:
        return lambda _, partitions: events.append((kind, sorted(part.partition for part in partitions)))

    consumer.subscribe(topics, on_assign=note("assign"), on_revoke=note("revoke"), on_lost=note("lost"))


def _owns(consumer: ConsumerClient, count: int) -> bool:
    return len(consumer.assignment()) == count


def a_lone_member_gets_everything(backend: Backend) -> None:
    """One `on_assign` with all partitions, one `on_revoke` at close."""
    topic = backend.new_topic(3)
    for partition in range(3):
        send(backend, topic, [b"x"], partition=partition)
    for strategy in ("range", COOPERATIVE, BY_COORDINATOR):
        events: list[Event] = []
        consumer = _member(backend, backend.new_name(), strategy)
        _subscribe(consumer, [topic], events)
        messages = receive(backend, consumer, 3)
        equal(sorted(places(messages)), [(0, 0), (1, 0), (2, 0)])
        equal(events, [("assign", [0, 1, 2])], strategy)
        consumer.close()
        equal(events, [("assign", [0, 1, 2]), ("revoke", [0, 1, 2])], strategy)


def cooperative_members_give_up_only_what_moves(backend: Backend) -> None:
    """The second member gets its share only after the first has given it up; leaving gives it back."""
    moved, first_events, second_events = _hand_over(backend, COOPERATIVE)
    equal([event for event in first_events if event[1]], [("assign", [0, 1, 2, 3]), ("revoke", moved)])
    equal([event for event in second_events if event[1]], [("assign", moved)])


def with_kip_848_members_give_up_only_what_moves(backend: Backend) -> None:
    """As cooperative ones, but an empty assignment follows what is given up, and a member never gets nothing first."""
    moved, first_events, second_events = _hand_over(backend, BY_COORDINATOR)
    equal(first_events, [("assign", [0, 1, 2, 3]), ("revoke", moved), ("assign", [])])
    equal(second_events, [("assign", moved)])


def _hand_over(backend: Backend, strategy: str) -> tuple[list[int], list[Event], list[Event]]:
    """Have a second member join, and leave again; return what moved, and each member's callbacks until it left."""
    topic, group = backend.new_topic(4), backend.new_name()
    first_events: list[Event] = []
    second_events: list[Event] = []
    first = _member(backend, group, strategy)
    _subscribe(first, [topic], first_events)
    drive(backend, [first], lambda: _owns(first, 4), "the first member has everything")
    second = _member(backend, group, strategy)
    _subscribe(second, [topic], second_events)
    drive(backend, [first, second], lambda: _owns(first, 2) and _owns(second, 2), "both have two")
    equal(sorted(assigned(first) + assigned(second)), [0, 1, 2, 3], "shares")
    moved = assigned(second)
    if strategy == BY_COORDINATOR:
        drive(backend, [first, second], lambda: len(first_events) == 3, "the empty assignment")
    until_then = [*first_events], [*second_events]
    second.close()
    equal(second_events[-1], ("revoke", moved))
    drive(backend, [first], lambda: _owns(first, 4), "the first member has everything again")
    equal(first_events[-1], ("assign", moved))
    return moved, *until_then


def with_kip_848_a_member_that_does_not_poll_holds_up_nobody(backend: Backend) -> None:
    """The others share out their topics without it."""
    topic, other, group = backend.new_topic(), backend.new_topic(2), backend.new_name()
    silent = _member(backend, group, BY_COORDINATOR)
    silent.subscribe([topic])
    drive(backend, [silent], lambda: _owns(silent, 1), "assigned")
    first, second = (_member(backend, group, BY_COORDINATOR) for _ in range(2))
    first.subscribe([other])
    second.subscribe([other])
    drive(backend, [first, second], lambda: _owns(first, 1) and _owns(second, 1), "both have one")
    equal(assigned(silent), [0])


def with_kip_848_settings_of_the_classic_protocol_are_refused(backend: Backend) -> None:
    """The broker decides on the session, the heartbeat and the assignor."""
    for name, value in (
        ("session_timeout_ms", 6_000), ("heartbeat_interval_ms", 500), ("partition_assignment_strategy", "range")
    ):  # fmt: skip
        group = backend.new_name()
        make = lambda group=group, config={name: value}: _member(backend, group, BY_COORDINATOR, **config)  # noqa: E731
        equal(refused(make).code(), Code.INVALID_ARG, name)


def eager_members_give_up_everything(backend: Backend) -> None:
    """Every rebalance revokes all and assigns again."""
    topic, group = backend.new_topic(4), backend.new_name()
    events: list[Event] = []
    first = _member(backend, group, "range")
    _subscribe(first, [topic], events)
    drive(backend, [first], lambda: _owns(first, 4), "the first member has everything")
    second = _member(backend, group, "range")
    _subscribe(second, [topic], [])
    drive(backend, [first, second], lambda: _owns(first, 2) and _owns(second, 2), "both have two")
    equal(events[:2], [("assign", [0, 1, 2, 3]), ("revoke", [0, 1, 2, 3])])
    equal(events[-1], ("assign", assigned(first)))
    equal(sorted(assigned(first) + assigned(second)), [0, 1, 2, 3], "shares")


def the_wrong_way_to_assign_is_refused(backend: Backend) -> None:
    """`assign` in a cooperative group and `incremental_assign` in an eager one raise `_STATE`."""
    topic = backend.new_topic(2)
    codes: list[int] = []

    def on_assign_cooperative(consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        codes.append(refused(lambda: consumer.assign(partitions)).code())
        consumer.incremental_assign(partitions)

    def on_assign_eager(consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        codes.append(refused(lambda: consumer.incremental_assign(partitions)).code())
        consumer.assign(partitions)

    for strategy in (COOPERATIVE, BY_COORDINATOR, "range"):
        on_assign = on_assign_eager if strategy == "range" else on_assign_cooperative
        consumer = _member(backend, backend.new_name(), strategy)
        consumer.subscribe([topic], on_assign=on_assign)
        drive(backend, [consumer], lambda member=consumer: _owns(member, 2), strategy)  # type: ignore[misc] # bound early
        consumer.close()
    equal(codes, [Code.STATE] * 3)


def an_exception_in_on_assign_may_cost_a_record(backend: Backend) -> None:
    """It comes out of `poll`; the partitions are assigned all the same; a record may be lost."""
    topic = backend.new_topic()
    send(backend, topic, [b"%d" % number for number in range(5)])

    def on_assign(_: ConsumerClient, __: list[TopicPartition]) -> None:
        raise ZeroDivisionError

    consumer = _member(backend, backend.new_name(), "range")
    consumer.subscribe([topic], on_assign=on_assign)

    def raised() -> bool | None:
        try:
            consumer.poll(backend.poll_s)
        except ZeroDivisionError:
            return True
        return None

    wait_for(backend, raised, "the exception of on_assign")
    offsets = [message.offset() for message in receive(backend, consumer, 4)]
    holds(offsets in ([0, 1, 2, 3], [1, 2, 3, 4]), f"at most the first record is missing ({offsets})")


def a_pattern_subscribes_to_what_matches(backend: Backend) -> None:
    """A name that begins with `^` is a regular expression."""
    prefix = backend.new_name()
    consumer = consumer_of(backend)
    topic = backend.new_topic()
    error = consumer.list_topics(topic, timeout=10).topics[topic].error
    equal([] if error is None else [error.name()], [])
    consumer.subscribe([f"^{topic[:-1]}.$", f"^{prefix}.*"])
    drive(backend, [consumer], lambda: _owns(consumer, 1), "the topic that matches")
    equal([part.topic for part in consumer.assignment()], [topic])


def an_unknown_topic_in_a_subscription_is_an_event(backend: Backend) -> None:
    """It does not keep the others from coming."""
    topic, missing = backend.new_topic(), backend.new_name()
    send(backend, topic, [b"x"])
    consumer = consumer_of(backend)
    consumer.subscribe([topic, missing])
    errors = {}
    records = []
    for message in receive(backend, consumer, 2):
        if message.error() is None:
            records.append(message.topic())
        else:
            errors[message.topic()] = message.error().code()
    equal((records, errors), ([topic], {missing: KafkaError.UNKNOWN_TOPIC_OR_PART}))


def a_bad_subscription_is_refused(backend: Backend) -> None:
    """Empty lists, empty names and broken expressions are `_INVALID_ARG`; a text is no list."""
    consumer = consumer_of(backend)
    wrong: list[list[str]] = [[], [""], ["^("]]
    for topics in wrong:
        equal(refused(lambda names=topics: consumer.subscribe(names)).code(), Code.INVALID_ARG, repr(topics))  # type: ignore[misc] # bound early
    try:
        consumer.subscribe("orders")  # type: ignore[arg-type] # on purpose
    except TypeError:
        return
    equal("accepted", "TypeError", "a text as subscription")


def a_pause_sticks_over_leaving_and_coming_back(backend: Backend) -> None:
    """Paused, unsubscribed, subscribed: still paused, and only `resume` helps."""
    topic, group = backend.new_topic(), backend.new_name()
    consumer = _member(backend, group, COOPERATIVE)
    consumer.subscribe([topic])
    drive(backend, [consumer], lambda: _owns(consumer, 1), "assigned")
    consumer.pause([at(topic)])
    consumer.unsubscribe()
    drive(backend, [consumer], lambda: _owns(consumer, 0), "given up")
    send(backend, topic, [b"x"])
    consumer.subscribe([topic])
    received = drive(backend, [consumer], lambda: _owns(consumer, 1), "assigned again")
    received += consumer.consume(1, backend.poll_s)
    equal(received, [], "records while paused")
    consumer.resume([at(topic)])
    equal(places(receive(backend, consumer, 1)), [(0, 0)])


# --- committed offsets -------------------------------------------------------------------------------------------


def commits_are_kept_as_given(backend: Backend) -> None:
    """−1001 before the first; offset and metadata come back; going back is accepted without a word."""
    topic, group = backend.new_topic(2), backend.new_name()
    consumer = consumer_of(backend, group_id=group)
    equal([part.offset for part in consumer.committed([at(topic, 0), at(topic, 1)], timeout=10)], [OFFSET_INVALID] * 2)
    (result,) = consumer.commit(offsets=[TopicPartition(topic, 0, 50, "digest")], asynchronous=False)
    equal((result.partition, result.offset, result.error), (0, 50, None))
    (found,) = consumer.committed([at(topic, 0)], timeout=10)
    equal((found.offset, found.metadata), (50, "digest"))
    consumer.commit(offsets=[at(topic, 0, 7)], asynchronous=False)
    (found,) = consumer_of(backend, group_id=group).committed([at(topic, 0)], timeout=10)
    equal(found.offset, 7, "commit that went back")


def nothing_to_commit_is_an_error(backend: Backend) -> None:
    """No stored offset, no offsets, none valid: `_NO_OFFSET`; asynchronously only `on_commit` hears of it."""
    topic = backend.new_topic()
    codes: list[int] = []
    consumer = consumer_of(backend, on_commit=lambda error, _: codes.append(error.code()))
    consumer.assign([at(topic, 0, 0)])
    equal(refused(lambda: consumer.commit(asynchronous=False)).code(), Code.NO_OFFSET)
    equal(refused(lambda: consumer.commit(offsets=[], asynchronous=False)).code(), Code.NO_OFFSET)
    equal(refused(lambda: consumer.commit(offsets=[at(topic)], asynchronous=False)).code(), Code.NO_OFFSET)
    consumer.commit(offsets=[])
    drive(backend, [consumer], lambda: bool(codes), "on_commit")
    equal(codes, [Code.NO_OFFSET])


def a_message_commits_the_offset_after_it(backend: Backend) -> None:
    """And so does what is stored."""
    topic, group = backend.new_topic(), backend.new_name()
    send(backend, topic, [b"a", b"b", b"c"])
    consumer = consumer_of(backend, group_id=group)
    consumer.assign([at(topic, 0, 0)])
    first, _ = receive(backend, consumer, 2)
    consumer.commit(message=first, asynchronous=False)
    equal(consumer.committed([at(topic)], timeout=10)[0].offset, 1)
    consumer.commit(asynchronous=False)
    equal(consumer.committed([at(topic)], timeout=10)[0].offset, 2)
    consumer.assign([at(topic)])
    equal(places(receive(backend, consumer, 1)), [(0, 2)], "where an assignment without offset begins")


def an_event_is_neither_committed_nor_stored(backend: Backend) -> None:
    """A message with an error has no offset of its own."""
    topic = backend.new_topic()
    event = Message(topic=topic, partition=0, offset=0, error=KafkaError(KafkaError._PARTITION_EOF))
    consumer: Any = consumer_of(backend, enable_auto_offset_store=False)
    consumer.assign([at(topic, 0, 0)])
    equal(refused(lambda: consumer.commit(message=event)).code(), Code.INVALID_ARG)
    equal(refused(lambda: consumer.store_offsets(message=event)).code(), Code.INVALID_ARG)


def the_program_stores_no_offsets_beside_the_client(backend: Backend) -> None:
    """By default the client stores them, and `store_offsets` is `_INVALID_ARG`."""
    topic = backend.new_topic()
    consumer: Any = consumer_of(backend)
    consumer.assign([at(topic, 0, 0)])
    equal(refused(lambda: consumer.store_offsets(offsets=[at(topic, 0, 1)])).code(), Code.INVALID_ARG)


def committing_for_an_unknown_partition_fails(backend: Backend) -> None:
    """It raises, and yet the good ones beside it are committed."""
    topic = backend.new_topic()
    consumer = consumer_of(backend)
    error = refused(lambda: consumer.commit(offsets=[at(topic, 9, 1)], asynchronous=False))
    equal(error.code(), KafkaError.UNKNOWN_TOPIC_OR_PART)
    error = refused(lambda: consumer.commit(offsets=[at(topic, 0, 5), at(topic, 9, 1)], asynchronous=False))
    equal(error.code(), KafkaError.UNKNOWN_TOPIC_OR_PART)
    equal(consumer.committed([at(topic, 0)], timeout=10)[0].offset, 5)


def an_outsider_may_not_commit_beside_members(backend: Backend) -> None:
    """A consumer on `assign` commits freely while the group is empty, and not at all once it has members."""
    for strategy in (COOPERATIVE, BY_COORDINATOR):
        topic, group = backend.new_topic(), backend.new_name()
        outsider = consumer_of(backend, group_id=group)
        outsider.commit(offsets=[at(topic, 0, 1)], asynchronous=False)
        member = _member(backend, group, strategy)
        member.subscribe([topic])
        drive(backend, [member], lambda one=member: _owns(one, 1), "assigned")  # type: ignore[misc] # bound early
        too_late = [at(topic, 0, 2)]
        error = refused(lambda by=outsider, of=too_late: by.commit(offsets=of, asynchronous=False))  # type: ignore[misc] # bound early
        equal(error.code(), KafkaError.UNKNOWN_MEMBER_ID, strategy)
        member.commit(offsets=[at(topic, 0, 3)], asynchronous=False)
        equal(outsider.committed([at(topic)], timeout=10)[0].offset, 3, strategy)


def a_member_may_commit_for_another(backend: Backend) -> None:
    """Kafka checks the generation and not the owner."""
    for strategy in (COOPERATIVE, BY_COORDINATOR):
        topic, group = backend.new_topic(2), backend.new_name()
        first, second = _member(backend, group, strategy), _member(backend, group, strategy)
        first.subscribe([topic])
        second.subscribe([topic])
        members = [first, second]
        drive(backend, members, lambda two=members: all(_owns(each, 1) for each in two), "both have one")  # type: ignore[misc] # bound early
        (theirs,) = assigned(second)
        first.commit(offsets=[at(topic, theirs, 9)], asynchronous=False)
        equal(second.committed([at(topic, theirs)], timeout=10)[0].offset, 9, strategy)


def commits_work_inside_callbacks(backend: Backend) -> None:
    """In `on_assign` and in `on_revoke` before unassigning, at close too."""
    topic, group = backend.new_topic(), backend.new_name()

    def commit(offset: int) -> Any:
        return lambda client, _: client.commit(offsets=[at(topic, 0, offset)], asynchronous=False)

    consumer = _member(backend, group, COOPERATIVE)
    consumer.subscribe([topic], on_assign=commit(1), on_revoke=commit(2))
    drive(backend, [consumer], lambda: _owns(consumer, 1), "assigned")
    equal(consumer.committed([at(topic)], timeout=10)[0].offset, 1)
    consumer.close()
    equal(consumer_of(backend, group_id=group).committed([at(topic)], timeout=10)[0].offset, 2)


def committed_knows_nothing_of_unknown_topics(backend: Backend) -> None:
    """An offset of −1001 and no error, as for a topic without commits."""
    (found,) = consumer_of(backend).committed([at(backend.new_name())], timeout=10)
    equal((found.offset, found.error), (OFFSET_INVALID, None))

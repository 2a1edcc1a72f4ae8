"""Anomalies of order, locks, counts, bytes, targets and figures."""

import base64
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from proof.history import Delivery, Seen
from proof.index import queue_of
from proof.lines import SinkWrite

from .anomaly import anomaly, fault, samples
from .doctor import Doctor
from .world import BEGIN_NS, MS, S

# --- order and locks -------------------------------------------------------------------------------------------------


def written(doctor: Doctor) -> list[list[Seen[SinkWrite]]]:
    """What the sink accepted, by queue, in order."""
    queues: dict[str, list[Seen[SinkWrite]]] = defaultdict(list)
    for seen in doctor.history.sink:
        if seen.it.accepted:
            queues[queue_of(seen.it.where)].append(seen)
    return [writes for writes in queues.values() if len(writes) > 3]


@anomaly("orderly", "order")
def two_messages_of_a_queue_are_swapped(doctor: Doctor) -> None:
    writes = doctor.dice.choice(written(doctor))
    place = doctor.dice.randrange(len(writes) - 1)
    one, other = doctor.line(writes[place].source), doctor.line(writes[place + 1].source)
    one["where"], other["where"] = other["where"], one["where"]


@anomaly("orderly by key", "order")
def two_messages_of_a_key_are_swapped(doctor: Doctor) -> None:
    records = doctor.index.records
    by_key = defaultdict(list)
    for writes in written(doctor):
        for seen in writes:
            by_key[queue_of(seen.it.where), records[seen.it.where].it.key].append(seen)
    one, other = doctor.dice.choice([found for found in by_key.values() if len(found) > 1])[:2]
    doctor.line(one.source)["where"], doctor.line(other.source)["where"] = other.it.where, one.it.where


@anomaly("orderly", "order")
def a_message_comes_twice_under_one_token(doctor: Doctor) -> None:
    doctor.add("sink", doctor.dice.choice(written(doctor))[-1].it)


@anomaly("orderly", "concurrent-calls")
def a_queue_has_two_calls_at_once(doctor: Doctor) -> None:
    calls: dict[tuple[str, str], list[Delivery]] = defaultdict(list)
    for delivery in sorted(doctor.history.deliveries, key=lambda each: each.begin_ns):
        calls[delivery.process, queue_of(delivery.where)].append(delivery)
    first, second = doctor.dice.choice(list(calls.values()))[1:3]
    doctor.line(second.source)["at_ns"] = (first.end_ns or 0) - 1


@anomaly("orderly", "token-back")
@anomaly("orderly, owners lost", "token-back")
def the_sink_takes_an_older_token(doctor: Doctor) -> None:
    last = doctor.dice.choice(written(doctor))[-1]
    doctor.line(last.source)["token"] = last.it.token - 1


@anomaly("orderly, owners lost", "two-holders")
def an_owner_goes_on_after_its_successor_began(doctor: Doctor) -> None:
    killed = {fault.target for _, fault in doctor.index.faults if fault.kind == "kill-9"}
    by_queue: dict[str, list[Delivery]] = defaultdict(list)
    for delivery in sorted(doctor.history.deliveries, key=lambda each: each.begin_ns):
        by_queue[queue_of(delivery.where)].append(delivery)
    for deliveries in by_queue.values():
        old = next((each for each in deliveries if each.process in killed and each.outcome == "ok"), None)
        new = next((each for each in deliveries if old and (each.token or 0) > (old.token or 0)), None)
        if old and new:
            line = doctor.line(old.source) | {"op": 1_000_000, "at_ns": new.begin_ns + MS}
            doctor.files[old.process].append(line)
            return
    raise AssertionError("no queue changed hands")


def last_call(doctor: Doctor) -> Delivery:
    """The last call of a queue."""
    last = {queue_of(d.where): d for d in sorted(doctor.history.deliveries, key=lambda each: each.begin_ns)}
    return doctor.dice.choice(list(last.values()))


@anomaly("orderly", "token-not-granted")
def a_call_under_a_token_that_nobody_has(doctor: Doctor) -> None:
    call = last_call(doctor)
    doctor.line(call.source)["token"] = (call.token or 0) + 1_000_000


@anomaly("orderly", "token-not-granted")
def calls_under_the_tokens_of_another_client(doctor: Doctor) -> None:
    doctor.files[last_call(doctor).process][0]["client_id"] = "somebody"


@anomaly("orderly", "fold-differs")
@anomaly("orderly, owners lost", "fold-differs")
def a_member_believes_in_another_owner(doctor: Doctor) -> None:
    doctor.line(doctor.dice.choice(doctor.history.folds).source)["owner"] = "somebody"


@anomaly("orderly", "fold-differs")
def a_member_believes_in_another_token(doctor: Doctor) -> None:
    doctor.line(doctor.dice.choice(doctor.history.folds).source)["token"] += 1


# --- counts ----------------------------------------------------------------------------------------------------------


@anomaly("concurrent", "reconsume-count")
@anomaly("drop-in", "reconsume-count")
def a_count_is_skipped(doctor: Doctor) -> None:
    retry = doctor.pick(lambda each: each.topic == doctor.names.schedule and each.attempt == 1)
    doctor.set_header(retry, "RECONSUME_TIMES", b"2")


@anomaly("concurrent", "reconsume-count")
def a_listener_is_told_another_count(doctor: Doctor) -> None:
    record = doctor.pick(doctor.is_sent_leaf)
    doctor.line(doctor.calls(record)[0].source)["attempt"] += 1


@anomaly("orderly", "reconsume-count")
def an_orderly_count_jumps(doctor: Doctor) -> None:
    record = doctor.pick(doctor.is_sent_leaf)
    doctor.line(doctor.calls(record)[-1].source)["attempt"] += 1


@anomaly("redriven", "reconsume-count")
def a_redriven_letter_keeps_its_count(doctor: Doctor) -> None:
    record = doctor.pick(lambda each: each.topic in doctor.index.retry_topics)
    doctor.set_header(record, "RECONSUME_TIMES", b"1")


@anomaly("concurrent", "reconsume-count")
def a_message_is_counted_although_it_was_only_sent_on(doctor: Doctor) -> None:
    retry = doctor.pick(lambda each: each.topic == doctor.names.schedule and each.attempt > 0)
    since = b"%d" % doctor.index.records[retry.envelope.hop_id or ""].it.ms
    doctor.line(retry.source)["headers"].append(["UNHANDLED_SINCE_MS", base64.b64encode(since).decode()])


@anomaly("concurrent", "reconsume-limit")
def a_message_without_a_listener_is_dead_at_once(doctor: Doctor) -> None:
    letter = doctor.pick(lambda each: each.topic in doctor.index.dead_letter_topics)
    doctor.set_header(letter, "FAIL_CLASS", b"NoListener")


@anomaly("concurrent", "reconsume-limit")
def a_message_is_retried_past_its_limit(doctor: Doctor) -> None:
    group = next(each for each in doctor.setup["groups"] if each["name"] == "pay")
    group["limit"] = 1


@anomaly("concurrent", "reconsume-limit")
@anomaly("orderly", "reconsume-limit")
def a_message_is_dead_too_soon(doctor: Doctor) -> None:
    for call in doctor.history.deliveries:
        if call.then == "dead":
            doctor.end_of(call.source)["then"] = "retry"


# --- bytes -----------------------------------------------------------------------------------------------------------


def change_all(doctor: Doctor, name: str, value: Any) -> None:
    """Change a field of a delivered record, as its readers saw it, too."""
    record = doctor.pick(doctor.is_delivered_leaf)
    for source in [record.source, *(call.source for call in doctor.calls(record))]:
        doctor.line(source)[name] = value


@anomaly("delayed", "value-changed")
@anomaly("concurrent", "value-changed")
def a_byte_of_a_value_changes(doctor: Doctor) -> None:
    change_all(doctor, "digest", "f" * 16)


@anomaly("delayed", "value-changed")
def a_value_becomes_none(doctor: Doctor) -> None:
    change_all(doctor, "digest", None)


@anomaly("delayed", "key-changed")
def a_key_changes(doctor: Doctor) -> None:
    change_all(doctor, "key", "eA==")


def change_headers(doctor: Doctor, change: Callable[[list[Any]], list[Any]]) -> None:
    record = doctor.pick(doctor.is_delivered_leaf)
    for source in [record.source, *(call.source for call in doctor.calls(record))]:
        line = doctor.line(source)
        ours = [header for header in line["headers"] if header[0] != "trace"]
        line["headers"] = ours + change([header for header in line["headers"] if header[0] == "trace"])


@anomaly("delayed", "header-changed")
def a_header_is_lost(doctor: Doctor) -> None:
    change_headers(doctor, lambda headers: headers[1:])


@anomaly("delayed", "header-changed")
def repeated_headers_change_their_order(doctor: Doctor) -> None:
    change_headers(doctor, lambda headers: headers[::-1])


@anomaly("delayed", "header-changed")
def a_header_without_value_becomes_empty(doctor: Doctor) -> None:
    change_headers(doctor, lambda headers: [[name, value or ""] for name, value in headers])


@anomaly("concurrent", "delivery-differs")
def a_listener_sees_another_value(doctor: Doctor) -> None:
    doctor.line(doctor.calls(doctor.pick(doctor.is_sent_leaf))[0].source)["digest"] = "f" * 16


@anomaly("broadcasting", "delivery-differs")
def a_listener_misses_a_header(doctor: Doctor) -> None:
    doctor.line(doctor.calls(doctor.pick(doctor.is_sent_leaf))[0].source)["headers"].pop()


@anomaly("drop-in", "delivery-differs")
def a_listener_sees_another_id(doctor: Doctor) -> None:
    doctor.line(doctor.calls(doctor.pick(doctor.is_sent_leaf))[0].source)["id"] = "another"


# --- targets ---------------------------------------------------------------------------------------------------------


@anomaly("delayed", "forbidden-topic")
def the_worker_writes_elsewhere(doctor: Doctor) -> None:
    record = doctor.pick(doctor.is_delivered_leaf)
    for source in [record.source, *(call.source for call in doctor.calls(record))]:
        doctor.line(source)["where"] = f"elsewhere/0/{record.offset}"


@anomaly("delayed", "forbidden-topic")
def the_worker_writes_what_its_list_does_not_cover(doctor: Doctor) -> None:
    doctor.setup["allow"] = ["orders"]


@anomaly("delayed", "wrong-target")
def the_worker_delivers_to_another_topic(doctor: Doctor) -> None:
    record = doctor.pick(
        lambda each: doctor.is_delivered_leaf(each) and each.envelope.hop_id in doctor.index.sends_by_record
    )
    doctor.set_header(doctor.index.records[record.envelope.hop_id or ""], "REAL_TOPIC", b"bills")


@anomaly("parked", "parked-without-reason")
def a_parked_record_does_not_say_why(doctor: Doctor) -> None:
    doctor.set_header(doctor.pick(lambda each: each.topic == doctor.names.parked), "PARK_REASON", None)


# --- figures ---------------------------------------------------------------------------------------------------------


@anomaly("concurrent", "lag-does-not-fall")
def lag_does_not_fall_after_a_fault(doctor: Doctor) -> None:
    fault(doctor, "broker-restart", "broker-1", BEGIN_NS + 10 * S, BEGIN_NS + 20 * S)
    samples(doctor, "lag", "pay", [0, 0, 50, 90, 100, 110, 120, 120, 110, 50, 0], 5)


@anomaly("concurrent", "lag-stays")
def lag_stays_after_a_fault(doctor: Doctor) -> None:
    fault(doctor, "broker-restart", "broker-1", BEGIN_NS + 10 * S, BEGIN_NS + 20 * S)
    samples(doctor, "lag", "pay", [0, 0, 50, 90, 100, 80, 60, *([5] * 12)], 5)


@anomaly("concurrent", "memory-grows")
def memory_grows(doctor: Doctor) -> None:
    samples(doctor, "rss_bytes", "pay-1", [(100 + 2 * minute) << 20 for minute in range(12)], 60)


@anomaly("concurrent", "memory-limit")
def memory_is_above_its_limit(doctor: Doctor) -> None:
    doctor.setup["memory_limit_mib"] = 200.0
    samples(doctor, "rss_bytes", "pay-1", [100 << 20, 201 << 20, 100 << 20], 10)

"""Anomalies of named timers: what was voided is delivered, what was not is lost, early or twice."""

from collections.abc import Callable

from proof.index import Stored, queue_of
from proof.lines import encoded
from proof.named import Told

from .anomaly import anomaly
from .doctor import Doctor


def told(doctor: Doctor, wanted: Callable[[Told], bool]) -> Told:
    found = [each for each in doctor.index.named if wanted(each)]
    assert found, "this history has no such command"
    return doctor.dice.choice(found)


def fired(doctor: Doctor) -> Told:
    """Pick a FIRE whose message is delivered, and does not fail then."""
    return told(doctor, lambda each: is_fire(each, "delivered") and not delivered(each).children)


def is_fire(each: Told, effect: str) -> bool:
    return each.command.envelope.timer_do == "FIRE" and each.effect == effect


def delivered(each: Told) -> Stored:
    return each.message.committed_children()[-1]


def drop_with_calls(doctor: Doctor, record: Stored) -> None:
    for call in doctor.calls(record):
        doctor.drop_call(call)
    doctor.drop(record.source)


@anomaly("named", "voided")
@anomaly("named, exactly once", "voided")
def a_generation_that_was_voided_is_delivered(doctor: Doctor) -> None:
    void = told(doctor, lambda each: is_fire(each, "nothing"))
    later = told(doctor, lambda each: is_fire(each, "delivered") and each.command.it.ms >= void.command.it.ms)
    like, parent = delivered(later), void.command
    replaced = {"UNIQ_KEY": parent.id, "HOP_ID": parent.it.where}
    headers = [
        [name, encoded(replaced[name].encode()) if name in replaced else value] for name, value in like.it.headers
    ]
    record = doctor.copy_record(like, headers=headers, key=parent.it.key, digest=parent.it.digest, ms=parent.it.ms)
    for call in doctor.calls(like)[:1]:
        doctor.handle(call, record, id=parent.id, key=parent.it.key, digest=parent.it.digest)


@anomaly("named", "lost")
@anomaly("named, exactly once", "lost")
def a_message_that_fired_is_not_delivered(doctor: Doctor) -> None:
    drop_with_calls(doctor, delivered(fired(doctor)))


@anomaly("named", "lost")
def a_now_delivers_nothing(doctor: Doctor) -> None:
    now = told(doctor, lambda each: each.command.envelope.timer_do == "NOW" and each.effect == "delivered")
    drop_with_calls(
        doctor, next(child for child in now.message.committed_children() if doctor.index.effect_of(child) != "waits")
    )


@anomaly("named", "stuck")
def a_name_never_fires(doctor: Doctor) -> None:
    last = max((each for each in doctor.index.named if is_fire(each, "delivered")), key=lambda each: each.command.it.ms)
    drop_with_calls(doctor, delivered(last))
    doctor.drop(last.command.source)
    parent = doctor.index.records[last.command.envelope.hop_id or ""]
    doctor.lower_commits(doctor.names.worker_group, queue_of(parent.it.where), parent.offset)


@anomaly("named", "early")
def a_named_message_waits_for_less_than_it_has_to(doctor: Doctor) -> None:
    record = told(doctor, lambda each: each.effect == "waits").command.committed_children()[0]
    due_ms = doctor.index.due_ms(record)
    doctor.set_header(record, "DELIVER_AT_MS", b"%d" % (due_ms - 1))


@anomaly("named", "duplicate")
@anomaly("named, exactly once", "duplicate-exactly-once")
def a_message_that_fired_is_delivered_twice(doctor: Doctor) -> None:
    record = delivered(fired(doctor))
    copy = doctor.copy_record(record)
    for call in doctor.calls(record)[:1]:
        doctor.handle(call, copy)

"""What became of a name, from the records of its partition of the log."""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.core.named_timers import Command, Effect, TimerTable
from rocketshim.core.timer_history import PendingTimer, TimerFate, TimerHistory, timer_histories
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics import DelayLevels, Layout, Message, OutgoingRecord, TopicNames, decode
from rocketshim_topics.hops import delayed_record, fire, scheduled_timer, timer_command, timer_digest
from rocketshim_topics.partitioner import timer_partition

NAMES: Final = TopicNames()
PARTITION: Final = timer_partition("orders", "o-7")
OTHER: Final = next(f"x-{n}" for n in range(100) if timer_partition("orders", f"x-{n}") == PARTITION)


class Log:
    """The partition of the name `o-7`; a FIRE is that of the SET at an offset."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.kafka = InMemoryKafka(self.clock)
        self.kafka.create_topics(Layout(NAMES, DelayLevels.default()).timers())

    def put(self, out: OutgoingRecord, partition: int = PARTITION) -> int:
        self.clock.advance(1_000)
        made = self.kafka.append(NAMES.timers, out.value, key=out.key, partition=partition, headers=list(out.headers))
        return int(made.offset() or 0)

    def set(self, name: str = "o-7", **options: Any) -> int:
        message = Message("orders", b"x", delay="30m", timer=name, **options)
        return self.put(self.sent(message))

    def sent(self, message: Message) -> OutgoingRecord:
        end = self.kafka.end_offsets(NAMES.timers)[PARTITION]
        return delayed_record(message, NAMES, DelayLevels.default(), uniq_key=f"u{end}", born_ms=5, now_ms=5, lane=0)

    def command(self, command: str, name: str = "o-7") -> int:
        return self.put(timer_command(NAMES, "orders", name, command, uniq_key="c", born_ms=5))

    def fire(self, generation: int) -> int:
        record = self.kafka.records(NAMES.timers, PARTITION)[generation]
        envelope = decode(record.headers(), trusted=True)
        waiting = scheduled_timer(record, envelope, NAMES, due_ms=9, partition=0)
        self.kafka.create_topic("waits", 1)
        stored = self.kafka.append("waits", waiting.value, key=waiting.key, headers=list(waiting.headers))
        self.kafka.delete_topic("waits")
        return self.put(fire(stored, decode(waiting.headers, trusted=True), NAMES))

    def history(self, first: int = 0, stored: int | None = None, *, recurs: bool = False) -> TimerHistory:
        """What became of the name, if retention has deleted what is before `first`, and the worker has stored it."""
        records = self.kafka.records(NAMES.timers, PARTITION)[first:]
        state = {} if stored is None else {"o-7": PendingTimer(9, "orders", "o-7", PARTITION, stored, recurs)}
        return timer_histories(records, "orders", ["o-7"], first_offset=first, stored=state)["o-7"]


def test_a_name_that_nothing_voids_is_pending_with_its_due_time_and_then_fired() -> None:
    log = Log()
    log.set()
    fate, event = log.history().fate()
    assert fate is TimerFate.PENDING
    assert event is not None
    assert event.offset == log.history().last == 0
    assert event.due_ms == event.stored_ms + 30 * 60_000
    assert event.msg_id == "u0"
    at = log.fire(0)
    fate, event = log.history().fate()
    assert (fate, event and event.offset) == (TimerFate.FIRED, at)


def test_a_cancel_is_in_time_before_the_fire_and_too_late_behind_it() -> None:
    log = Log()
    log.set()
    log.command("CANCEL")
    log.fire(0)
    in_time = log.history()
    assert in_time.fate()[0] is TimerFate.CANCELLED
    assert [each.effect for each in in_time.events] == [Effect.SCHEDULE, Effect.FORGET, Effect.NOTHING]
    log = Log()
    log.set()
    log.fire(0)
    log.command("CANCEL")
    too_late = log.history()
    assert too_late.fate()[0] is TimerFate.FIRED
    assert [each.effect for each in too_late.events] == [Effect.SCHEDULE, Effect.DELIVER, Effect.NOTHING]


def test_each_generation_has_a_fate_of_its_own() -> None:
    log = Log()
    first, second = log.set(), log.set()
    third = log.set(if_absent=True)
    log.command("NOW")
    fourth = log.set(if_absent=True)
    history = log.history()
    fates = [history.fate(each)[0] for each in (first, second, third, fourth)]
    assert fates == [TimerFate.REPLACED, TimerFate.DELIVERED_NOW, TimerFate.DROPPED, TimerFate.PENDING]
    assert history.fate()[0] is TimerFate.PENDING
    assert history.fate(third + 1) == (TimerFate.UNKNOWN, None), "a NOW is no message"
    assert history.fate(99) == (TimerFate.UNKNOWN, None)


def test_a_debounce_shows_when_it_is_really_due() -> None:
    log = Log()
    for _ in range(3):
        log.set(at_most="30m")
    first, _, last = log.history().events
    assert last.due_ms == first.stored_ms + 30 * 60_000


def test_commands_of_other_names_and_records_that_are_none_do_not_count() -> None:
    log = Log()
    log.set()
    log.command("CANCEL", OTHER)
    log.set(OTHER)
    cancel = timer_command(NAMES, "orders", "o-7", "CANCEL", uniq_key="c", born_ms=5)
    strangers: list[list[tuple[str, bytes | None]]] = [
        [],
        [("REAL_TOPIC", b"payments"), ("TIMER", b"o-7"), ("TIMER_DO", b"CANCEL")],
        [("REAL_TOPIC", b"orders"), ("TIMER", b"o-7"), ("TIMER_DO", b"DELETE")],
        [("REAL_TOPIC", b"orders"), ("TIMER", b"o-7"), ("TIMER_DO", b"SET"), ("DELAY_MS", b"5")],
        [("REAL_TOPIC", b"orders"), ("TIMER", b"o-7"), ("TIMER_DO", b"SET"), ("DELAY_MS", b"soon")],
    ]
    for headers in strangers:
        log.put(OutgoingRecord(NAMES.timers, PARTITION, None, None, headers))
    log.put(cancel, (PARTITION + 1) % 8)
    assert [each.command for each in log.history().events] == [Command.SET]
    assert log.history().fate()[0] is TimerFate.PENDING


def test_several_names_are_read_in_one_pass() -> None:
    log = Log()
    log.set()
    log.set(OTHER)
    log.command("CANCEL", OTHER)
    records = log.kafka.records(NAMES.timers, PARTITION)
    found = timer_histories(records, "orders", ["o-7", OTHER, "none"], first_offset=0, stored={})
    assert {name: history.fate()[0] for name, history in found.items()} == {
        "o-7": TimerFate.PENDING,
        OTHER: TimerFate.CANCELLED,
        "none": TimerFate.UNKNOWN,
    }


def test_nothing_is_known_of_a_name_without_a_command() -> None:
    history = Log().history()
    assert (history.events, history.last, history.is_certain) == ((), None, True)
    assert history.fate() == (TimerFate.UNKNOWN, None)


@pytest.mark.parametrize("command", ["CANCEL", "NOW"])
def test_what_a_command_did_to_a_message_before_the_log_begins_is_unknown(command: str) -> None:
    log = Log()
    log.set()
    log.command(command)
    log.command(command)
    cut = log.history(first=1)
    assert [each.effect for each in cut.events] == [None, Effect.NOTHING], "the second certainly found nothing"
    assert cut.fate(0) == (TimerFate.UNKNOWN, None)
    assert cut.is_certain


def test_a_fire_whose_set_is_gone_is_unknown_and_a_unique_job_is_known_by_its_fire() -> None:
    log = Log()
    log.set()
    log.fire(0)
    job = log.set(if_absent=True)
    cut = log.history(first=1)
    assert [each.effect for each in cut.events] == [None, None]
    assert not cut.is_certain
    assert cut.fate()[0] is TimerFate.UNKNOWN
    log.fire(job)
    assert log.history(first=1).fate()[0] is TimerFate.FIRED


def test_a_message_that_is_older_than_the_log_is_known_from_the_stored_state() -> None:
    log = Log()
    log.set()
    log.set(OTHER)
    cut = log.history(first=1, stored=0)
    assert (cut.fate(), cut.last, cut.is_certain) == ((TimerFate.PENDING, None), 0, True)
    assert log.history(first=1).fate()[0] is TimerFate.UNKNOWN, "without the state"
    at = log.command("CANCEL")
    cut = log.history(first=1, stored=0)
    assert (cut.fate()[0], cut.events[-1].offset, cut.events[-1].effect) == (TimerFate.CANCELLED, at, Effect.FORGET)
    assert log.history(first=0, stored=0).fate()[0] is TimerFate.CANCELLED, "what the log has needs no state"


def test_a_message_that_recurs_and_was_stored_before_what_is_read_waits_after_its_fire() -> None:
    log = Log()
    log.put(log.sent(Message("orders", b"x", timer="o-7", every="1m")))
    at = log.fire(0)
    read = log.history(first=1, stored=0, recurs=True)
    assert (read.fate()[0], read.last) == (TimerFate.PENDING, at)
    assert read.outcome().set_at == at


def test_a_now_for_a_message_that_retention_has_deleted_is_unknown() -> None:
    log = Log()
    log.set()
    log.command("NOW")
    cut = log.history(first=1, stored=0)
    assert [each.effect for each in cut.events] == [None]
    assert cut.fate()[0] is TimerFate.UNKNOWN
    log.set()
    log.command("NOW")
    assert log.history(first=2).fate()[0] is TimerFate.DELIVERED_NOW


ONE = st.tuples(st.sampled_from(["SET", "ABSENT", "CANCEL", "NOW", "FIRE"]), st.integers(0, 30))


@given(st.lists(ONE, max_size=30), st.integers(0, 30))
def test_a_log_that_was_cut_never_says_what_the_whole_log_denies(commands: list[tuple[str, int]], first: int) -> None:
    log, sets, table = Log(), [], TimerTable()
    for command, number in commands:
        if command in {"SET", "ABSENT"}:
            at = log.set(if_absent=command == "ABSENT")
            sets += [at] if log.history().fate(at)[0] is TimerFate.PENDING else []  # others never wait in a queue
        elif command == "FIRE":
            if sets:
                log.fire(sets[number % len(sets)])
        else:
            log.command(command)
    whole, name = log.history(), timer_digest("orders", "o-7")
    stored = {}  # each state of the worker, at the offset from which the log is read then
    for each in whole.events:
        table.apply(each.offset, each.command, name, generation=_of_fire(log, each.offset))
        if (generation := table.pending(name)) is not None:
            stored[generation + 1] = generation
    pending = {each.offset for each in whole.events if whole.fate(each.offset)[0] is TimerFate.PENDING}
    assert pending == {table.pending(name)} - {None}
    cut = log.history(first=min(first, len(whole.events)))
    known = {each.offset: each.effect for each in whole.events}
    assert all(each.effect in {None, known[each.offset]} for each in cut.events)
    for start, generation in [*list(stored.items())[first % 7 :: 7], (first, None)]:
        part = log.history(first=min(start, len(whole.events)), stored=generation)
        for of in (None, *(each.offset for each in part.events if each.command is not Command.FIRE)):
            of_part, of_whole = part.outcome(of), whole.outcome(of)
            assert of_part.fate is TimerFate.UNKNOWN or of_part.set_at == of_whole.set_at
            assert of_part.fate in {TimerFate.UNKNOWN, of_whole.fate}
            assert of_part.is_cancel_late == of_whole.is_cancel_late or of_part.fate is TimerFate.UNKNOWN


def _of_fire(log: Log, offset: int) -> int | None:
    return decode(log.kafka.records(NAMES.timers, PARTITION)[offset].headers(), trusted=True).timer_set_at

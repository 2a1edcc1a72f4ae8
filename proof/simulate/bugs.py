"""Planted defects: each switches off one safeguard of the library. The simulation has to find every one.

A defect is a replacement of one attribute, made from the original. It is planted for the time of a `with` block.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from proof.simulate import dropin_bugs, sender_bugs, timer_bugs
from rocketshim.admin.redrive import Journal, Redriver, RedriveTransactions
from rocketshim.consumer.mode import Mode
from rocketshim.consumer.orderly import OrderlyRunner
from rocketshim.consumer.reader.group_offsets import Committer
from rocketshim.consumer.reader.partition_reader import PartitionReader
from rocketshim.consumer.send_back import SendBack
from rocketshim.core.level_queue import LevelQueue
from rocketshim.core.named_timers import Command, TimerTable
from rocketshim.core.next_hop import HopMaker
from rocketshim.core.orderly_queue import OrderlyTask
from rocketshim.core.process_deaths import CarefulPartition, CarefulStart
from rocketshim.core.process_queue import ProcessQueue
from rocketshim.core.redrive_progress import RedriveProgress
from rocketshim.dropin import Consumer as DropinConsumer
from rocketshim.dropin.partitions import Partitions
from rocketshim.dropin.retry_side import DropinSendBack, RetrySide
from rocketshim.kafka import lookups
from rocketshim.kafka.record_sender import OwnedSender, RecordSender
from rocketshim.kafka.reports import DeliveryReports
from rocketshim.locks.holder import QueueLockHolder
from rocketshim.locks.log_thread import GroupLogThread
from rocketshim.producer.arguments import RecordMaker
from rocketshim.worker.allow_list import AllowList
from rocketshim.worker.assignment import AssignedPartition
from rocketshim.worker.at_least_once import AtLeastOnce
from rocketshim.worker.exactly_once import ExactlyOnce, Transaction, UnsavedStates
from rocketshim.worker.hop_writer import HopBatch
from rocketshim.worker.timer_router import TimerRouter
from rocketshim.worker.timer_state import TimerLoader
from rocketshim.worker.worker_clients import WorkerClients
from rocketshim_topics.hops import deliver
from rocketshim_topics.wire import decode, read_headers

__all__ = ["BUGS", "Bug", "planted"]

REDRIVES: Final = "redrives"
ROLLING: Final = "rolling"
ORDERLY: Final = "orderly"
CHURNS: Final = "churns"
DROPIN: Final = "dropin"
SENDERS: Final = "senders"
LOGS: Final = "logs"
HALF_ANSWERS: Final = "half_answers"
KILLERS: Final = "killers"
TIMERS: Final = "timers"
_EARLIER_NS: Final = 300_000_000
_FIRST_APPEND_MS: Final = 1_700_000_000_000
EXACTLY_ONCE: Final = "exactly_once"


@dataclass(frozen=True, slots=True)
class Bug:
    """One planted defect.

    Attributes:
        name: which safeguard is off.
        owner: the class or module that has it.
        attribute: its name there.
        make: makes the defective attribute from the original.
        needs: what a plan must have so that the defect can show; "": every plan may show it.
    """

    name: str
    owner: Any
    attribute: str
    make: Callable[[Any], Any]
    needs: str = ""


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Plant a defect for the time of the block."""
    original = bug.owner.__dict__[bug.attribute]
    setattr(bug.owner, bug.attribute, bug.make(original))
    try:
        yield
    finally:
        setattr(bug.owner, bug.attribute, original)


def _returns(value: Any) -> Callable[[Any], Any]:
    return lambda _: lambda *_, **__: value


def _property(value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda _: property(value)


# --- consumer --------------------------------------------------------------------------------------------------------


def _sent_back_when_produced(original: Any) -> Any:
    def send(self: Any, out: Any, what: Any) -> None:
        original(self, out, what)
        if isinstance(what, tuple):  # a hop; the group's log is another owner
            chunk, hop = what
            chunk.stored([hop.failed.message])
            chunk.dropped = True  # the true result is ignored

    return send


def _refused_hop_is_dropped(_: Any) -> Any:
    def not_stored(self: Any, sender: Any, chunk: Any, hop: Any, error: Any) -> None:
        del self, sender, error
        chunk.stored([hop.failed.message])

    return not_stored


def _refused_hop_is_forgotten(_: Any) -> Any:
    return lambda self, *facts: None  # noqa: ARG005


def _counted_twice(original: Any) -> Any:
    def first(self: Any, failed: Any, **named: Any) -> Any:
        before = decode(read_headers(failed.message), trusted=True).reconsume_times
        return original(self, replace(failed, reconsume_times=before + 1) if before else failed, **named)

    return first


def _limit_plus_one(original: Any) -> Any:
    def init(self: Any, *values: Any, limit: int, **named: Any) -> None:
        original(self, *values, limit=limit + 1, **named)

    return init


def _key_is_lost(original: Any) -> Any:
    def first(self: Any, failed: Any, **named: Any) -> Any:
        hop = original(self, failed, **named)
        hop.out = replace(hop.out, key=b"another")
        return hop

    return first


def _value_is_lost(original: Any) -> Any:
    def first(self: Any, failed: Any, **named: Any) -> Any:
        hop = original(self, failed, **named)
        hop.out = replace(hop.out, value=(hop.out.value or b"") + b" ")
        return hop

    return first


def _sent_on_counts(original: Any) -> Any:
    def sent_on(self: Any, failed: Any, envelope: Any, *values: Any) -> Any:
        counted = envelope.copy()
        counted.reconsume_times = (envelope.reconsume_times or 0) + 1
        return original(self, failed, counted, *values)

    return sent_on


def _commit_of_what_was_put(self: Any) -> Any:
    return None if self._newest < 0 else self._newest + 1


def _commit_of_what_was_taken(self: Any) -> Any:
    last = self._tracker.last_offset
    return None if last < 0 else last + 1


def _skips_what_is_pending(original: Any) -> Any:
    def skip_to(self: Any, position: int) -> None:
        if self.pending_count:
            self._tracker.skip_to(position)
        else:
            original(self, position)

    return skip_to


def _failed_are_finished(original: Any) -> Any:
    def report(self: Any, chunk: Any, failed: Any = ()) -> Any:
        to_send = original(self, chunk, failed)
        if to_send:
            self.stored(chunk, to_send)
        return []

    return report


def _half_answer_is_believed(_: Any) -> Any:
    return lambda answers: answers


def _start_one_later(original: Any) -> Any:
    def begin(self: Any, key: Any, offset: int) -> None:
        if offset > 0:
            self.client().seek(_partition(key, offset + 1))
        original(self, key, offset)

    return begin


def _partition(key: Any, offset: int) -> Any:
    from confluent_kafka import TopicPartition  # noqa: PLC0415 - only where a defect needs it

    return TopicPartition(key.topic, key.partition, offset)


def _never_commits_again_after_an_error(_: Any) -> Any:
    return lambda self, error, partitions: None  # noqa: ARG005


def _believes(_: Any) -> Any:
    return lambda self, error, message: error  # noqa: ARG005


def _no_commit_when_revoked(_: Any) -> Any:
    def finish(self: Any, keys: Any) -> None:
        deadline_ms = self.reader.now_ms() + self.settings.revoke_drain_ms
        self.dispatch.drain([queue for key in keys if (queue := self.get(key))], self.owned, deadline_ms)

    return finish


# --- worker ----------------------------------------------------------------------------------------------------------


def _confirmed_when_produced(original: Any) -> Any:
    def register(self: Any, batch: Any) -> None:
        original(self, batch)
        if not batch.is_done:
            self._finished(batch.flight, len(batch.indexes))
            batch.flight.pending += 10**6

    return register


def _position_of_the_head(self: Any) -> Any:
    last = self.queue._last_offset  # noqa: SLF001
    return None if last < 0 else last + 1


def _refused_counts_as_stored(_: Any) -> Any:
    return lambda self: {}  # noqa: ARG005


def _delay_shorter(original: Any) -> Any:
    def init(self: Any, delay_ms: int, *values: Any) -> None:
        original(self, max(0, delay_ms - 200), *values)

    return init


def _fetched_is_dated_early(original: Any) -> Any:
    def offer(self: Any, records: Any, seen_ns: int, *values: Any) -> Any:
        return original(self, records, seen_ns - _EARLIER_NS, *values)

    return offer


def _probe_is_dated_early(original: Any) -> Any:
    def probed(self: Any, offset: int, append_ms: int, seen_ns: int) -> None:
        original(self, offset, append_ms, seen_ns - _EARLIER_NS)

    return probed


def _no_offsets_in_transaction(_: Any) -> Any:
    return lambda self: []  # noqa: ARG005


def _lost_after_abort(_: Any) -> Any:
    return lambda self, due: self.confirmed(due.run)


def _uncertain_is_committed(_: Any) -> Any:
    def resolve(self: Any, consumer: Any) -> None:
        del consumer
        for transaction in self._uncertain:
            for flight in transaction.flights:
                self._confirm(flight)
        self._uncertain = []

    return resolve


def _uncertain_is_aborted(_: Any) -> Any:
    def resolve(self: Any, consumer: Any) -> None:
        del consumer
        for transaction in self._uncertain:
            for flight in transaction.flights:
                if not flight.assigned.gone:
                    flight.assigned.queue.failed(flight.due)
        self._uncertain = []

    return resolve


def _read_uncommitted(original: Any) -> Any:
    def consumer(self: Any) -> Any:
        made = self._consumer_config

        def config(required: Any, defaults: Any) -> Any:
            return {**made(required, defaults), "isolation.level": "read_uncommitted"}

        self._consumer_config = config
        try:
            return original(self)
        finally:
            del self._consumer_config

    return consumer


def _repeats_on_every_revoke(_: Any) -> Any:
    return lambda self, assigned, *, asynchronous: None  # noqa: ARG005


def _forgets_records(original: Any) -> Any:
    def offer(self: Any, records: Any, *values: Any) -> Any:
        return original(self, records[:-1] if len(records) > 1 else records, *values)

    return offer


def _waits_for_nothing(_: Any) -> Any:
    return lambda self, flight, indexes, now_ns, reason="": None  # noqa: ARG005


# --- group log -------------------------------------------------------------------------------------------------------


class _Restamped:
    """A record of the group's log with another append time."""

    def __init__(self, message: Any, append_ms: int) -> None:
        self._message = message
        self._append_ms = append_ms

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)

    def timestamp(self) -> tuple[int, int]:
        return self._message.timestamp()[0], self._append_ms


def _own_clock_measures_leases(original: Any) -> Any:
    def fold(self: Any, message: Any) -> None:
        original(self, _Restamped(message, _FIRST_APPEND_MS + self._now_ms()))

    return fold


# --- redrive ---------------------------------------------------------------------------------------------------------


def _marks_after_the_letters(original: Any) -> Any:
    def produce_all(self: Any, batch: Any) -> None:
        transactions = self._transactions
        for letter, out in batch:
            if out is not None:
                transactions.send(letter, out)
        transactions.await_reports()
        transactions.commit()
        transactions.open()
        original(self, [(letter, None) for letter, _ in batch])

    return produce_all


def _takes_nothing_from_the_log(_: Any) -> Any:
    return lambda self, log: lambda letter: False  # noqa: ARG005


def _marks_what_it_does_not_send(original: Any) -> Any:
    return lambda self, batch: original(self, [(letter, None) for letter, _ in batch])


def _uncertain_is_sent_again(original: Any) -> Any:
    def resume(self: Any, is_done: Any) -> Any:
        return original(self, lambda letter: (letter.partition, letter.offset) not in self._taken and is_done(letter))

    return resume


# --- orderly ---------------------------------------------------------------------------------------------------------


def _counts_from_zero(original: Any) -> Any:
    def run(self: Any, task: Any) -> Any:
        task.counts = {}
        return original(self, task)

    return run


_NO: Final = _returns(False)  # noqa: FBT003
_YES: Final = _returns(True)  # noqa: FBT003

BUGS: Final = (
    Bug("a hop counts as stored when it is produced", OwnedSender, "send", _sent_back_when_produced),
    Bug("a refused hop counts as stored", SendBack, "_not_stored", _refused_hop_is_dropped),
    Bug("a refused hop is not sent again", SendBack, "_not_stored", _refused_hop_is_forgotten),
    Bug("failed attempts are counted twice", HopMaker, "first", _counted_twice),
    Bug("one attempt too many", HopMaker, "__init__", _limit_plus_one),
    Bug("the key changes on a hop", HopMaker, "first", _key_is_lost),
    Bug("the value changes on a hop", HopMaker, "first", _value_is_lost),
    Bug("a retry that a member has no listener for is dead", HopMaker, "_pause_ms", _returns(None), ROLLING),
    Bug("sending a message on counts as a failure", HopMaker, "_sent_on", _sent_on_counts, ROLLING),
    Bug("commits pass what was only read", ProcessQueue, "next_offset", _property(_commit_of_what_was_put)),
    Bug("commits pass what is in flight", ProcessQueue, "next_offset", _property(_commit_of_what_was_taken)),
    Bug(
        "commits pass what is read and pending as if no reader saw it", ProcessQueue, "skip_to", _skips_what_is_pending
    ),
    Bug("failed messages are finished before their hop", ProcessQueue, "report", _failed_are_finished),
    Bug("reading begins behind the committed position", PartitionReader, "_begin", _start_one_later),
    Bug("half an answer is believed", lookups, "check_answers", _half_answer_is_believed, HALF_ANSWERS),
    Bug("a refused commit is not made again", Committer, "answered", _never_commits_again_after_an_error),
    Bug("a report without an offset is believed", DeliveryReports, "error", _believes),
    Bug("no commit when partitions are revoked", Mode, "drain_and_commit", _no_commit_when_revoked, CHURNS),
    Bug("a hop of the worker counts as stored when produced", AtLeastOnce, "_register", _confirmed_when_produced),
    Bug("the worker commits what it has fetched", AssignedPartition, "position", _property(_position_of_the_head)),
    Bug("a hop that was refused counts as stored", HopBatch, "unstored", _refused_counts_as_stored),
    Bug("a refused record is not sent again", AtLeastOnce, "_send_again", _waits_for_nothing),
    Bug("processes that die are not counted", CarefulStart, "at_limit", _returns({}), KILLERS),
    Bug("a suspect begins before a commit has noted it", CarefulPartition, "has_stored", _YES, KILLERS),
    Bug("queues are 200 ms too short", LevelQueue, "__init__", _delay_shorter),
    Bug("a fetched record is dated before it was seen", LevelQueue, "offer", _fetched_is_dated_early),
    Bug("a probe is dated before its report", LevelQueue, "probed", _probe_is_dated_early),
    Bug("everything is allowed", AllowList, "refusal", _returns(None)),
    Bug("a transaction commits no positions", Transaction, "offsets", _no_offsets_in_transaction, EXACTLY_ONCE),
    Bug("records of an aborted transaction are not sent again", LevelQueue, "failed", _lost_after_abort),
    Bug("an uncertain transaction counts as committed", ExactlyOnce, "_resolve", _uncertain_is_committed, EXACTLY_ONCE),
    Bug("an uncertain transaction counts as aborted", ExactlyOnce, "_resolve", _uncertain_is_aborted, EXACTLY_ONCE),
    Bug("the schedule topic is read uncommitted", WorkerClients, "consumer", _read_uncommitted, EXACTLY_ONCE),
    Bug("the worker commits nothing", AtLeastOnce, "commit", _repeats_on_every_revoke),
    Bug("a fetched record is forgotten", LevelQueue, "offer", _forgets_records),
    Bug("any generation of a name fires", TimerTable, "apply", timer_bugs.any_generation_fires, TIMERS),
    Bug("a cancel does nothing", TimerTable, "apply", timer_bugs.cancels_are_ignored, TIMERS),
    Bug("a cancel behind the fire wins", TimerRouter, "route", timer_bugs.applied_first(Command.CANCEL), TIMERS),
    Bug("a cancel before the fire loses", TimerRouter, "route", timer_bugs.applied_first(Command.FIRE), TIMERS),
    Bug("a state is stored before its effect", AtLeastOnce, "_send", timer_bugs.state_is_written_first, TIMERS),
    Bug("a state waits and is lost", UnsavedStates, "keep", timer_bugs.states_are_saved_or_lost, TIMERS),
    Bug("an unsaved state stays so", TimerLoader, "_read_state", timer_bugs.what_was_unsaved_stays_so, TIMERS),
    Bug("pending names are not loaded", TimerLoader, "_read_state", timer_bugs.nothing_is_loaded, TIMERS),
    Bug("a command is decided again", TimerRouter, "route", timer_bugs.changes_are_forgotten, TIMERS),
    Bug("a half message is delivered when it is due", TimerTable, "apply", timer_bugs.halves_are_delivered, TIMERS),
    Bug("a question ends a transaction", TimerTable, "apply", timer_bugs.questions_end_transactions, TIMERS),
    Bug("a COMMIT delivers another half message", TimerRouter, "_is_read", timer_bugs.any_half_is_committed, TIMERS),
    Bug("a fired message keeps its name", deliver, "drop_timer", _returns(None), TIMERS),
    Bug(
        "a redrive marks letters in the next transaction", Redriver, "_produce_all", _marks_after_the_letters, REDRIVES
    ),
    Bug("a redrive ignores its log", Journal, "is_done", _takes_nothing_from_the_log, REDRIVES),
    Bug("a redrive marks what it does not send", Redriver, "_produce_all", _marks_what_it_does_not_send, REDRIVES),
    Bug("a redrive repeats an uncertain transaction", RedriveProgress, "resume", _uncertain_is_sent_again, REDRIVES),
    Bug(
        "a redrive believes a report without an offset",
        RedriveTransactions,
        "_note_unconfirmed",
        _returns(None),
        REDRIVES,
    ),
    Bug("a failed message does not hold its queue", OrderlyTask, "continues_after", _YES, ORDERLY),
    Bug("an orderly queue forgets failed attempts", OrderlyRunner, "run", _counts_from_zero, ORDERLY),
    Bug("a member measures leases with its own clock", GroupLogThread, "_fold", _own_clock_measures_leases, ORDERLY),
    Bug("a lost group log is not noticed", GroupLogThread, "_lost", _returns(None), LOGS),
    Bug("tokens begin again in a new log", QueueLockHolder, "_tokens_would_fall", _NO, LOGS),
    Bug(
        "a send succeeds when the client has taken it",
        RecordSender,
        "send",
        sender_bugs.acknowledged_when_taken,
        SENDERS,
    ),
    Bug("ids begin again with each producer", RecordMaker, "__init__", sender_bugs.same_ids_in_every_process, SENDERS),
    Bug(
        "the drop-in does not wait for a report", DropinSendBack, "_store", dropin_bugs.sent_back_without_report, DROPIN
    ),
    Bug(
        "the drop-in forgets what it could not send back",
        Partitions,
        "end",
        dropin_bugs.failed_is_forgotten,
        DROPIN,
    ),
    Bug("the drop-in stores what it returns", DropinConsumer, "poll", dropin_bugs.stored_when_returned, DROPIN),
    Bug("the drop-in stores past buffered messages", RetrySide, "hand_out", dropin_bugs.nothing_is_buffered, DROPIN),
    Bug("buffered messages survive a revocation", DropinConsumer, "poll", dropin_bugs.reads_ahead, DROPIN),
    Bug(
        "the retry topic is read again after a rebalance",
        RetrySide,
        "_starts",
        dropin_bugs.from_the_beginning,
        DROPIN,
    ),
)

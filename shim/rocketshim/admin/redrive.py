"""Apply a redrive plan: process each dead letter exactly once, whatever fails at any time.

A transaction contains the dead letters that it sends and their mark in the redrive log
(`rocketshim_topics.redrive_log`), so either both are stored or neither. The rest follows from Kafka's fencing:

* The `transactional.id` is derived from the source topic, so a topic has one redrive at a time. `init_transactions`
  fences the previous redrive of that topic and ends its open transaction.
* Then we write our `begin` into the log and read the log until that record comes back. Now we know every mark that was
  committed before, also if transactions of other redrives were open in the log. Only our own marks can follow. To read
  the log to its end is not enough: `read_committed` shows nothing behind an open transaction
  (test_an_open_transaction_in_the_log_ends_the_redrive_with_an_error).
* We send the letters that have no mark in the log, one transaction after another.
* After any error with an uncertain outcome we start again from scratch: new producer, `begin`, log. If another redrive
  has begun meanwhile, it continues; we stop and name it.

If the target refuses a letter itself (for example because it is too large), that letter fails and the rest of its
transaction is sent without it. A broker refuses whole batches, so from the first refusal on each batch has one record.
A refusal ends its transaction and its session, and the next session reads the log again. Therefore a letter that would
certainly be refused for the cause of an earlier refusal fails without being sent (`core.redrive_progress.Refusals`).
Records that no longer exist, or differ from those that the plan saw, fail, too.

The order per key is that of the source partition: there is one producer, it sends in offset order, and a transaction is
never repeated after a later one. A letter that failed may be sent later, once its cause is fixed. To keep the order
then, the later letters with the same key wait: in this run they fail as `behind-failed`. (A record that is gone or
changed can never be sent, so nothing waits for it.)

A missing ACL on a topic is not the fault of a letter. It ends the redrive with the name of the topic. ACLs are checked
before the first letter, and again if the cluster refuses a write later. What was sent until then is marked.

Between transactions the redrive reads new records of the source topic and counts letters of this run that are dead
again, so that a cause that is not fixed stops the redrive. It does not see letters that are dead-lettered after it has
ended; a rate limit gives them time.

While a transaction is open, `read_committed` consumers of its targets wait, so transactions are short. The next apply
ends a transaction that a `kill -9` left open; its time-out (15 s) ends it at the latest. A slow broker is not an absent
one: after each failed attempt the next one has twice the time, up to 60 s, and a quarter of the letters. Transactions
that take less than a third of that time become larger again.
"""

import getpass
import re
import socket
import time
import uuid
from collections.abc import Callable, Container, Generator, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException

from rocketshim.clock import SystemClock
from rocketshim.core.broker_clock import BrokerClock
from rocketshim.core.clock import Clock
from rocketshim.core.redrive_progress import Cause, RedriveProgress, Refusals
from rocketshim.errors import (
    MalformedRecordError,
    MessageError,
    NotAuthorizedError,
    RedriveError,
    TopicMissingError,
)
from rocketshim.kafka.acls import denied_topics
from rocketshim.kafka.client_config import PROTECTED_PRODUCER, merge
from rocketshim.kafka.clients import (
    Clients,
    ProducerClient,
    close_producer,
    confluent_clients,
    init_transactions,
    purge_producer,
)
from rocketshim.kafka.reports import UNCONFIRMED, DeliveryReports, is_unconfirmed
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics.hops import OutgoingRecord
from rocketshim_topics.kafka_codes import DENIED, MISSING, TOO_LARGE
from rocketshim_topics.names import init_command
from rocketshim_topics.redrive_log import (
    BeginRecord,
    MarkRecord,
    RedriveLog,
    RedriveRecord,
    State,
    decode_redrive_record,
    encode_redrive_record,
    record_digest,
)
from rocketshim_topics.redrive_plan import PlannedLetter
from rocketshim_topics.wire import REPLAY_ID, USER_PREFIX, headers_shown

__all__ = ["Redriver", "log_records", "read_log", "replay_id_of", "whoami"]

_TRANSACTION_MS: Final = 15_000
_API_TIMEOUT_S: Final = 10.0
_MOST_PATIENCE: Final = 4
_READ_BACK_TIMEOUT_NS: Final = 60_000_000_000
_RETRY_BACKOFF_S: Final = 0.5
_MAX_ATTEMPTS: Final = 5
_MAX_TRANSACTION_BYTES: Final = 8 * 1024 * 1024
_POLL_S: Final = 0.1
_WATCH_MS: Final = 200
_NUMBER: Final = re.compile("[0-9]{1,19}")
_REFUSED: Final[Mapping[int, Cause]] = {
    **dict.fromkeys(TOO_LARGE, Cause.TOO_LARGE),
    **dict.fromkeys(MISSING, Cause.MISSING),
    KafkaError.INVALID_RECORD: Cause.INVALID,
    KafkaError.INVALID_MSG: Cause.INVALID,
}

Make = Callable[[Any, PlannedLetter], OutgoingRecord | None]
"""Makes the record that sends a letter again; None: only mark it. If the function raises, the letter fails."""

Fetch = Callable[[Container[tuple[int, int]]], Generator[Any]]
"""Returns the existing letters at these partitions and offsets, in order within a partition."""


def whoami() -> str:
    """Return the user who runs this process, for the log: `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the system does not know the user
        user = "?"
    return f"{user}@{socket.gethostname()}"


def read_log(reader: TopicReader, topic: str, source: str) -> RedriveLog:
    """Return what the redrive log has about the dead letters of a topic, up to the log's first open transaction.

    * `topic`: physical name of the log; if it does not exist, the answer is empty.
    """
    if not reader.topics().get(topic):
        return RedriveLog(source)
    _, end = reader.bounds(topic, 0)
    log, first_ms = RedriveLog(source), None
    for at_ms, record in log_records(reader, topic):
        first_ms = at_ms if first_ms is None else min(first_ms, at_ms)
        log.add(record)
    log.end = end
    if reader.bounds(topic, 0)[0] > 0:  # asked last: what was deleted meanwhile was not read either
        log.lost_before(first_ms)
    return log


def log_records(reader: TopicReader, topic: str) -> Iterator[tuple[int, RedriveRecord | None]]:
    """Yield append time (epoch ms) and content of each record that `read_log` applies; None: a record to ignore."""
    if reader.topics().get(topic):
        for message in reader.read([topic]):
            yield message.timestamp()[1], decode_redrive_record(message.value())


def replay_id_of(record: Any) -> bytes:
    """Return the id that a redrive gave to a record, or to the record that it was made from; empty: none did."""
    headers = dict(headers_shown(record))
    return headers.get(REPLAY_ID) or headers.get(USER_PREFIX + REPLAY_ID) or b""


class Redriver:
    """Applies one plan.

    Args:
        log_topic: physical name of the redrive log, which must exist; also the prefix of the `transactional.id`.
        source: physical topic of the letters.
        state: the state that the marks give to the letters.
        make: makes the record that sends a letter.
        fetch: reads the letters; None: read them from `source`.
        again: also send letters that other plans have redriven or discarded.
        log_end: the offset up to which the plan knows the redrive log: all later records must exist.
        by: who applies the plan, for the log; None: the user of this process (`whoami`).
        progress: the letters to process; the caller may read it at any time between calls.
        report: called after each transaction and each failure.
        clock: time for the rate.
        wait: waits for a number of seconds; None: `time.sleep`.
        point: called with the name of each point of the protocol when it is reached; for fault tests.

    Thread-safety: none; one owner thread.
    """

    def __init__(
        self,
        bootstrap: str,
        log_topic: str,
        *,
        source: str,
        plan: str,
        state: State,
        make: Make,
        progress: RedriveProgress,
        fetch: Fetch | None = None,
        again: bool = False,
        log_end: int = 0,
        by: str | None = None,
        report: Callable[[], None] = lambda: None,
        client: Mapping[str, Any] | None = None,
        clients: Clients | None = None,
        clock: Clock | None = None,
        wait: Callable[[float], None] | None = None,
        point: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._log_topic = log_topic
        self._source = source
        self._plan = plan
        self._state: State = state
        self._make = make
        self._progress = progress
        self._fetch = fetch
        self._again = again
        self._log_end = log_end
        self._report = report
        self._clients = clients or confluent_clients()
        self._clock = clock or SystemClock()
        self._broker_clock = BrokerClock()
        self._wait = wait or time.sleep
        self._point = point
        self._sessions: list[str] = []
        self._by = by or whoami()
        self._reader = TopicReader(bootstrap, client=client, clients=clients)
        self._watcher = TopicReader(bootstrap, client=client, clients=clients)
        self._new_records: Iterator[Any] = iter(())
        self._pace = _Pace()
        self._config = merge(
            client or {},
            defaults={"client.id": "rocketshim-redrive", "linger.ms": 5, "message.max.bytes": 100_000_000},
            required={
                **PROTECTED_PRODUCER,
                **self._pace.settings,
                "bootstrap.servers": bootstrap,
                "transactional.id": f"{log_topic}.{source}",
                "retry.backoff.ms": 1,
                "retry.backoff.max.ms": 100,
            },
        )
        self._admin_config = merge(client or {}, defaults={}, required={"bootstrap.servers": bootstrap})
        self._targets: set[str] = set()
        self._producer: ProducerClient | None = None
        self._has_open_transaction = False
        self._refused: dict[tuple[int, int], KafkaError] = {}
        self._reports = DeliveryReports()
        self._has_unconfirmed = False
        self._refusals = Refusals(is_compressed=_compresses(self._config))
        self._first_failed: dict[tuple[int, bytes | None], int] = {}  # partition and key to offset

    def run(self) -> None:
        """Send the remaining letters until all are processed or `progress.stopped_by` has a reason.

        Raises:
            NotAuthorizedError: the principal may not write to a topic. What was sent before is marked.
            RedriveError: another process redrives the same topic now, the redrive log has lost records since the plan
                was made, or the cluster keeps failing; the message tells which. What was sent is marked.
        """
        if not self._reader.topics().get(self._log_topic):
            raise TopicMissingError(
                f"the topic {self._log_topic} does not exist; create it with: {init_command(self._log_topic)}"
            )
        self._refuse_if_marks_are_lost()
        self._new_records = self._watcher.read([self._source], follow=True, new_only=True, poll_s=0.0)
        next(self._new_records)
        attempts = 0
        try:
            while True:
                sent = self._progress.sent
                try:
                    return self._run_session()
                except _RefusedError:  # the same producer would skip sequence numbers (measured, librdkafka 2.16)
                    self._close_producer()
                    self._progress.aborted()
                    self._pace.is_one_per_batch = True
                except KafkaException as error:
                    if error.args[0].code() in DENIED:
                        raise NotAuthorizedError(self._denied(error.args[0].str())) from error
                    attempts = 1 if self._progress.sent > sent else attempts + 1
                    if attempts >= _MAX_ATTEMPTS:
                        raise RedriveError(
                            f"the redrive of {self._source} cannot continue after {attempts} attempts "
                            f"({error.args[0].name()}: {error.args[0].str()}); what was sent is marked: apply the plan "
                            "again for the rest"
                        ) from error
                    self._close_producer()
                    self._pace.slow_down()
                    self._wait(_RETRY_BACKOFF_S)
        finally:
            self._close_producer()

    def dry_run(self) -> None:
        """Read log and letters, and make every record but send none; count failures as `run` would."""
        self._refuse_if_marks_are_lost()
        log = read_log(self._reader, self._log_topic, self._source)
        letters = self._progress.resume(self._is_done(log))
        self._refuse_if_denied(letters)
        made = 0
        with closing(self._read(letters)) as found:
            for letter, message in found:
                made += self._make_record(letter, message) is not None
                if self._progress.stopped_by is not None or made == self._progress.most:
                    return

    def close(self) -> None:
        """Close the Kafka clients."""
        self._close_producer()
        self._reader.close()
        self._watcher.close()

    # --- a session: from init_transactions to the first error --------------------------------------------------------

    def _run_session(self) -> None:
        if self._sessions:
            self._refuse_if_taken_over(read_log(self._reader, self._log_topic, self._source))
        producer = self._producer = self._clients.producer({**self._config, **self._pace.settings})
        init_transactions(producer, self._log_topic, self._pace.api_timeout_s)
        log = self._begin(producer)
        self._refuse_if_marks_are_lost()
        letters = self._progress.resume(self._is_done(log))
        self._report()
        if letters:
            self._refuse_if_denied(letters)
            self._send(producer, letters)

    def _refuse_if_denied(self, letters: list[PlannedLetter]) -> None:
        """Check the ACLs once, before the first letter."""
        if not self._targets:
            self._targets = {letter.target for letter in letters} - {""} | {self._log_topic}
            if denied := self._denied():
                raise NotAuthorizedError(denied)

    def _denied(self, default: str = "") -> str:
        """Return an error text with the topics that the principal may not write to, and what to do.

        * `default`: used if the cluster names no topic; `""`: return `""` then.
        """
        denied: set[str] = set()
        if self._clients.admin is not None:
            topics = self._targets or {self._log_topic}
            denied = denied_topics(self._clients.admin(self._admin_config), topics, lambda *_, **__: None)
        what = f"the principal may not write to {', '.join(sorted(denied))}" if denied else default
        return what and (
            f"{what}: grant it (see: rocketshim acls --role operator) and apply the plan again; {self._progress.sent} "
            "letters were sent in this run, and are marked"
        )

    def _begin(self, producer: ProducerClient) -> RedriveLog:
        """Write our `begin` record, and read the log until it comes back."""
        session = uuid.uuid4().hex
        self._sessions.append(session)
        record = BeginRecord(source=self._source, plan=self._plan, session=session, by=self._by)
        self._open(producer)
        self._log(producer, record)
        self._commit(producer)
        producer.poll(0)  # the report of the record, if the commit has not passed it on
        log = RedriveLog(self._source)
        deadline_ns = self._clock.monotonic_ns() + _READ_BACK_TIMEOUT_NS
        with closing(self._reader.read([self._log_topic], follow=True)) as messages:
            for message in messages:
                entry = None if message is None else decode_redrive_record(message.value())
                log.add(entry)
                if isinstance(entry, BeginRecord) and entry.session == session:
                    break
                if message is not None:
                    deadline_ns = self._clock.monotonic_ns() + _READ_BACK_TIMEOUT_NS  # a long log may take minutes
                elif self._clock.monotonic_ns() > deadline_ns:
                    raise RedriveError(
                        f"our own record did not come back from {self._log_topic}, and no other record for "
                        f"{_READ_BACK_TIMEOUT_NS // 1_000_000_000} s, because a transaction is open in that topic; "
                        "wait until it has ended and apply the plan again"
                    )
        return log

    def _refuse_if_marks_are_lost(self) -> None:
        """Refuse to send if the log may have had marks of this plan that are gone: letters would be sent twice.

        Decides: What if records of the redrive log are gone? A plan is applied only if the log has each record since
            the plan was made; a new plan holds back the letters that are older than the log's first record.
        """
        if self._state == "discarded" or not self._reader.topics().get(self._log_topic):
            return
        low, end = self._reader.bounds(self._log_topic, 0)
        if low <= self._log_end <= end:
            return
        what = f"begins at offset {low}" if low > self._log_end else f"ends at offset {end}: it was created again"
        raise RedriveError(
            f"the redrive log {self._log_topic} has lost records since this plan was made (the plan knows it up to "
            f"offset {self._log_end}, and the log {what}), so which of the plan's letters were sent is not known; "
            f"{self._progress.sent} were sent in this run. Make a new plan by rocketshim dlq plan, or parked plan: it "
            "holds back what may have been sent (marks-lost). Send that nevertheless by --again, or mark dead letters "
            "as not to be sent by dlq discard"
        )

    def _refuse_if_taken_over(self, log: RedriveLog) -> None:
        last = log.last_begin
        has_begun = any(log.has_begun(session) for session in self._sessions)
        if has_begun and last is not None and last.session not in self._sessions:
            raise RedriveError(
                f"{last.by or 'another process'} began to redrive {self._source} (plan {last.plan}) after us, and "
                "continues; what we sent is marked: apply the plan again when that redrive is done"
            )

    def _is_done(self, log: RedriveLog) -> Callable[[PlannedLetter], bool]:
        def is_done(letter: PlannedLetter) -> bool:
            if log.is_done(self._plan, letter.partition, letter.offset):
                return True
            found = log.settled(letter.partition, letter.offset, letter.digest)
            return found is not None and not self._again

        return is_done

    # --- sending -----------------------------------------------------------------------------------------------------

    def _send(self, producer: ProducerClient, letters: list[PlannedLetter]) -> None:
        batch: list[tuple[PlannedLetter, OutgoingRecord | None]] = []
        size_bytes = 0
        capacity = self._await_capacity()
        with closing(self._read(letters)) as found:
            for letter, message in found:
                made = self._make_record(letter, message)
                if made is not None:
                    batch.append((letter, made[0]))
                    size_bytes += 0 if made[0] is None else len(made[0].value or b"")
                if self._progress.stopped_by is not None:
                    return
                if len(batch) >= capacity or size_bytes >= self._pace.share * _MAX_TRANSACTION_BYTES:
                    self._transact(producer, batch)
                    batch, size_bytes = [], 0
                    capacity = self._await_capacity()
                    if capacity == 0:
                        return
        self._transact(producer, batch)

    def _await_capacity(self) -> int:
        """Wait until the rate allows the next transaction; return its maximum number of letters, 0 if stopped."""
        while self._progress.stopped_by is None:
            has_read, wait_ms = self._watch_source(), self._progress.wait_ms(self._now_ms())
            if not has_read and wait_ms == 0:
                break
            if not has_read:
                self._wait(min(wait_ms, _WATCH_MS) / 1_000)
        capacity = self._progress.capacity(self._now_ms())
        return capacity and max(1, int(self._pace.share * capacity))

    def _watch_source(self) -> bool:
        """Read a new record of the source topic, and count it as dead again if this plan sent it; False: none came."""
        message = next(self._new_records)
        if message is None:
            return False
        plan, *position = replay_id_of(message).decode("utf-8", "replace").rsplit(".", 2)
        if plan == self._plan and len(position) == 2 and all(_NUMBER.fullmatch(number) for number in position):
            self._progress.died_again(int(position[0]), int(position[1]))
        return True

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def _read(self, letters: list[PlannedLetter]) -> Generator[tuple[PlannedLetter, Any]]:
        """Return the letters that still exist; the others fail as `gone`."""
        waiting = {(letter.partition, letter.offset): letter for letter in letters}
        fetched = self._reader.read_at(self._source, waiting) if self._fetch is None else self._fetch(waiting)
        with closing(fetched) as messages:
            for message in messages:
                yield waiting.pop((message.partition(), message.offset())), message
        for letter in waiting.values():
            self._fail(letter, "gone")

    def _make_record(self, letter: PlannedLetter, message: Any) -> tuple[OutgoingRecord | None] | None:
        """Return the record that sends a letter, in a tuple; None if the letter has failed."""
        if record_digest(message) != letter.digest:
            self._fail(letter, "changed")
            return None
        key = message.key()
        try:
            made = self._make(message, letter)
        except MalformedRecordError as error:
            self._fail_for_its_key(letter, error.reason, key)
        except MessageError:
            self._fail_for_its_key(letter, "unsendable", key)
        else:
            return None if self._fails_without_sending(letter, made) else (made,)
        return None

    def _fails_without_sending(self, letter: PlannedLetter, made: OutgoingRecord | None) -> bool:
        """Fail a letter that is behind a failed one of its key, or certain to be refused; return whether it fails.

        Decides: Does a dead letter wait for one before it, of the same key? If that one failed, it fails too
            (behind-failed), so that the order is kept.
        """
        if made is None:
            return False
        if self._first_failed.get((letter.partition, made.key), letter.offset) < letter.offset:
            self._fail(letter, "behind-failed")
            return True
        reason = self._refusals.reason(made)
        if reason is not None:
            self._fail_for_its_key(letter, reason, made.key)
        return reason is not None

    def _fail_for_its_key(self, letter: PlannedLetter, reason: str, key: Any) -> None:
        """Fail a letter, and so the later letters with the same key; a key of None has no order."""
        self._fail(letter, reason)
        if key is not None:
            ordered = (letter.partition, key)
            self._first_failed[ordered] = min(letter.offset, self._first_failed.get(ordered, letter.offset))

    def _fail(self, letter: PlannedLetter, reason: str) -> None:
        self._progress.fail(letter, reason)
        self._report()

    def _transact(self, producer: ProducerClient, batch: list[tuple[PlannedLetter, OutgoingRecord | None]]) -> None:
        """Send letters and their mark in one transaction.

        Raises:
            _RefusedError: a record was refused, and nothing is stored.
        """
        if not batch:
            return
        began_ms = self._now_ms()
        self._progress.take([letter for letter, _ in batch], began_ms)
        self._refused = {}
        self._has_unconfirmed = False
        self._open(producer)
        try:
            self._produce_all(producer, batch)
            self._point("produced")
        except KafkaException:  # a transaction with a refused record accepts no more; the reports name the record
            self._await_reports(producer)
            if not self._refused:
                raise
        self._await_reports(producer)
        if self._refused:
            if self._pace.is_one_per_batch:
                for each in batch:
                    self._fail_if_refused(*each)
            raise _RefusedError
        if self._has_unconfirmed:  # a commit might leave out a letter, or the mark
            raise KafkaException(UNCONFIRMED)
        self._commit(producer)
        self._point("committed")
        self._pace.took(self._now_ms() - began_ms)
        self._progress.committed()
        self._report()

    def _fail_if_refused(self, letter: PlannedLetter, made: OutgoingRecord | None) -> None:
        """Fail a letter whose record was refused in a transaction with one record per batch."""
        error = self._refused.get((letter.partition, letter.offset))
        if self._fails_without_sending(letter, made) or made is None or error is None:
            return
        reason = f"refused:{error.name()}"
        self._refusals.add(made, _REFUSED[error.code()], reason)
        self._fail_for_its_key(letter, reason, made.key)

    def _await_reports(self, producer: ProducerClient) -> None:
        """Wait for every delivery report, or until one reports a refused record: then the others may never come."""
        deadline_ns = self._clock.monotonic_ns() + int(self._pace.api_timeout_s * 1e9)
        while len(producer) > 0 and not self._refused and self._clock.monotonic_ns() < deadline_ns:
            producer.poll(_POLL_S)

    def _produce_all(self, producer: ProducerClient, batch: list[tuple[PlannedLetter, OutgoingRecord | None]]) -> None:
        for letter, out in batch:
            if out is not None:
                self._produce(producer, letter, out)
        mark = MarkRecord(
            state=self._state,
            source=self._source,
            plan=self._plan,
            session=self._sessions[-1],
            by=self._by,
            letters=tuple((letter.partition, letter.offset, letter.digest) for letter, _ in batch),
        )
        self._log(producer, mark)

    def _log(self, producer: ProducerClient, record: RedriveRecord) -> None:
        """Produce a record of the redrive log, whose append time tells the brokers' clock."""
        sent_ns, sent_ms = self._clock.monotonic_ns(), self._clock.wall_ms()

        def on_delivery(error: KafkaError | None, message: Any) -> None:
            self._note_unconfirmed(error, message)
            if error is None and message.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME:
                reported_ns = self._clock.monotonic_ns()
                self._broker_clock.reported(message.timestamp()[1], sent_ns, sent_ms, reported_ns)

        _hand_over(producer, self._log_topic, encode_redrive_record(record), on_delivery=on_delivery)

    def _note_unconfirmed(self, error: KafkaError | None, message: Any) -> None:
        error = self._reports.error(error, message)
        self._has_unconfirmed = self._has_unconfirmed or (error is not None and is_unconfirmed(error))

    def _produce(self, producer: ProducerClient, letter: PlannedLetter, out: OutgoingRecord) -> None:
        position = (letter.partition, letter.offset)

        def on_delivery(error: KafkaError | None, message: Any) -> None:
            self._note_unconfirmed(error, message)
            if error is not None and error.code() in _REFUSED:
                self._refused[position] = error

        partition = -1 if out.partition is None else out.partition
        options = {"timestamp": self._stamp_ms(), "headers": out.headers}
        try:
            _hand_over(producer, out.topic, out.value, out.key, partition, on_delivery=on_delivery, **options)
        except KafkaException as error:
            if error.args[0].code() not in _REFUSED:
                raise
            self._refused[position] = error.args[0]

    def _stamp_ms(self) -> int:
        return self._broker_clock.stamp_ms(self._clock.monotonic_ns(), self._clock.wall_ms())

    def _open(self, producer: ProducerClient) -> None:
        producer.begin_transaction()
        self._has_open_transaction = True

    def _commit(self, producer: ProducerClient) -> None:
        producer.commit_transaction(self._pace.api_timeout_s)
        self._has_open_transaction = False

    def _close_producer(self) -> None:
        """Close the producer, and abort its open transaction if that is still possible."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        purge_producer(producer, _API_TIMEOUT_S)  # the abort waits for the report of every record
        if self._has_open_transaction:
            with suppress(KafkaException):  # another producer fenced us, or the next init_transactions aborts it
                producer.abort_transaction(_API_TIMEOUT_S)
            self._has_open_transaction = False
        close_producer(producer, _API_TIMEOUT_S)


def _hand_over(producer: ProducerClient, *record: Any, **options: Any) -> None:
    """Call `produce`, and wait while the client's queue is full."""
    while True:
        try:
            producer.produce(*record, **options)
        except BufferError:
            producer.poll(_POLL_S)
        else:
            return


class _Pace:
    """The time limits of a redrive, and the share of the largest transaction that fits into them."""

    def __init__(self) -> None:
        self.share = 1.0
        self.is_one_per_batch = False
        self._patience = 1  # multiplies each limit

    @property
    def api_timeout_s(self) -> float:
        return self._patience * _API_TIMEOUT_S

    @property
    def settings(self) -> dict[str, int]:
        """The settings of the next producer."""
        longest_ms = self._patience * _TRANSACTION_MS
        settings = {"transaction.timeout.ms": longest_ms, "delivery.timeout.ms": longest_ms}
        return settings | ({"batch.num.messages": 1} if self.is_one_per_batch else {})

    def slow_down(self) -> None:
        """Give the next attempt more time, and fewer letters."""
        self._patience = min(2 * self._patience, _MOST_PATIENCE)
        self.share /= 4

    def took(self, duration_ms: int) -> None:
        """Let transactions grow if one took so little time that two of them fit into the limit."""
        if 3 * duration_ms < self._patience * _TRANSACTION_MS:
            self.share = min(1.0, 2 * self.share)


class _RefusedError(Exception):
    """A record was refused, perhaps with the others of its batch: start again with one record per batch."""


def _compresses(config: Mapping[str, Any]) -> bool:
    """Return whether the producer compresses, so that records may be stored smaller than they are."""
    return any(str(config.get(name, "none")) != "none" for name in ("compression.type", "compression.codec"))

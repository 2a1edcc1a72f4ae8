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
  has begun meanwhile, it continues; we stop and name it (`Journal.refuse_if_taken_over`). In one console the later one
  does not begin (`console.runs.PlanRuns.start`).

If the target refuses a letter itself (for example because it is too large), that letter fails and the rest of its
transaction is sent without it. A broker refuses whole batches, so from the first refusal on each batch has one record.
A refusal ends its transaction and its session, and the next session reads the log again. Therefore a letter that would
certainly be refused for the cause of an earlier refusal fails without being sent (`RedriveRefusals` in
`core.redrive_progress`). Records that no longer exist, or differ from those that the plan saw, fail, too.

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
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from rocketshim.admin.dead_letter_formats import Decoder
from rocketshim.clock import SystemClock
from rocketshim.core.broker_clock import BrokerClock
from rocketshim.core.clock import Clock
from rocketshim.core.redrive_progress import RedriveProgress, RedriveRefusals, RefusedFor
from rocketshim.errors import (
    ConfigError,
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
from rocketshim_topics import DelayLevels, Layout, TopicNames, wire
from rocketshim_topics.hops import OutgoingRecord
from rocketshim_topics.kafka_codes import DENIED, MISSING, TOO_LARGE
from rocketshim_topics.limits import LONG_MAX
from rocketshim_topics.names import init_command
from rocketshim_topics.partitioner import timer_partition
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
from rocketshim_topics.redrive_plan import PlannedLetter, RedrivePlan, RedriveRules, redrive_id, redriven_record
from rocketshim_topics.wire import REPLAY_ID, USER_PREFIX, Header, Record, coordinates, headers_shown

__all__ = [
    "Journal",
    "RedriveTransactions",
    "Redriver",
    "ensure_log",
    "log_records",
    "planned_redriver",
    "read_log",
    "record_maker",
    "redriven_parked",
    "replay_id_of",
    "whoami",
]

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
_DROPPED: Final = frozenset(
    {wire.PARK_REASON, wire.TARGET_TRIES, wire.HOP_ID, wire.DELAY_MS, wire.DELIVER_AT_MS, wire.DELAY, wire.REPLAY_ID}
)
_TIMERS: Final = frozenset(name for name in wire.RESERVED if name.startswith("TIMER"))
_REFUSED: Final[Mapping[int, RefusedFor]] = {
    **dict.fromkeys(TOO_LARGE, "too-large"),
    **dict.fromkeys(MISSING, "missing"),
    KafkaError.INVALID_RECORD: "invalid",
    KafkaError.INVALID_MSG: "invalid",
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
    """Return what the log, if it exists, has about the dead letters of a topic, up to its first open transaction."""
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


class Journal:
    """A plan's side of the redrive log: what is done, who else redrives the topic, and the marks to write.

    The log (`topic`) must exist; its name is also the prefix of the `transactional.id`. The plan knows it up to
    `log_end`, so all later records must exist. `again`: also send letters that other plans have redriven or discarded.
    """

    def __init__(
        self,
        topic: str,
        *,
        source: str,
        plan: str,
        state: State,
        again: bool = False,
        log_end: int = 0,
        by: str | None = None,
    ) -> None:
        self.topic = topic
        self.source = source
        self.plan = plan
        self._state: State = state
        self._again = again
        self._log_end = log_end
        self._by = by or whoami()
        self._sessions: list[str] = []

    @property
    def has_begun(self) -> bool:
        """Return whether a session has begun."""
        return bool(self._sessions)

    def read(self, reader: TopicReader) -> RedriveLog:
        """Return what the log has about the source (`read_log`)."""
        return read_log(reader, self.topic, self.source)

    def begin(self) -> BeginRecord:
        """Return the record that begins a new session."""
        self._sessions.append(uuid.uuid4().hex)
        return BeginRecord(source=self.source, plan=self.plan, session=self._sessions[-1], by=self._by)

    def read_back(self, reader: TopicReader, clock: Clock) -> RedriveLog:
        """Read the log until the record that began the session comes back."""
        log = RedriveLog(self.source)
        deadline_ns = clock.monotonic_ns() + _READ_BACK_TIMEOUT_NS
        with closing(reader.read([self.topic], follow=True)) as messages:
            for message in messages:
                entry = None if message is None else decode_redrive_record(message.value())
                log.add(entry)
                if isinstance(entry, BeginRecord) and entry.session == self._sessions[-1]:
                    break
                if message is not None:
                    deadline_ns = clock.monotonic_ns() + _READ_BACK_TIMEOUT_NS  # a long log may take minutes
                elif clock.monotonic_ns() > deadline_ns:
                    raise RedriveError(
                        f"our own record did not come back from {self.topic}, and no other record for "
                        f"{_READ_BACK_TIMEOUT_NS // 1_000_000_000} s, because a transaction is open in that topic; "
                        "wait until it has ended and apply the plan again"
                    )
        return log

    def mark(self, letters: Iterable[PlannedLetter]) -> MarkRecord:
        """Return the record that marks letters as processed."""
        return MarkRecord(
            state=self._state,
            source=self.source,
            plan=self.plan,
            session=self._sessions[-1],
            by=self._by,
            letters=tuple((letter.partition, letter.offset, letter.digest) for letter in letters),
        )

    def is_done(self, log: RedriveLog) -> Callable[[PlannedLetter], bool]:
        """Return the function that tells whether a letter need not be processed any more."""

        def is_done(letter: PlannedLetter) -> bool:
            if log.is_done(self.plan, letter.partition, letter.offset):
                return True
            found = log.settled(letter.partition, letter.offset, letter.digest)
            return found is not None and not self._again

        return is_done

    def refuse_if_marks_are_lost(self, reader: TopicReader, sent: int) -> None:
        """Refuse to send if the log may have had marks of this plan that are gone: letters would be sent twice.

        Decides: What if records of the redrive log are gone? A plan is applied only if the log has each record since
            the plan was made; a new plan holds back the letters that are older than the log's first record.
        """
        if self._state == "discarded":
            return
        low, end = reader.bounds(self.topic, 0) if reader.topics().get(self.topic) else (0, 0)
        if low <= self._log_end <= end:
            return
        what = f"begins at offset {low}" if low > self._log_end else f"ends at offset {end}: it was created again"
        raise RedriveError(
            f"the redrive log {self.topic} has lost records since this plan was made (the plan knows it up to offset "
            f"{self._log_end}, and the log {what}), so which of the plan's letters were sent is not known; {sent} were "
            "sent in this run. Make a new plan by rocketshim dlq plan, or parked plan: it holds back what may have "
            "been sent (marks-lost). Send that nevertheless by --again, or mark dead letters as not to be sent by dlq "
            "discard"
        )

    def refuse_if_taken_over(self, log: RedriveLog) -> None:
        """Refuse to go on if another redrive of the topic has begun after us."""
        last = log.last_begin
        has_begun = any(log.has_begun(session) for session in self._sessions)
        if has_begun and last is not None and last.session not in self._sessions:
            raise RedriveError(
                f"{last.by or 'another process'} began to redrive {self.source} (plan {last.plan}) after us, and "
                "continues; what we sent is marked: apply the plan again when that redrive is done"
            )


class RedriveTransactions:
    """The transactional producer of a redrive: a new one for each session, with more patience after each failure."""

    def __init__(
        self, bootstrap: str, client: Mapping[str, Any], clients: Clients, journal: Journal, clock: Clock
    ) -> None:
        self.pace = _Pace()
        self._config = merge(
            client,
            defaults={"client.id": "rocketshim-redrive", "linger.ms": 5, "message.max.bytes": 100_000_000},
            required={
                **PROTECTED_PRODUCER,
                **self.pace.settings,
                "bootstrap.servers": bootstrap,
                "transactional.id": f"{journal.topic}.{journal.source}",
                "retry.backoff.ms": 1,
                "retry.backoff.max.ms": 100,
            },
        )
        self.is_compressed = _compresses(self._config)
        self.has_committed = False
        self.refused: dict[tuple[int, int], KafkaError] = {}  # by the letter's position
        self._clients = clients
        self._log_topic = journal.topic
        self._clock = clock
        self._broker_clock = BrokerClock(clock)
        self._producer: ProducerClient | None = None
        self._is_open = False
        self._reports = DeliveryReports()
        self._has_unconfirmed = False

    def start(self) -> None:
        """Create the producer of a session, which fences those before."""
        self._producer = self._clients.producer({**self._config, **self.pace.settings})
        init_transactions(self._producer, self._log_topic, self.pace.api_timeout_s)

    def open(self) -> None:
        """Begin a transaction."""
        self.refused = {}
        self._has_unconfirmed = False
        self._client.begin_transaction()
        self._is_open = True

    def commit(self) -> None:
        """Commit the transaction."""
        if self._has_unconfirmed:  # a commit might leave out a letter, or the mark
            raise KafkaException(UNCONFIRMED)
        self._client.commit_transaction(self.pace.api_timeout_s)
        self._is_open, self.has_committed = False, True
        self._client.poll(0)  # the reports that the commit has not passed on

    def close(self) -> None:
        """Close the producer, and abort its open transaction if that is still possible."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        purge_producer(producer, _API_TIMEOUT_S)  # the abort waits for the report of every record
        if self._is_open:
            with suppress(KafkaException):  # another producer fenced us, or the next init_transactions aborts it
                producer.abort_transaction(_API_TIMEOUT_S)
            self._is_open = False
        close_producer(producer, _API_TIMEOUT_S)

    def await_reports(self) -> None:
        """Wait for every delivery report, or until one reports a refused record: then the others may never come."""
        deadline_ns = self._clock.monotonic_ns() + int(self.pace.api_timeout_s * 1e9)
        while len(self._client) > 0 and not self.refused and self._clock.monotonic_ns() < deadline_ns:
            self._client.poll(_POLL_S)

    def log(self, record: RedriveRecord) -> None:
        """Produce a record of the redrive log, whose append time tells the brokers' clock."""
        sent_ns, sent_ms = self._broker_clock.read()

        def on_delivery(error: KafkaError | None, message: Any) -> None:
            self._note_unconfirmed(error, message)
            if error is None:
                self._broker_clock.learn(message.timestamp(), sent_ns, sent_ms)

        self._produce(self._log_topic, encode_redrive_record(record), on_delivery=on_delivery)

    def send(self, letter: PlannedLetter, out: OutgoingRecord) -> None:
        """Produce the record of a letter; if the target refuses it, `refused` has the error."""
        position = (letter.partition, letter.offset)

        def on_delivery(error: KafkaError | None, message: Any) -> None:
            self._note_unconfirmed(error, message)
            if error is not None and error.code() in _REFUSED:
                self.refused[position] = error

        partition = -1 if out.partition is None else out.partition
        stamp_ms = self._broker_clock.stamp_ms(*self._broker_clock.read())
        options = {"timestamp": stamp_ms, "headers": out.headers}
        try:
            self._produce(out.topic, out.value, out.key, partition, on_delivery=on_delivery, **options)
        except KafkaException as error:
            if error.args[0].code() not in _REFUSED:
                raise
            self.refused[position] = error.args[0]

    @property
    def _client(self) -> ProducerClient:
        if self._producer is None:
            raise KafkaException(KafkaError(KafkaError._STATE))  # noqa: SLF001 - no public spelling
        return self._producer

    def _produce(self, *record: Any, **options: Any) -> None:
        """Call `produce`, and wait while the client's queue is full."""
        while True:
            try:
                self._client.produce(*record, **options)
            except BufferError:
                self._client.poll(_POLL_S)
            else:
                return

    def _note_unconfirmed(self, error: KafkaError | None, message: Any) -> None:
        error = self._reports.error(error, message)
        self._has_unconfirmed = self._has_unconfirmed or (error is not None and is_unconfirmed(error))


class Redriver:
    """Applies one plan, in its owner's thread; the caller may read `progress` at any time between calls.

    Without `fetch` the letters are read from their topic. `report` is called with the name of each step when it is
    done: `resumed`, `produced`, `committed`, `sent` (counted), `failed` (a letter).
    """

    def __init__(
        self,
        bootstrap: str,
        journal: Journal,
        progress: RedriveProgress,
        *,
        make: Make,
        fetch: Fetch | None = None,
        report: Callable[[str], None] = lambda _step: None,
        client: Mapping[str, Any] | None = None,
        clients: Clients | None = None,
        clock: Clock | None = None,
        wait: Callable[[float], None] | None = None,
    ) -> None:
        self._journal = journal
        self._progress = progress
        self._make = make
        self._fetch = fetch
        self._report = report
        self._clock = clock or SystemClock()
        self._wait = wait or time.sleep
        self._reader = TopicReader(bootstrap, client=client, clients=clients)
        self._watcher = TopicReader(bootstrap, client=client, clients=clients)
        self._new_records: Iterator[Any] = iter(())
        clients = clients or confluent_clients()
        config = merge(client or {}, defaults={}, required={"bootstrap.servers": bootstrap})
        self._new_admin = None if clients.admin is None else partial(clients.admin, config)
        self._targets: set[str] = set()
        self._transactions = RedriveTransactions(bootstrap, client or {}, clients, journal, self._clock)
        self._refusals = RedriveRefusals(is_compressed=self._transactions.is_compressed)
        self._first_failed: dict[tuple[int, bytes | None], int] = {}  # partition and key to offset

    def run(self) -> None:
        """Send the remaining letters until all are processed or `progress.stopped_by` has a reason.

        After an error, what was sent is marked.
        """
        if not self._reader.topics().get(self._journal.topic):
            raise TopicMissingError(
                f"the topic {self._journal.topic} does not exist; create it with: {init_command(self._journal.topic)}"
            )
        self._journal.refuse_if_marks_are_lost(self._reader, self._progress.sent)
        self._new_records = self._watcher.read([self._journal.source], follow=True, new_only=True, poll_s=0.0)
        next(self._new_records)
        attempts = 0
        try:
            while True:
                sent = self._progress.sent
                try:
                    return self._run_session()
                except _RefusedError:  # the same producer would skip sequence numbers (measured, librdkafka 2.16)
                    self._transactions.close()
                    self._progress.aborted()
                    self._transactions.pace.is_one_per_batch = True
                except KafkaException as error:
                    if error.args[0].code() in DENIED:
                        raise NotAuthorizedError(self._denied(error.args[0].str())) from error
                    attempts = 1 if self._progress.sent > sent else attempts + 1
                    if attempts >= _MAX_ATTEMPTS:
                        seen = f"{attempts} attempts ({error.args[0].name()}: {error.args[0].str()})"
                        raise RedriveError(
                            f"the redrive of {self._journal.source} cannot continue after {seen}; what was sent is "
                            "marked: apply the plan again for the rest"
                            if self._transactions.has_committed
                            else f"no transaction could be committed in {seen}, so nothing of {self._journal.source} "
                            "was sent. Redrives need transactions, and rocketshim doctor --probe shows whether the "
                            "cluster has them: if it has, apply the plan again; if not, take the letters out by "
                            "rocketshim dlq export and send them yourself"
                        ) from error
                    self._transactions.close()
                    self._transactions.pace.slow_down()
                    self._wait(_RETRY_BACKOFF_S)
        finally:
            self._transactions.close()

    def watch(self, for_ms: int) -> None:
        """Count what is dead again within a time after the last transaction."""
        until_ms = self._now_ms() + for_ms
        while (left_ms := until_ms - self._now_ms()) > 0:
            if not self._watch_source():
                self._wait(min(left_ms, _WATCH_MS) / 1_000)

    def dry_run(self) -> None:
        """Read log and letters, and make every record but send none; count failures as `run` would."""
        self._journal.refuse_if_marks_are_lost(self._reader, self._progress.sent)
        letters = self._progress.resume(self._journal.is_done(self._journal.read(self._reader)))
        self._refuse_if_denied(letters)
        made = 0
        with closing(self._read(letters)) as found:
            for letter, message in found:
                made += self._make_record(letter, message) is not None
                if self._progress.stopped_by is not None or made == self._progress.most:
                    return

    def close(self) -> None:
        """Close the Kafka clients."""
        self._transactions.close()
        self._reader.close()
        self._watcher.close()

    # --- a session: from init_transactions to the first error --------------------------------------------------------

    def _run_session(self) -> None:
        journal, transactions = self._journal, self._transactions
        if journal.has_begun:
            journal.refuse_if_taken_over(journal.read(self._reader))
        transactions.start()
        transactions.open()
        transactions.log(journal.begin())
        transactions.commit()
        log = journal.read_back(self._reader, self._clock)
        journal.refuse_if_marks_are_lost(self._reader, self._progress.sent)
        letters = self._progress.resume(journal.is_done(log))
        self._report("resumed")
        if letters:
            self._refuse_if_denied(letters)
            self._send(letters)

    def _refuse_if_denied(self, letters: list[PlannedLetter]) -> None:
        """Check the ACLs once, before the first letter."""
        if not self._targets:
            self._targets = {letter.target for letter in letters} - {""} | {self._journal.topic}
            if denied := self._denied():
                raise NotAuthorizedError(denied)

    def _denied(self, default: str = "") -> str:
        """Return an error text with the topics that the principal may not write to (or `default`), and what to do."""
        denied: set[str] = set()
        if self._new_admin is not None:
            topics = self._targets or {self._journal.topic}
            denied = denied_topics(self._new_admin(), topics, lambda *_, **__: None)
        what = f"the principal may not write to {', '.join(sorted(denied))}" if denied else default
        return what and (
            f"{what}: grant it (see: rocketshim acls --role operator) and apply the plan again; {self._progress.sent} "
            "letters were sent in this run, and are marked"
        )

    # --- sending -----------------------------------------------------------------------------------------------------

    def _send(self, letters: list[PlannedLetter]) -> None:
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
                if len(batch) >= capacity or size_bytes >= self._transactions.pace.share * _MAX_TRANSACTION_BYTES:
                    self._transact(batch)
                    batch, size_bytes = [], 0
                    capacity = self._await_capacity()
                    if capacity == 0:
                        return
        self._transact(batch)

    def _await_capacity(self) -> int:
        """Wait until the rate allows the next transaction; return its maximum number of letters, 0 if stopped."""
        while self._progress.stopped_by is None:
            has_read, wait_ms = self._watch_source(), self._progress.wait_ms(self._now_ms())
            if not has_read and wait_ms == 0:
                break
            if not has_read:
                self._wait(min(wait_ms, _WATCH_MS) / 1_000)
        capacity = self._progress.capacity(self._now_ms())
        return capacity and max(1, int(self._transactions.pace.share * capacity))

    def _watch_source(self) -> bool:
        """Read a new record of the source topic, and count it as dead again if this plan sent it; False: none came."""
        message = next(self._new_records)
        if message is None:
            return False
        plan, *position = replay_id_of(message).decode("utf-8", "replace").rsplit(".", 2)
        if plan == self._journal.plan and len(position) == 2 and all(_NUMBER.fullmatch(number) for number in position):
            self._progress.died_again(int(position[0]), int(position[1]))
        return True

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def _read(self, letters: list[PlannedLetter]) -> Generator[tuple[PlannedLetter, Any]]:
        """Return the letters that still exist; the others fail as `gone`."""
        waiting = {(letter.partition, letter.offset): letter for letter in letters}
        fetched = self._reader.read_at(self._journal.source, waiting) if self._fetch is None else self._fetch(waiting)
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
        self._report("failed")

    def _transact(self, batch: list[tuple[PlannedLetter, OutgoingRecord | None]]) -> None:
        """Send letters and their mark in one transaction; if a record was refused, nothing is stored."""
        if not batch:
            return
        transactions, began_ms = self._transactions, self._now_ms()
        self._progress.take([letter for letter, _ in batch], began_ms)
        transactions.open()
        try:
            self._produce_all(batch)
            self._report("produced")
        except KafkaException:  # a transaction with a refused record accepts no more; the reports name the record
            transactions.await_reports()
            if not transactions.refused:
                raise
        transactions.await_reports()
        if transactions.refused:
            if transactions.pace.is_one_per_batch:
                for each in batch:
                    self._fail_if_refused(*each)
            raise _RefusedError
        transactions.commit()
        self._report("committed")
        transactions.pace.took(self._now_ms() - began_ms)
        self._progress.committed()
        self._report("sent")

    def _fail_if_refused(self, letter: PlannedLetter, made: OutgoingRecord | None) -> None:
        """Fail a letter whose record was refused in a transaction with one record per batch."""
        error = self._transactions.refused.get((letter.partition, letter.offset))
        if self._fails_without_sending(letter, made) or made is None or error is None:
            return
        reason = f"refused:{error.name()}"
        self._refusals.add(made, _REFUSED[error.code()], reason)
        self._fail_for_its_key(letter, reason, made.key)

    def _produce_all(self, batch: list[tuple[PlannedLetter, OutgoingRecord | None]]) -> None:
        for letter, out in batch:
            if out is not None:
                self._transactions.send(letter, out)
        self._transactions.log(self._journal.mark(letter for letter, _ in batch))


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


@contextmanager
def planned_redriver(
    bootstrap: str,
    plan: RedrivePlan,
    progress: RedriveProgress,
    *,
    writes: bool = True,
    by: str | None = None,
    report: Callable[[], None] = lambda: None,
    client: Mapping[str, Any] | None = None,
    clients: Clients | None = None,
) -> Iterator[Redriver]:
    """Check that a plan fits the cluster, and yield what applies it. A dry run (not `writes`) creates no log."""
    names = TopicNames(plan.rules.namespace)
    with TopicReader(bootstrap, client=client, clients=clients) as sources:
        _check_cluster(sources, plan)
        if writes:
            ensure_log(bootstrap, names, client=client, clients=clients)
        with closing(
            Redriver(
                bootstrap,
                Journal(
                    names.redrive_log,
                    source=plan.source,
                    plan=plan.id,
                    state="discarded" if plan.rules.action == "discard" else "redriven",
                    again=plan.rules.again,
                    log_end=plan.log_end,
                    by=by,
                ),
                progress,
                make=record_maker(plan.id, plan.rules, Decoder(names, plan.source, fetch=sources.fetch)),
                report=lambda _: report(),
                client=client,
                clients=clients,
            )
        ) as redriver:
            yield redriver


def _check_cluster(reader: TopicReader, plan: RedrivePlan) -> None:
    """Refuse a plan for another cluster, or one whose topics are missing."""
    cluster_id, topics = reader.cluster_id(), reader.topics()
    if cluster_id != plan.cluster_id:
        raise ConfigError(f"the plan is for the cluster {plan.cluster_id!r}, but this is the cluster {cluster_id!r}")
    wanted = {plan.source} | {letter.target for letter in plan.letters if letter.target}
    missing = sorted(topic for topic in wanted if topic not in topics)
    if missing:
        raise TopicMissingError(f"these topics no longer exist: {', '.join(missing)}; create them or make another plan")


def ensure_log(
    bootstrap: str, names: TopicNames, *, client: Mapping[str, Any] | None = None, clients: Clients | None = None
) -> None:
    """Create the redrive log if it is missing."""
    with TopicReader(bootstrap, client=client, clients=clients) as reader:
        if names.redrive_log in reader.topics():
            return
    make_admin = (clients or confluent_clients()).admin
    if make_admin is None:
        raise TopicMissingError(
            f"the topic {names.redrive_log} does not exist; create it with: {init_command(names.redrive_log)}"
        )
    from rocketshim_topics import provision  # noqa: PLC0415 - only needed once

    admin = make_admin(merge(client or {}, defaults={}, required={"bootstrap.servers": bootstrap}))
    provision.ensure_topics(admin, [Layout(names, DelayLevels.default()).redrive_log()])


def redriven_parked(record: Record, names: TopicNames, replay_id: str) -> OutgoingRecord:
    """Return the schedule record that redrives a parked record, due when it was due before.

    It keeps its identity, without the worker's notes, and `HOP_ID` names the parked record. `PARK_FROM` and `REPLAY_ID`
    mark it as sent again: the worker does not count as its own lateness that it was parked. A parked record need not be
    decodable, so each header is read separately. A record without a target is refused: the worker would only park it
    again.

    Decides: Where does a parked record go when it is sent again? To the finest delay queue, where the worker evaluates
        it again; nothing leaves that topic by itself. A command of the timer log has no name any more: its name was
        free when it was parked, so a FIRE for it would be dropped. A half message goes to the timer log, and its
        producers are asked: nobody else knows whether it may be delivered.
    """
    shown = headers_shown(record)
    if not any(name == wire.REAL_TOPIC and value for name, value in shown):
        raise MessageError(f"{coordinates(record)} names no target topic; send its message again yourself instead")
    is_command = any(name == wire.TIMER_DO for name, _ in shown)
    if is_command and record.value() is None:
        raise MessageError(f"{coordinates(record)} is a command for a named timer, and has no message")
    if is_command and any(name == wire.TIMER_ASKS for name, _ in shown):
        return _half_again(record, names, replay_id)
    dropped = _DROPPED | _TIMERS if is_command else _DROPPED
    kept_headers: list[Header] = [header for header in shown if header[0] not in dropped]
    due_ms = _due_of_parked(dict(shown), record.timestamp()[1], has_waited=not is_command)
    own: list[Header] = [(wire.DELIVER_AT_MS, b"%d" % due_ms), (wire.HOP_ID, coordinates(record).encode())]
    headers = [*own, (wire.REPLAY_ID, replay_id.encode()), *kept_headers]
    finest = DelayLevels.MAX_LEVELS + len(DelayLevels.FINE_MS) - 1
    return OutgoingRecord(names.schedule, finest, record.key(), record.value(), headers)


def _due_of_parked(headers: Mapping[str, bytes | None], parked_ms: int, *, has_waited: bool) -> int:
    """Return when a parked record was due; without a legible time, when it was parked, as it had waited until then.

    A command is parked as soon as it is read, so its delay counts from there. A time that is too far away to be
    accepted (`due-too-late`) does not count.
    """
    if (headers.get(wire.PARK_REASON) or b"").startswith(b"due-too-late"):
        return parked_ms
    given_ms, delay_ms = (_number(headers.get(name)) for name in (wire.DELIVER_AT_MS, wire.DELAY_MS))
    if given_ms is not None:
        return min(given_ms, LONG_MAX)
    return parked_ms if has_waited or delay_ms is None else min(parked_ms + delay_ms, LONG_MAX)


def _number(value: bytes | None) -> int | None:
    text = (value or b"").decode("utf-8", "replace")
    return int(text) if _NUMBER.fullmatch(text) else None


def _half_again(record: Record, names: TopicNames, replay_id: str) -> OutgoingRecord:
    """Return the command that sets a parked half message again, due immediately."""
    shown = dict(headers_shown(record))
    target, name = ((shown.get(each) or b"").decode("utf-8", "replace") for each in (wire.REAL_TOPIC, wire.TIMER))
    again = {wire.TIMER_DO: b"SET", wire.DELAY_MS: b"0", wire.HOP_ID: coordinates(record).encode()}
    again[wire.REPLAY_ID] = replay_id.encode()
    dropped = _DROPPED | {wire.PARK_FROM, wire.TIMER_DO, wire.TIMER_SET_AT, wire.TIMER_ASKED, wire.TIMER_ERA}
    headers = [*again.items(), *(header for header in headers_shown(record) if header[0] not in dropped)]
    return OutgoingRecord(names.timers, timer_partition(target, name), record.key(), record.value(), headers)


def record_maker(plan_id: str, rules: RedriveRules, decoder: Decoder) -> Make:
    """Return the function that makes the record which sends a planned dead letter; None: it is only marked."""
    names = TopicNames(rules.namespace)

    def make(message: Any, planned: PlannedLetter) -> OutgoingRecord | None:
        if rules.action == "discard":
            return None
        own_replay_id = redrive_id(plan_id, planned.partition, planned.offset)
        if decoder.topic == names.parked:
            return redriven_parked(message, names, own_replay_id)
        opened = decoder.open(message)
        if opened.malformed is not None:
            raise MalformedRecordError(opened.malformed, "the dead letter cannot be read")
        envelope = None if opened.dialect is None else opened.envelope
        out = redriven_record(opened.record, envelope, rules, replay_id=own_replay_id)
        if out.topic != planned.target:
            raise MalformedRecordError("other-target", f"{out.topic} is not the planned target")
        return out

    return make

"""Applying a plan: each letter exactly once, whatever dies when.

A transaction holds the letters it sends and the mark in the redrive log that says so (`rocketshim_topics.redrive_log`),
so both are there or neither. The rest follows from Kafka's fencing:

* The `transactional.id` is that of the source topic: one redrive of a topic at a time. `init_transactions` fences
  whoever was at it before, and ends what they left open.
* Then we write our `begin` into the log and read the log until it comes back. Now every mark that was ever committed
  before is known, also where transactions of other redrives were open in the log, and no other can follow but ours.
* What the log does not have is sent, a transaction after the other.
* After any error whose result is not certain everything is thrown away and begun anew: new producer, `begin`, log. If
  somebody else has begun meanwhile, they go on, and we stop and say who.

A letter that the target refuses for itself (too large, say) fails, and the rest of its transaction is sent without it;
since a broker refuses whole batches, records go one a batch from the first refusal on. A refusal ends its transaction
and its session, which takes a second; so what is as large as a letter that was too large for the topic is not asked
about again (`core.redrive.TooLarge`). Records that are gone or are not the ones the plan saw fail, too.

Order per key is that of the source partition: one producer, in offset order, and a transaction is never sent again
after a later one. So that it holds also when a letter that fails is sent later, once what stood in its way is mended,
the letters behind it with the same key wait: they fail as `behind-failed`, in this run. (What is gone or changed can
never be sent: nothing waits for it.)

A topic that may not be written to is no letter's fault, and ends the redrive with its name: asked before the first
letter, and again when the cluster refuses later. What was sent until then is marked.

Between transactions it reads what comes into the source topic: letters of this run that are dead again count, so that a
cause that is not mended stops the redrive. Those that die later than that it does not see; a rate gives them time.

While a transaction is open, readers of its targets wait (`read_committed`): it is kept short, and one that a `kill -9`
left open ends with the next apply, at the latest after its time-out (15 s).
"""

import getpass
import socket
import time
import uuid
from collections.abc import Callable, Container, Generator, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from rocketshim.clock import SystemClock
from rocketshim.core.clock import Clock
from rocketshim.core.redrive import RedriveProgress, TooLarge
from rocketshim.errors import (
    MalformedRecordError,
    MessageError,
    NotAuthorizedError,
    RedriveError,
    TopicMissingError,
)
from rocketshim.kafka.acls import denied_topics
from rocketshim.kafka.client_config import PROTECTED_PRODUCER, merge
from rocketshim.kafka.clients import Clients, ProducerClient, close_producer, confluent_clients, purge_producer
from rocketshim.kafka.reports import UNCONFIRMED, delivery_error, is_unconfirmed
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics.hops import OutgoingRecord
from rocketshim_topics.kafka_codes import DENIED, MISSING, TOO_LARGE
from rocketshim_topics.redrive_log import (
    BeginRecord,
    MarkRecord,
    RedriveLog,
    State,
    decode_redrive_record,
    encode_redrive_record,
    record_digest,
)
from rocketshim_topics.redrive_plan import PlannedLetter
from rocketshim_topics.wire import REPLAY_ID, USER_PREFIX, headers_shown

__all__ = ["Redriver", "read_log", "whoami"]

_TRANSACTION_MS: Final = 15_000
_API_S: Final = 10.0
_READ_BACK_S: Final = 60.0
_AGAIN_S: Final = 0.5
_MOST_TROUBLES: Final = 5
_MOST_BYTES: Final = 8 * 1024 * 1024
_POLL_S: Final = 0.1
_LOOK_MS: Final = 200
_TOO_LARGE: Final = "refused:MSG_SIZE_TOO_LARGE"
_REFUSED: Final = TOO_LARGE | MISSING | {KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG}

Make = Callable[[Any, PlannedLetter], OutgoingRecord | None]
"""Makes the record that sends a letter again (None: it is only marked); one that raises has failed."""

Fetch = Callable[[Container[tuple[int, int]]], Generator[Any]]
"""Gives the letters at these partitions and offsets, as far as there are any; in order within a partition."""


def whoami() -> str:
    """Who runs this, for the log: `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no such user in the system's list
        user = "?"
    return f"{user}@{socket.gethostname()}"


def read_log(reader: TopicReader, topic: str) -> RedriveLog:
    """The redrive log as it is now, as far as no transaction is open; empty if there is none."""
    log = RedriveLog()
    if reader.topics().get(topic):
        for message in reader.read([topic]):
            log.add(decode_redrive_record(message.value()))
    return log


class Redriver:
    """Applies one plan.

    Args:
        bootstrap: addresses of the brokers.
        log_topic: physical name of the redrive log, which has to be there; also prefix of the `transactional.id`.
        source: physical topic of the letters.
        plan: id of the plan.
        state: what the mark says of its letters.
        make: makes the record that sends a letter.
        fetch: where the letters are read; None: in their topic.
        again: also send letters that other plans have settled.
        progress: what is to be done; looked at by the caller at any time between calls.
        report: called after each transaction and each failure.
        client: further librdkafka settings.
        clients: where Kafka clients come from; None: confluent_kafka.
        clock: time for the rate.
        wait: waits so many seconds; None: `time.sleep`.
        point: called with the name of a point of the protocol as it is passed; for fault tests.

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
        self._report = report
        self._clients = clients or confluent_clients()
        self._clock = clock or SystemClock()
        self._wait = wait or time.sleep
        self._point = point
        self._sessions: list[str] = []
        self._by = whoami()
        self._reader = TopicReader(bootstrap, client=client, clients=clients)
        self._watcher = TopicReader(bootstrap, client=client, clients=clients)
        self._coming: Iterator[Any] = iter(())
        self._config = merge(
            client or {},
            defaults={"client.id": "rocketshim-redrive", "linger.ms": 5, "message.max.bytes": 100_000_000},
            required={
                **PROTECTED_PRODUCER,
                "bootstrap.servers": bootstrap,
                "transactional.id": f"{log_topic}.{source}",
                "transaction.timeout.ms": _TRANSACTION_MS,
                "delivery.timeout.ms": _TRANSACTION_MS,
                "retry.backoff.ms": 1,
                "retry.backoff.max.ms": 100,
            },
        )
        self._admin_config = merge(client or {}, defaults={}, required={"bootstrap.servers": bootstrap})
        self._targets: set[str] = set()
        self._producer: ProducerClient | None = None
        self._has_open = False
        self._is_careful = False
        self._refused: dict[tuple[int, int], KafkaError] = {}
        self._has_unconfirmed = False
        self._too_large: TooLarge | None = None if _compresses(self._config) else TooLarge()
        self._held_up: dict[tuple[int, bytes | None], int] = {}

    def run(self) -> None:
        """Send what is left, until all is done or `progress.stopped_by` says why not.

        Raises:
            TopicMissingError: there is no redrive log.
            NotAuthorizedError: a topic may not be written to. What was sent before that was seen is marked.
            RedriveError: somebody else redrives the same topic now, or the cluster does not let us: the message says
                which. What was sent is marked.
            RocketshimError: reading failed.
        """
        if not self._reader.topics().get(self._log_topic):
            raise TopicMissingError(f"the topic {self._log_topic} is not there; create it with: rocketshim init")
        self._coming = self._watcher.read([self._source], follow=True, new_only=True, poll_s=0.0)
        next(self._coming)
        troubles = 0
        try:
            while True:
                sent = self._progress.sent
                try:
                    return self._run_session()
                except _RefusedError:  # the same producer would skip sequence numbers (measured, librdkafka 2.16)
                    self._throw_away()
                    self._progress.aborted()
                    self._is_careful = True
                except KafkaException as error:
                    if error.args[0].code() in DENIED:
                        raise NotAuthorizedError(self._denied(error.args[0].str())) from error
                    troubles = 1 if self._progress.sent > sent else troubles + 1
                    if troubles >= _MOST_TROUBLES:
                        raise RedriveError(
                            f"the redrive of {self._source} cannot go on after {troubles} attempts "
                            f"({error.args[0].name()}: {error.args[0].str()}); what was sent is marked: apply the plan "
                            "again for the rest"
                        ) from error
                    self._throw_away()
                    self._wait(_AGAIN_S)
        finally:
            self._throw_away()

    def dry_run(self) -> None:
        """Read log and letters, make every record and send none; failures are counted as `run` would.

        Raises:
            NotAuthorizedError: a target may not be written to.
        """
        log = read_log(self._reader, self._log_topic)
        letters = self._progress.resume(self._is_done(log))
        self._refuse_if_denied(letters)
        with closing(self._read(letters)) as found:
            for letter, message in found:
                self._made(letter, message)
                if self._progress.stopped_by is not None:
                    return

    def close(self) -> None:
        """End."""
        self._throw_away()
        self._reader.close()
        self._watcher.close()

    # --- a session: from init_transactions to the first doubt --------------------------------------------------------

    def _run_session(self) -> None:
        if self._sessions:
            self._refuse_if_taken_over(read_log(self._reader, self._log_topic))
        careful = {"batch.num.messages": 1} if self._is_careful else {}
        producer = self._producer = self._clients.producer({**self._config, **careful})
        producer.init_transactions(_API_S)
        log = self._begin(producer)
        letters = self._progress.resume(self._is_done(log))
        self._report()
        if letters:
            self._refuse_if_denied(letters)
            self._send(producer, letters)

    def _refuse_if_denied(self, letters: list[PlannedLetter]) -> None:
        """Ask once, before the first letter."""
        if not self._targets:
            self._targets = {letter.target for letter in letters} - {""} | {self._log_topic}
            if denied := self._denied():
                raise NotAuthorizedError(denied)

    def _denied(self, otherwise: str = "") -> str:
        """What may not be written to, and the way out.

        Args:
            otherwise: what to say if the cluster names no topic; `""`: then nothing is said.
        """
        denied: set[str] = set()
        if self._clients.admin is not None:
            topics = self._targets or {self._log_topic}
            denied = denied_topics(self._clients.admin(self._admin_config), topics, lambda *_, **__: None)
        what = f"the principal may not write to {', '.join(sorted(denied))}" if denied else otherwise
        return what and (
            f"{what}: grant it (see: rocketshim acls --role operator) and apply the plan again; {self._progress.sent} "
            "letters were sent in this run, and are marked"
        )

    def _begin(self, producer: ProducerClient) -> RedriveLog:
        """Write that we begin, and read the log until that comes back."""
        session = uuid.uuid4().hex
        self._sessions.append(session)
        record = BeginRecord(source=self._source, plan=self._plan, session=session, by=self._by)
        self._open(producer)
        producer.produce(self._log_topic, encode_redrive_record(record))
        self._commit(producer)
        log = RedriveLog()
        deadline_ns = self._clock.monotonic_ns() + int(_READ_BACK_S * 1e9)
        with closing(self._reader.read([self._log_topic], follow=True)) as messages:
            for message in messages:
                entry = None if message is None else decode_redrive_record(message.value())
                log.add(entry)
                if isinstance(entry, BeginRecord) and entry.session == session:
                    break
                if self._clock.monotonic_ns() > deadline_ns:
                    raise RedriveError(
                        f"our own record did not come back from {self._log_topic} within {_READ_BACK_S:.0f} s: a "
                        "transaction is open in it; wait until it has ended and apply the plan again"
                    )
        return log

    def _refuse_if_taken_over(self, log: RedriveLog) -> None:
        last = log.last_begin(self._source)
        has_begun = any(log.has_begun(session) for session in self._sessions)
        if has_begun and last is not None and last.session not in self._sessions:
            raise RedriveError(
                f"{last.by or 'somebody'} began to redrive {self._source} (plan {last.plan}) after us, and goes on; "
                "what we sent is marked: apply the plan again when that is done"
            )

    def _is_done(self, log: RedriveLog) -> Callable[[PlannedLetter], bool]:
        def is_done(letter: PlannedLetter) -> bool:
            if log.is_done(self._plan, self._source, letter.partition, letter.offset):
                return True
            found = log.settled(self._source, letter.partition, letter.offset, letter.digest)
            return found is not None and not self._again

        return is_done

    # --- sending -----------------------------------------------------------------------------------------------------

    def _send(self, producer: ProducerClient, letters: list[PlannedLetter]) -> None:
        batch: list[tuple[PlannedLetter, OutgoingRecord | None]] = []
        size_bytes = 0
        room = self._room()
        with closing(self._read(letters)) as found:
            for letter, message in found:
                made = self._made(letter, message)
                if made is not None:
                    batch.append((letter, made[0]))
                    size_bytes += 0 if made[0] is None else len(made[0].value or b"")
                if self._progress.stopped_by is not None:
                    return
                if len(batch) >= room or size_bytes >= _MOST_BYTES:
                    self._transact(producer, batch)
                    batch, size_bytes = [], 0
                    room = self._room()
                    if room == 0:
                        return
        self._transact(producer, batch)

    def _room(self) -> int:
        """Room for the next transaction once its time has come; 0: stopped."""
        while self._progress.stopped_by is None:
            has_seen, wait_ms = self._look(), self._progress.wait_ms(self._now_ms())
            if not has_seen and wait_ms == 0:
                break
            if not has_seen:
                self._wait(min(wait_ms, _LOOK_MS) / 1_000)
        return self._progress.room(self._now_ms())

    def _look(self) -> bool:
        """Whether something came into the source topic; what is of this plan is dead again."""
        message = next(self._coming)
        if message is None:
            return False
        headers = dict(headers_shown(message))
        replay = headers.get(REPLAY_ID) or headers.get(USER_PREFIX + REPLAY_ID) or b""
        plan, *place = replay.decode("utf-8", "replace").rsplit(".", 2)
        if plan == self._plan and len(place) == 2 and all(number.isdecimal() for number in place):
            self._progress.died_again(int(place[0]), int(place[1]))
        return True

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def _read(self, letters: list[PlannedLetter]) -> Generator[tuple[PlannedLetter, Any]]:
        """The letters that are still there; those that are not have failed."""
        waiting = {(letter.partition, letter.offset): letter for letter in letters}
        fetched = self._reader.read_at(self._source, waiting) if self._fetch is None else self._fetch(waiting)
        with closing(fetched) as messages:
            for message in messages:
                yield waiting.pop((message.partition(), message.offset())), message
        for letter in waiting.values():
            self._fail(letter, "gone")

    def _made(self, letter: PlannedLetter, message: Any) -> tuple[OutgoingRecord | None] | None:
        """What sends a letter; None: it has failed."""
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
            return None if self._fails_unasked(letter, made) else (made,)
        return None

    def _fails_unasked(self, letter: PlannedLetter, made: OutgoingRecord | None) -> bool:
        """Whether a letter waits for one of its key that failed, or is known to be too large; then it fails."""
        if made is None:
            return False
        if self._held_up.get((letter.partition, made.key), letter.offset) < letter.offset:
            self._fail(letter, "behind-failed")
            return True
        if self._too_large is not None and self._too_large.has_refused(made):
            self._fail_for_its_key(letter, _TOO_LARGE, made.key)
            return True
        return False

    def _fail_for_its_key(self, letter: PlannedLetter, reason: str, key: Any) -> None:
        """Fail a letter, and what comes behind it with the same key; None: it has none, and no order."""
        self._fail(letter, reason)
        if key is not None:
            place = (letter.partition, key)
            self._held_up[place] = min(letter.offset, self._held_up.get(place, letter.offset))

    def _fail(self, letter: PlannedLetter, reason: str) -> None:
        self._progress.fail(letter, reason)
        self._report()

    def _transact(self, producer: ProducerClient, batch: list[tuple[PlannedLetter, OutgoingRecord | None]]) -> None:
        """Send letters and their mark in one transaction; `_RefusedError`: some were refused, and nothing is stored."""
        if not batch:
            return
        self._progress.take([letter for letter, _ in batch], self._now_ms())
        self._refused = {}
        self._has_unconfirmed = False
        self._open(producer)
        try:
            self._produce_all(producer, batch)
            self._point("produced")
        except KafkaException:  # a transaction with a refused record takes no more: the reports say which
            self._await_reports(producer)
            if not self._refused:
                raise
        self._await_reports(producer)
        if self._refused:
            if self._is_careful:
                for each in batch:
                    self._fail_if_refused(*each)
            raise _RefusedError
        if self._has_unconfirmed:  # a commit might leave out a letter, or the mark
            raise KafkaException(UNCONFIRMED)
        self._commit(producer)
        self._point("committed")
        self._progress.committed()
        self._report()

    def _fail_if_refused(self, letter: PlannedLetter, made: OutgoingRecord | None) -> None:
        """A letter of a transaction in which records were refused, one a batch."""
        error = self._refused.get((letter.partition, letter.offset))
        if self._fails_unasked(letter, made) or made is None or error is None:
            return
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE and self._too_large is not None:
            self._too_large.refused(made)
        self._fail_for_its_key(letter, f"refused:{error.name()}", made.key)

    def _await_reports(self, producer: ProducerClient) -> None:
        """Until every report is in, or one says that a record is refused: then the others may never come."""
        deadline_ns = self._clock.monotonic_ns() + int(_API_S * 1e9)
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
        producer.produce(self._log_topic, encode_redrive_record(mark), on_delivery=self._note_unconfirmed)

    def _note_unconfirmed(self, error: KafkaError | None, message: Any) -> None:
        error = delivery_error(error, message)
        self._has_unconfirmed = self._has_unconfirmed or (error is not None and is_unconfirmed(error))

    def _produce(self, producer: ProducerClient, letter: PlannedLetter, out: OutgoingRecord) -> None:
        place = (letter.partition, letter.offset)

        def stored(error: KafkaError | None, message: Any) -> None:
            self._note_unconfirmed(error, message)
            if error is not None and error.code() in _REFUSED:
                self._refused[place] = error

        partition = -1 if out.partition is None else out.partition
        while True:
            try:
                producer.produce(out.topic, out.value, out.key, partition, on_delivery=stored, headers=out.headers)
            except BufferError:
                producer.poll(_POLL_S)
            except KafkaException as error:
                if error.args[0].code() not in _REFUSED:
                    raise
                self._refused[place] = error.args[0]
                return
            else:
                return

    def _open(self, producer: ProducerClient) -> None:
        producer.begin_transaction()
        self._has_open = True

    def _commit(self, producer: ProducerClient) -> None:
        producer.commit_transaction(_API_S)
        self._has_open = False

    def _throw_away(self) -> None:
        """End the producer; what it had open is aborted if that can still be done."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        purge_producer(producer, _API_S)  # an abort waits in vain for reports that nobody serves
        if self._has_open:
            with suppress(KafkaException):  # not ours to abort any more, or the next init_transactions does it
                producer.abort_transaction(_API_S)
            self._has_open = False
        close_producer(producer, _API_S)


class _RefusedError(Exception):
    """A record was refused, and perhaps others with it for being in one batch: begin again, with one record a batch."""


def _compresses(config: Mapping[str, Any]) -> bool:
    """Whether records may be stored smaller than they are."""
    return any(str(config.get(name, "none")) != "none" for name in ("compression.type", "compression.codec"))

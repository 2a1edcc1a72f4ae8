"""Send records with an idempotent producer, and learn of each whether it is stored.

A delivery report without an offset is not believed (`kafka.reports`). After a fatal error a producer can send nothing
more, and another one is made. A sender that is given a `BrokerClock` stamps its records with the brokers' time.

* `RecordSender` has a report thread, and any thread sends. The producer is made at the first send. After a fatal error
  the next send makes another one, and the former one still reports what it had: `outstanding`, `flush` and `close`
  cover both. A record without an offset is sent again after a pause, as it is and so with the same identity, until a
  report has an offset or its time is over. The thread processes the reports and calls back. It knows the producer and
  not the sender, so that a sender that nobody uses any more ends it.
* `OwnedSender` belongs to one thread, which polls it in its own loop and takes the results from it. What it does with a
  record that is not stored is the owner's decision.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer

from rocketshim.at_exit import EXIT_TIMEOUT_MS, at_exit
from rocketshim.core.broker_clock import BrokerClock
from rocketshim.core.clock import Interval
from rocketshim.errors import ClosedError
from rocketshim.kafka.clients import ProducerClient, close_producer, is_fatal
from rocketshim.kafka.membership import WorkerWatch
from rocketshim.kafka.reports import UNCONFIRMED, DeliveryReports, is_unconfirmed
from rocketshim_topics.hops import OutgoingRecord
from rocketshim_topics.kafka_codes import DENIED

__all__ = ["Done", "OwnedSender", "RecordSender", "break_real_links"]

_POLL_S: Final = 0.1
_AGAIN_S: Final = 0.1
_FULL_S: Final = 0.005
_PURGED_S: Final = 1.0
_UNKNOWN: Final = (0, 0)

Done = Callable[[KafkaError | None, Any], None]
"""Called once for each record, with None and the record if it is stored, otherwise with the error."""


_What = TypeVar("_What")


class _Sending:
    """A record that is being sent, and the callback of its delivery reports.

    It is an object and not a closure that names itself: such a cycle would keep the Kafka client after `close`. There
    is one for each record that is on its way, so it is all that there is (closures and their cells kept the garbage
    collector busy: 15 % of the time of a push consumer whose messages fail).
    """

    __slots__ = ("again_until_s", "done", "error", "link", "out", "sent", "what")

    def __init__(
        self, link: "_Link", out: OutgoingRecord, done: Done | None, again_until_s: float = 0.0, what: Any = None
    ) -> None:
        self.link = link
        self.out = out
        self.done = done  # None: the owner takes it from `_Link.results`
        self.again_until_s = again_until_s
        self.what = what
        self.sent = _UNKNOWN

    def produce(self) -> None:
        """Give the record to the client, stamped with the brokers' time if the link knows it."""
        out, link, time, stamp_ms = self.out, self.link, self.link.time, 0
        if time is not None:
            self.sent = sent_ns, sent_ms = time.read()
            stamp_ms = time.stamp_ms(sent_ns, sent_ms)
        try:
            link.producer.produce(
                out.topic, out.value, out.key, -1 if out.partition is None else out.partition,
                on_delivery=self, timestamp=stamp_ms, headers=out.headers,
            )  # fmt: skip
        except KafkaException as error:
            link.note(error)
            raise

    def end(self, error: KafkaError | None) -> None:
        """Give the owner the result."""
        self.error: KafkaError | None = error
        self.link.results.append(self)

    def __call__(self, error: KafkaError | None, record: Any) -> None:
        """Take a delivery report."""
        link = self.link
        error = link.reports.error(error, record)
        if error is not None:
            link.note(error)
        else:
            link.has_stored = True
            if link.time is not None:
                link.time.learn(record.timestamp(), *self.sent)
        if self.done is None:
            self.end(error)
            return
        if error is not None and link.denial is not None and error.code() == KafkaError._PURGE_QUEUE:  # noqa: SLF001 - no public spelling
            error = link.denial
        if error is None or not link.goes_again(self, error):
            thread = threading.get_ident()
            link.reporting.add(thread)
            try:
                self.done(error, record)
            finally:
                link.reporting.discard(thread)


class _Link:
    """One producer, from its creation to its last report; one thread polls it."""

    def __init__(
        self,
        producer: ProducerClient,
        time: BrokerClock | None = None,
        on_unconfirmed: Callable[[OutgoingRecord], None] = lambda _: None,
        exit_timeout_ms: int = 0,
    ) -> None:
        self.producer = producer
        self.time = time
        self.exit_timeout_ms = exit_timeout_ms
        self.failed_count = 0
        self.reports = DeliveryReports()
        self.again: deque[tuple[float, _Sending]] = deque()  # unconfirmed, and when they are sent again, monotonic
        self.results: list[_Sending] = []  # records with a report and without a callback
        self.fatal: KafkaError | None = None  # it can send nothing more
        # It was refused before it stored anything: a principal that may write to no topic at all gets no id of an
        # idempotent producer, and its records are only "purged".
        self.denial: KafkaError | None = None
        self.has_stored = False
        self.is_over = False  # nothing more is sent; the thread ends when every record has its report
        self.watch: WorkerWatch | None = None  # the report thread turns it
        # Threads in a callback of this producer. They must not call its `poll` or `flush`: the next callback would end
        # the process (`kafka.confluent`).
        self.reporting: set[int] = set()
        self.thread: threading.Thread
        self._on_unconfirmed = on_unconfirmed

    @property
    def outstanding(self) -> int:
        """Number of records without a result."""
        return len(self.producer) + len(self.again)

    @property
    def is_reporting(self) -> bool:
        """Return whether the caller is in a callback of this producer."""
        return threading.get_ident() in self.reporting

    def poll(self, wait_s: float) -> None:
        """Process delivery reports; raise what the client or a callback raises."""
        try:
            self.producer.poll(wait_s)
        except KafkaException as error:
            self.note(error)
            raise

    def await_reports(self, wait_s: float) -> None:
        """Wait until every record has its report."""
        try:
            self.producer.flush(wait_s)
        except KafkaException as error:
            self.note(error)

    def note(self, error: KafkaException | KafkaError) -> None:
        """Note an error of a call or report, if it is a fatal one."""
        if is_fatal(error):
            self.fatal = error.args[0] if isinstance(error, KafkaException) else error

    def start(self, thread_name: str, on_error: Callable[[BaseException], None]) -> None:
        """Start the report thread."""
        self.thread = threading.Thread(target=self.serve, args=(on_error,), name=thread_name, daemon=True)
        self.thread.start()
        at_exit.add_producer(self)

    def begin_exit(self) -> None:
        """Count from now on what fails: who sent it may not be there any more to see it."""
        self.failed_count = 0

    def finish_exit(self, until_s: float) -> int:
        """Wait for the results of all records; return how many have none, or have failed meanwhile."""
        least_s = time.monotonic() + _FULL_S  # events that are no records count as outstanding until a `flush`
        return _flush(self, max(until_s, least_s)) + self.failed_count

    def abandon(self) -> None:
        """Send nothing more, and give the records without a result an error; they may or may not be stored."""
        self.is_over = True
        if self.is_reporting:
            return
        self.producer.purge()
        self.await_reports(_PURGED_S)

    def goes_again(self, sending: _Sending, error: KafkaError) -> bool:
        """Have the report thread send an unconfirmed record again; False: it is another error, or too late."""
        due_s = time.monotonic() + _AGAIN_S
        if not is_unconfirmed(error) or self.is_over or due_s >= sending.again_until_s:
            self.failed_count += 1
            return False
        self._on_unconfirmed(sending.out)
        self.again.append((due_s, sending))
        return True

    def serve(self, on_error: Callable[[BaseException], None]) -> None:
        """Process delivery reports until the link is over and every record has its result; the report thread."""
        while not self.is_over or self.outstanding:
            try:
                self.poll(_POLL_S)
                if self.again:
                    self._send_again()
                if self.watch is not None:
                    self.watch.turn(time.monotonic_ns() // 1_000_000)
            except BaseException as error:  # noqa: BLE001 - top of a thread: if it ended, later sends would wait in vain
                if is_fatal(error) and not self.has_stored and error.args[0].code() in DENIED:
                    self.denial = error.args[0]
                on_error(error)
        if self.watch is not None:
            self.watch.close()

    def _send_again(self) -> None:
        """Send unconfirmed records again, once their pause is over."""
        for _ in range(len(self.again)):
            due_s, sending = self.again.popleft()
            if self.is_over:
                self._fail(sending, UNCONFIRMED)
            elif time.monotonic() < due_s:
                self.again.append((due_s, sending))
            else:
                try:
                    sending.produce()
                except BufferError:
                    self.again.append((due_s, sending))
                except KafkaException as error:
                    self._fail(sending, error.args[0])

    def _fail(self, sending: _Sending, error: KafkaError) -> None:
        self.failed_count += 1
        thread = threading.get_ident()
        self.reporting.add(thread)
        try:
            if sending.done is not None:
                sending.done(error, None)
        finally:
            self.reporting.discard(thread)


class OwnedSender(Generic[_What]):
    """Sends records with one idempotent producer in the loop of its owner. A failure is a result: `send` never raises.

    A broken producer is replaced, at most once in `renewal_ms`: a new one may be refused, too. `probe` makes a record
    that shows the brokers' time; it is sent if a broker refuses the time of a record.
    """

    def __init__(
        self,
        make_producer: Callable[[], ProducerClient],
        renewal_ms: int,
        on_renewed: Callable[[KafkaError], None],
        time: BrokerClock | None = None,
        probe: Callable[[], OutgoingRecord] | None = None,
    ) -> None:
        self.make_producer = make_producer
        self._renewal = Interval(renewal_ms)
        self._on_renewed = on_renewed
        self._time = time
        self._probe = probe
        self._is_probing = False
        self._link: _Link | None = None  # None: not open
        self.outstanding = 0

    @property
    def is_open(self) -> bool:
        """Return whether records can be sent."""
        return self._link is not None

    def open(self) -> None:
        """Make the producer, without network calls, in the thread that owns it."""
        self._link = _Link(self.make_producer(), self._time)

    def send(self, out: OutgoingRecord, what: _What) -> None:
        """Send a record; `results` has `what` later. It is lost if the sender is not open."""
        link = self._link
        if link is None:
            return
        self.outstanding += 1
        sending = _Sending(link, out, None, what=what)
        try:
            sending.produce()
        except BufferError:
            sending.end(KafkaError(KafkaError._QUEUE_FULL))  # noqa: SLF001 - no public spelling
        except KafkaException as error:
            sending.end(error.args[0])

    def results(self, now_ms: int, wait_s: float = 0.0) -> list[tuple[_What, KafkaError | None]]:
        """Return the results that have come; wait up to `wait_s` for the first. Replace a broken producer."""
        link = self._link
        if link is None:
            return []
        with suppress(KafkaException):
            link.poll(wait_s)
        if link.fatal is not None and self._renewal.is_due(now_ms):
            self._on_renewed(link.fatal)
            close_producer(link.producer, _PURGED_S)  # its records get their results
            self._is_probing = False
            self.open()
        results = [(each.what, each.error) for each in link.results]
        link.results.clear()
        self.outstanding -= len(results)
        if any(error is not None and error.code() == KafkaError.INVALID_TIMESTAMP for _, error in results):
            self._ask_time()
        return results

    def close(self, longest_s: float = 0.0) -> None:
        """Close the producer, after `longest_s` for the records that are on their way. A second call does nothing."""
        link, self._link = self._link, None
        if link is not None:
            with suppress(RuntimeError):  # it is closed
                if longest_s:
                    link.await_reports(longest_s)
            close_producer(link.producer, _PURGED_S)

    def _ask_time(self) -> None:
        """Send a probe of the brokers' time, unless one is on its way. A record that is refused again asks again."""
        if self._link is not None and self._probe is not None and not self._is_probing:
            with suppress(BufferError, KafkaException):
                _Sending(self._link, self._probe(), self._probed).produce()
                self._is_probing = True

    def _probed(self, error: KafkaError | None, record: Any) -> None:
        del error, record
        self._is_probing = False


class RecordSender:
    """Sends records with one idempotent producer and its report thread. Any thread may call every method.

    `on_unconfirmed` is called before a record is sent again, `on_error` with an error of the client or of a callback;
    both only log. `closed_text` is the text of the error of a send after `close`.

    Decides: When does a send give up? A record after `delivery_timeout_ms`; its caller after `timeout_s`
        (`producer.producer.Producer.send`).
    """

    def __init__(
        self,
        make_producer: Callable[[], ProducerClient],
        *,
        thread_name: str,
        closed_text: str,
        on_unconfirmed: Callable[[OutgoingRecord], None],
        on_error: Callable[[BaseException], None],
        exit_timeout_ms: int = EXIT_TIMEOUT_MS,
        time: BrokerClock | None = None,
    ) -> None:
        self._make_producer = make_producer
        self._thread_name = thread_name
        self._closed_text = closed_text
        self._on_unconfirmed = on_unconfirmed
        self._on_error = on_error
        self._exit_timeout_ms = exit_timeout_ms
        self._time = time
        self._lock = threading.RLock()  # a signal handler may call close() while this thread makes the producer
        self._links: tuple[_Link, ...] = ()  # the last one sends; those before it are broken and have not ended yet
        self._is_closed = False
        self._watch: WorkerWatch | None = None

    def watch_workers(self, watch: WorkerWatch | None) -> None:
        """Have the report thread turn a watch: what is sent needs a worker."""
        self._watch = watch
        if (link := self._link) is not None:
            link.watch = watch

    @property
    def producer(self) -> ProducerClient | None:
        """The Kafka client; None: no record was sent yet, or the sender is closed."""
        with self._lock:  # one that is being made counts
            link = self._link
        return None if link is None else link.producer

    @property
    def is_open(self) -> bool:
        """Return whether there is a Kafka client, so that the next send makes none."""
        link = self._link
        return link is not None and link.fatal is None

    @property
    def outstanding(self) -> int:
        """Number of records without a result."""
        return sum(link.outstanding for link in self._links)

    @property
    def _link(self) -> _Link | None:
        links = self._links
        return links[-1] if links else None

    def send(self, out: OutgoingRecord, done: Done, *, room_until_s: float, again_until_s: float) -> None:
        """Send a record; return when the client has accepted it. `done` is called in the report thread; must not block.

        It waits for room in a full queue until one monotonic time, and the record is sent again, if it is reported
        without an offset, until the other. After an error nothing was sent, and `done` is not called: BufferError if
        the queue stayed full, KafkaException if the client refused the record, ClosedError.
        """
        while True:
            link = self._link
            if link is None or link.fatal is not None:
                link = self._open()
            try:
                _Sending(link, out, done, again_until_s).produce()
            except BufferError:
                if time.monotonic() >= room_until_s:
                    raise
                time.sleep(_FULL_S)  # the report thread processes reports, which makes room
            else:
                if link.is_over:
                    link.abandon()  # its thread may have ended before this record came
                return

    def list_topics(self, *, timeout: float) -> Any:
        """Return the cluster's topics, as the producer sees them."""
        return self._open().producer.list_topics(timeout=timeout)

    def flush(self, until_s: float) -> int:
        """Wait for the results of all records, until a monotonic time; return the number of records without one.

        In a callback of a record it does not wait.
        """
        return sum(_flush(link, until_s) for link in self._links)

    def close(self, until_s: float) -> None:
        """Wait for the results until a monotonic time, and end the report thread. A second call does nothing.

        Records without a result by then get an error: they may or may not be stored. So do they if an exception, such
        as KeyboardInterrupt, ends the wait. In a callback of a record it does not wait; the others get their results.
        """
        with self._lock:
            self._is_closed = True
            links, self._links = self._links, ()
        try:
            for link in links:
                _flush(link, until_s)
        finally:
            for link in links:
                link.abandon()
        for link in links:
            if link.is_reporting:
                continue
            rest_s = max(_PURGED_S, until_s - time.monotonic())  # records of a deleted topic may stay longer
            link.thread.join(min(rest_s, threading.TIMEOUT_MAX))

    def __del__(self) -> None:
        for link in self._links:
            link.is_over = True  # a sender that is collected without close() leaves no thread running

    def _open(self) -> _Link:
        """Return the link to a working producer, and make one if there is none or it is broken.

        Decides: What follows a fatal error of the producer's client? The next send makes another client; records of the
            former one get the error.
        Decides: What does a closed producer do? A ClosedError, nothing is sent.
        """
        with self._lock:
            if self._is_closed:
                raise ClosedError(self._closed_text)
            link = self._link
            if link is None or link.fatal is not None:
                if link is not None:
                    link.is_over, link.watch = True, None
                producer = self._make_producer()
                if self._is_closed:  # by a signal handler meanwhile
                    raise ClosedError(self._closed_text)
                link = _Link(producer, self._time, self._on_unconfirmed, self._exit_timeout_ms)
                link.watch = self._watch
                link.start(self._thread_name, self._on_error)
                former = (each for each in self._links if each.thread.is_alive())
                self._links = (*former, link)
            return link


def break_real_links() -> None:
    """Have every sender to a real Kafka ask for a new client at its next send; see `clients.real_clients`."""
    for each in at_exit.producers():
        if isinstance(each, _Link) and isinstance(each.producer, Producer):
            each.fatal = KafkaError(KafkaError._FATAL)  # noqa: SLF001 - no public spelling


def _flush(link: _Link, until_s: float) -> int:
    while link.outstanding and time.monotonic() < until_s and not link.is_reporting:
        if not len(link.producer):
            time.sleep(_FULL_S)  # the report thread sends again what waits
        link.await_reports(min(_POLL_S, max(0.0, until_s - time.monotonic())))
    return link.outstanding

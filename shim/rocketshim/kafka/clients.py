# ruff: noqa: D102 - confluent_kafka documents these methods; the module docstring says what we rely on
"""The part of confluent_kafka that the shells use, as Protocols; and how Kafka clients are created, logged and closed.

Every shell gets objects with these interfaces as arguments, through a factory, since a Kafka client belongs to the
thread and process that created it. Two implementations exist: confluent_kafka's (see `kafka.confluent`), and the
in-memory Kafka of `rocketshim.testing`. No shell uses a method that is not listed here.

Names, argument forms, return values and errors are confluent_kafka's (2.16 and later). In particular:

* Always check `error()` of a message first. A message with an empty value is *falsy*, so test `is not None`
  (test_messages_without_a_value_are_handled_and_committed, test_records_without_a_value_are_records).
* A `KafkaError` that is compared with None by `==`, also inside a list, leaves an exception behind that a later call
  raises. So test `is None` (test_an_error_that_is_compared_with_none_raises_later).
* `headers()` is None if a message has no headers.
* `consume(n, timeout)` waits for n messages or the whole time-out, so the shells call `poll(t)` and then
  `consume(n, 0)` (test_consume_waits_for_all_its_messages_or_for_the_whole_time).
* Errors are `confluent_kafka.KafkaException` with a `KafkaError` inside.
"""

import logging
import math
import re
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, Protocol, TypeVar, overload

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from rocketshim.errors import BrokerUnavailableError, ConfigError
from rocketshim_topics.kafka_codes import AWAY

__all__ = [
    "AdminFactory",
    "Clients",
    "ConsumerClient",
    "ConsumerFactory",
    "DeliveryCallback",
    "LastClientError",
    "LookupClient",
    "Parting",
    "ProducerClient",
    "ProducerFactory",
    "answer_time_s",
    "check_threads",
    "close_consumer",
    "close_producer",
    "confluent_admin",
    "confluent_clients",
    "explained",
    "init_transactions",
    "is_fatal",
    "poll_callbacks",
    "purge_producer",
    "real_clients",
    "refresh_metadata",
    "unsubscribes",
    "with_log",
]


_Client = TypeVar("_Client")

_CONNECTING_S: Final = 1.0
_ANSWER_S: Final = 30.0
_REACH_S: Final = 10.0
_UNREACHABLE_S: Final = 1.0
_LOOK_S: Final = 0.005
_LEAVING_TURN_S: Final = 0.01
_LOG = logging.getLogger("rocketshim.client")
_LOG.addHandler(
    logging.NullHandler()
)  # otherwise Python prints warnings to stderr if the program has not configured logging
_LINES: Final = 10
_LINES_S: Final = 10.0
_FAILING: Final = frozenset({"FAIL", "ERROR"})
_THREAD: Final = re.compile(r"^\[thrd:[^\]]*\]: ")
_IDLE: Final = re.compile(r"Disconnected.*\(after [0-9]{4,}ms in state UP")  # brokers close idle connections
_TOKENS_FROM: Final = ("oauth_cb", "sasl.oauthbearer.method", "enable.sasl.oauthbearer.unsecure.jwt")
_ADDRESS: Final = re.compile(r"(?:(ssl|sasl_ssl|sasl_plaintext)://)?([\w.\[\]:-]+:[0-9]+)/")
_NO_TLS: Final = re.compile(
    r"PLAINTEXT broker listener|wrong version number|unknown protocol|packet length too long"
    r"|Disconnected.*in state SSL_HANDSHAKE"
)
_CLOSED_EARLY: Final = re.compile(
    r"Disconnected.*(in state (APIVERSION_QUERY|AUTH_\w+)|\(after [0-9]{1,3}ms in state UP)"
)

# `close` of a producer whose transaction was fenced warns about an abort that can no longer succeed.
warnings.filterwarnings(
    "ignore", message="Producer abort_transaction failed during close", module=r"rocketshim\.kafka\.clients$"
)


DeliveryCallback = Callable[[KafkaError | None, Any], None]
"""Called from `poll` or `flush` with the error (None: stored) and the message as sent; it may only hand over."""


class ConsumerClient(Protocol):
    """The consumer calls that the shells make. One thread owns the object and makes all of them."""

    def subscribe(self, topics: list[str], on_assign: Any = ..., on_revoke: Any = ..., on_lost: Any = ...) -> None: ...
    def unsubscribe(self) -> None: ...
    def assign(self, partitions: list[TopicPartition]) -> None: ...
    def unassign(self) -> None: ...
    def incremental_assign(self, partitions: list[TopicPartition]) -> None: ...
    def incremental_unassign(self, partitions: list[TopicPartition]) -> None: ...
    def assignment(self) -> list[TopicPartition]: ...
    def poll(self, timeout: float = ...) -> Any: ...
    def consume(self, num_messages: int = ..., timeout: float = ...) -> list[Any]: ...
    @overload
    def commit(self, *, asynchronous: Literal[True] = ...) -> None: ...
    @overload
    def commit(self, *, asynchronous: Literal[False]) -> list[TopicPartition]: ...
    @overload
    def commit(self, *, message: Message, asynchronous: Literal[True] = ...) -> None: ...
    @overload
    def commit(self, *, message: Message, asynchronous: Literal[False]) -> list[TopicPartition]: ...
    @overload
    def commit(self, *, offsets: list[TopicPartition], asynchronous: Literal[True] = ...) -> None: ...
    @overload
    def commit(self, *, offsets: list[TopicPartition], asynchronous: Literal[False]) -> list[TopicPartition]: ...
    def committed(self, partitions: list[TopicPartition], timeout: float = ...) -> list[TopicPartition]: ...
    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]: ...
    def seek(self, partition: TopicPartition) -> None: ...
    def pause(self, partitions: list[TopicPartition]) -> None: ...
    def resume(self, partitions: list[TopicPartition]) -> None: ...
    def get_watermark_offsets(self, partition: TopicPartition, timeout: float = ..., cached: bool = ...) -> Any: ...
    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float = ...) -> list[TopicPartition]: ...
    def list_topics(self, topic: Any = ..., timeout: float = ...) -> Any: ...
    def consumer_group_metadata(self) -> Any: ...
    def memberid(self) -> str | None: ...
    def close(self) -> Any: ...


class LookupClient(Protocol):
    """A client's lookups of topics and offsets, which the brokers of the partitions answer."""

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float = ...) -> Any: ...
    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float = ...) -> list[TopicPartition]: ...
    def list_topics(self, topic: Any = ..., timeout: float = ...) -> Any: ...


class ProducerClient(Protocol):
    """The producer calls that the shells make. Any thread may call `produce`, only the owner the others."""

    def produce(
        self,
        topic: str,
        value: Any = ...,
        key: Any = ...,
        partition: int = ...,
        *,
        on_delivery: DeliveryCallback | None = ...,
        timestamp: int = ...,
        headers: Any = ...,
    ) -> None: ...
    def poll(self, timeout: float = ...) -> int: ...
    def flush(self, timeout: float = ...) -> int: ...
    def purge(self, in_queue: bool = ..., in_flight: bool = ..., blocking: bool = ...) -> None: ...
    def list_topics(self, topic: Any = ..., timeout: float = ...) -> Any: ...
    def init_transactions(self, timeout: float = ...) -> None: ...
    def begin_transaction(self) -> None: ...
    def send_offsets_to_transaction(
        self, positions: list[TopicPartition], group_metadata: Any, timeout: float = ...
    ) -> None: ...
    def commit_transaction(self, timeout: float = ...) -> None: ...
    def abort_transaction(self, timeout: float = ...) -> None: ...
    def close(self) -> bool: ...
    def __len__(self) -> int: ...


ConsumerFactory = Callable[[dict[str, Any]], ConsumerClient]
"""Creates a consumer from librdkafka settings; called in the thread that will own it."""

ProducerFactory = Callable[[dict[str, Any]], ProducerClient]
"""Creates a producer from librdkafka settings."""

AdminFactory = Callable[[dict[str, Any]], Any]
"""Creates a `confluent_kafka.admin.AdminClient` from librdkafka settings."""


@dataclass(frozen=True, slots=True)
class Clients:
    """The factories of a shell's Kafka clients."""

    consumer: ConsumerFactory
    producer: ProducerFactory
    admin: AdminFactory | None = None  # None, as of the in-memory Kafka: no topic is ever created


class LastClientError:
    """The log of one Kafka client: its lines go to `logging`, and the last error is added to the texts of our errors.

    librdkafka would write its lines to stderr, up to twenty a second while no broker answers. Here they go to the
    logger `rocketshim.client`, at most ten in ten seconds for each client. The next line states how many lines were
    left out before it.

    `settings` are the client's default settings that direct its lines and errors to this object. confluent_kafka calls
    it in the thread that polls the client. Any thread may call `text` without a client.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.settings: dict[str, Any] = {"logger": self, "error_cb": self._note_error}
        self._monotonic = monotonic
        self._last = ""
        self._noted_s = -math.inf
        self._since_s = -math.inf
        self._logged_count = self._left_out_count = 0

    def log(self, level: int, text: str, *args: Any) -> None:
        """Log one line; the part of the interface of `logging.Logger` that confluent_kafka uses.

        An exception in a handler or filter of the program is suppressed: otherwise the client's `poll` would raise it
        (test_an_exception_in_a_log_filter_does_not_leave_the_client). A client that is never polled logs nothing.
        """
        facility, client, words = args if len(args) == 3 else ("", "", text % args)
        words = _THREAD.sub("", words)
        if facility in _FAILING and not _IDLE.search(words):
            self._note(words)
        now_s = self._monotonic()
        if now_s - self._since_s >= _LINES_S:
            self._since_s, self._logged_count = now_s, 0
        if self._logged_count >= _LINES:
            self._left_out_count += 1
            return
        self._logged_count += 1
        left_out, self._left_out_count = self._left_out_count, 0
        with suppress(Exception):
            _LOG.log(level, "%s %s: %s%s", facility, client, words, f" ({left_out} lines left out)" if left_out else "")

    def text(self, client: Any = None, *, since_s: float = -math.inf) -> str:
        """Return the last error since a monotonic time, and its likely cause, to be appended to an error's text.

        `""`: there was none. A client is polled for errors not reported yet; None: another thread polls it.
        """
        if client is not None:
            client.poll(0.0)
        if not self._last or self._noted_s < since_s:
            return ""
        cause = _likely_cause(self._last)
        return f" ({cause}the Kafka client reports: {self._last})"

    def _note_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - no public spelling
            self._note(error.str())

    def _note(self, words: str) -> None:
        self._last = words
        self._noted_s = self._monotonic()


@contextmanager
def explained(complaints: LastClientError, client: Any) -> Iterator[None]:
    """Add the client's last connection error to the text of a `BrokerUnavailableError`."""
    try:
        yield
    except BrokerUnavailableError as error:
        detail = complaints.text(client)
        if not detail:
            raise
        raise BrokerUnavailableError(f"{error}{detail}") from error


def answer_time_s(admin: Any, complaints: LastClientError) -> float:
    """Wait for the first answer of a cluster; return how long to wait for each further one, in seconds.

    Slow brokers have 30 s for an answer. A link on which a request takes 3 s needs four requests for the first one. If
    a connection has failed, and nothing has answered for 10 s, no broker can be reached: then further requests fail
    soon, with an error that names what was asked for.
    """
    asked = admin.describe_cluster(request_timeout=_ANSWER_S)
    began_s = time.monotonic()
    while not asked.done():
        waited_s = time.monotonic() - began_s
        if waited_s >= _ANSWER_S or (waited_s >= _REACH_S and complaints.text(admin)):
            return _UNREACHABLE_S
        time.sleep(_LOOK_S)
    error = asked.exception()
    is_away = isinstance(error, KafkaException) and error.args[0].code() in AWAY
    return _UNREACHABLE_S if is_away else _ANSWER_S


def _likely_cause(words: str) -> str:
    """Return the most frequent cause of this connection error, as the beginning of a sentence; `""`: unknown."""
    found = _ADDRESS.search(words)
    protocol, address = (found[1] or "plaintext", found[2]) if found else ("plaintext", "the broker")
    if _NO_TLS.search(words):
        return f"TLS handshake failed: does {address} speak TLS? security.protocol={protocol.upper()}; "
    if _CLOSED_EARLY.search(words):
        return (
            f"{address} closed the connection before it was used: does it expect TLS or SASL? "
            f"security.protocol={protocol.upper()}; "
        )
    return ""


class RealClients:
    """Whether this process may use a real Kafka: not while a test harness is open that the client does not belong to.

    A client of the program that a test forgot to connect would send to a real cluster, and the test would not see why
    its message is missing. Any thread may call it.
    """

    def __init__(self) -> None:
        self._harnesses: weakref.WeakSet[Any] = weakref.WeakSet()  # one that is dropped counts as closed

    def refuse(self, harness: object) -> None:
        """Make no client of a real Kafka, and send nothing with one, while this harness is open."""
        self._harnesses.add(harness)

    def allow(self, harness: object) -> None:
        """This harness is closed."""
        self._harnesses.discard(harness)

    @property
    def are_refused(self) -> bool:
        """Return whether a harness is open."""
        return bool(self._harnesses)

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise ConfigError if a client with these librdkafka settings may not be made or used now."""
        if self._harnesses:
            address = settings.get("bootstrap.servers", settings.get("metadata.broker.list", "its brokers"))
            raise ConfigError(
                f"a test harness is open, and this client is not connected to it: it would use {address}. Pass a "
                "producer to harness.connect(), a consumer to harness.run(), or make the client with "
                "clients=harness.kafka.clients(). A test that needs a real Kafka, too: Harness(allow_real_clients=True)"
            )


real_clients: Final = RealClients()
"""That of this process."""


def confluent_clients() -> Clients:
    """Return factories of confluent_kafka's clients. Invalid settings are a `ConfigError` that contains no value."""
    check_threads()
    from confluent_kafka import Consumer  # noqa: PLC0415 - loaded only when a Kafka client is needed
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    from rocketshim.kafka.confluent import Producer  # noqa: PLC0415

    return Clients(consumer=_checked(Consumer), producer=_checked(Producer), admin=_checked(AdminClient))


def check_threads() -> None:
    """Raise `ConfigError` if the threads of this process are not those that consumers and producers rely on.

    Without Python's global lock, a process queue and a listener thread that take from one list iterator may take a
    message twice or miss it. A greenlet that waits in librdkafka stops all others (test_greenlets.py).
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise ConfigError(
            "rocketshim does not run on free-threaded Python without the global interpreter lock: messages could be "
            "handled twice or not at all. Set PYTHON_GIL=1, or use the usual build of Python"
        )
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and any(map(gevent.is_module_patched, ("threading", "queue"))):
        library, but = "gevent", "monkey.patch_all(thread=False, queue=False)"
    elif eventlet is not None and eventlet.is_monkey_patched("thread"):
        library, but = "eventlet", "eventlet.monkey_patch(thread=False)"
    else:
        return
    raise ConfigError(
        f"{library} has replaced the threads of this process by greenlets, and rocketshim's threads would block them "
        f"all forever. Run it with threads or processes (gunicorn -k gthread, celery -P prefork), or call {but}"
    )


def confluent_admin(settings: dict[str, Any]) -> Any:
    """Create an admin client of confluent_kafka. Invalid settings are a `ConfigError` that contains no value."""
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    return _checked(AdminClient)(settings)


def with_log(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with a logger that sends the client's lines to `logging`, unless they name a logger already.

    If the settings ask for librdkafka's debug lines, all lines go to stderr, as librdkafka writes them.
    """
    if "debug" in settings:
        return {name: value for name, value in settings.items() if not isinstance(value, LastClientError)}
    return settings if "logger" in settings else {**settings, "logger": LastClientError()}


def _checked(make: Callable[[dict[str, Any]], _Client]) -> Callable[[dict[str, Any]], _Client]:
    def made(settings: dict[str, Any]) -> _Client:
        real_clients.check(settings)
        if settings.get("sasl.mechanism", settings.get("sasl.mechanisms")) == "OAUTHBEARER" and not any(
            settings.get(name) for name in _TOKENS_FROM
        ):
            raise ConfigError(
                "sasl.mechanism=OAUTHBEARER needs a source of tokens: set sasl.oauthbearer.method=oidc and what belongs"
                " to it; a program may give oauth_cb"
            )
        try:
            return make(with_log(settings))
        except (KafkaException, ValueError, TypeError, ImportError) as error:  # the last: aws_iam without its package
            found = error.args[0] if error.args else error
            text = found.str() if isinstance(found, KafkaError) else str(found)
            raise ConfigError(f"the Kafka client does not accept these settings: {text}") from error

    return made


def poll_callbacks(producer: ProducerClient, timeout_s: float = 0.0) -> KafkaError | None:
    """Let a producer call its callbacks; return its fatal error (once), or None.

    confluent_kafka raises a fatal error from the next call of `poll` or `flush`, with or without `error_cb`.
    """
    try:
        producer.poll(timeout_s)
    except KafkaException as problem:
        error: KafkaError = problem.args[0]
        return error
    return None


def is_fatal(error: object) -> bool:
    """Return whether an error of a call, an event or a report means that its client can do nothing more.

    `KafkaError.fatal()` alone is False for a fatal error that comes as an event of a consumer, or that refuses a later
    call: these only have the code `_FATAL` (confluent_kafka 2.16.1, our measurement). With KIP-848, a consumer that is
    not allowed to read in its group at the moment of a heartbeat gets such an event.
    """
    found = error.args[0] if isinstance(error, KafkaException) else error
    return isinstance(found, KafkaError) and (bool(found.fatal()) or found.code() == KafkaError._FATAL)  # noqa: SLF001


def refresh_metadata(producer: ProducerClient, topic: str | None = None) -> None:
    """Make a producer refresh its metadata of a topic, None: of all topics. Do not wait for the answer.

    Its metadata are up to five minutes old. The call always times out; the producer knows the answer 1 ms later.
    """
    with suppress(KafkaException):
        producer.list_topics(topic, timeout=0)


def init_transactions(producer: ProducerClient, topic: str, timeout_s: float) -> None:
    """Call `init_transactions` of a new producer once it is connected, or cannot connect within a second.

    librdkafka looks for the transaction coordinator as soon as `init_transactions` is called. If no broker is connected
    at that moment, it looks again after 500 ms. So the producer asks for metadata first, twice: after the first answer
    librdkafka may close the connection to the bootstrap server and open another one. Our measurement, 2.16.1: without
    this, 20 of 32 calls took 510 ms; after one request 2 of 25; after two none of 75, and 60 ms with them.
    Connecting may take two seconds more than `timeout_s`. A topic that does not exist may be created by the broker.
    """
    with suppress(KafkaException):
        for _ in range(2):
            producer.list_topics(topic, timeout=_CONNECTING_S)
    producer.init_transactions(timeout_s)


def purge_producer(producer: ProducerClient, longest_s: float) -> None:
    """Drop the records in a producer, and let it call their delivery callbacks.

    Call it before `abort_transaction`, which waits for the report of every record: ten seconds for one that cannot be
    purged, since the client has just forgotten its topic. If the producer is not empty afterwards, it has such a record
    (test_a_transaction_that_is_refused_because_of_a_deleted_target_is_the_only_one).
    """
    producer.purge()
    for _ in range(2):  # the first call raises a fatal error
        try:
            producer.flush(longest_s)
        except KafkaException:
            continue
        return


def close_producer(producer: ProducerClient, longest_s: float) -> None:
    """Drop the records in a producer, and release its threads and connections even if it is still referenced.

    Only its owner may call this, while no other thread is in a call of it. The last reference may be unreachable:
    confluent_kafka keeps the error that `commit_transaction` raised, and with it the error's stack frames (our
    measurement, 2.16.1). Everything that ends closes its clients itself: an object that a user still references must
    keep no thread alive (test_after_the_end_nothing_is_left, test_a_sender_that_nobody_uses_any_more_leaves_no_thread).

    A producer with missing delivery reports after `longest_s` is not closed, and ends with its last reference: `close`
    would wait for them.
    """
    try:
        purge_producer(producer, longest_s)
    except RuntimeError:  # it is closed
        return
    if len(producer) == 0:
        # After a fatal error, reported before, `close` warns; if warnings are errors, that is a SystemError.
        with suppress(KafkaException, SystemError):
            producer.close()


class Parting(Enum):
    """How far a consumer got when it left its group within a time limit."""

    LEFT = "left"
    STAYED = "its last words were answered, but the group may still count it as a member"
    SILENT = "its last words were not answered"


def unsubscribes(client: Mapping[str, Any]) -> bool:
    """Return whether a consumer with these settings has to unsubscribe before it is closed; see `close_consumer`.

    With KIP-848 it has not: `close` leaves the group immediately. A static member has not: it must stay in the group.
    """
    return not brokers_assign(client) and not client.get("group.instance.id")


def brokers_assign(client: Mapping[str, Any]) -> bool:
    """Return whether the brokers assign the partitions to a consumer with these settings (KIP-848)."""
    return str(client.get("group.protocol", "classic")).lower() == "consumer"


def close_consumer(
    consumer: ConsumerClient,
    longest_s: float,
    before_close: Callable[[], object] = lambda: None,
    *,
    unsubscribe: bool = False,
    has_joined: Callable[[], bool] = lambda: True,
) -> Parting:
    """Leave the group and close a consumer; return how far that got within the time.

    In the classic protocol `close` alone does not always leave the group (our measurement, librdkafka 2.16.1). A
    cooperative member without partitions sends no LeaveGroup, and while a JoinGroup is open the broker does not read a
    LeaveGroup. The other members then wait for that member until its session times out. So this function first lets the
    join finish. Then `unsubscribe` sends the LeaveGroup; librdkafka delays it while the group rebalances, and forgets
    the member id when it is sent (test_a_member_finishes_joining_and_leaves_before_it_closes,
    test_a_push_consumer_without_partitions_leaves_its_group).

    If the brokers are silent, librdkafka waits for the answer to a commit as well as to `close`: as long as the session
    time-out, and forever if connections are open but no broker answers (our measurement). Then the client stays in its
    own daemon thread and ends when it can (test_a_consumer_without_answers_stays_in_its_thread_and_closes_when_it_can).

    No other thread may be in a call of the consumer. `before_close`, for example a commit that waits for its answer, is
    called in the closing thread. `unsubscribe` is the result of `unsubscribes` for its settings, `has_joined` whether
    its first rebalance is over. An error that `before_close` or `close` raised within the time is raised; the consumer
    is closed nevertheless. There is no limit of time if the system has no thread left for this.
    """
    problems: list[BaseException] = []
    spoken = threading.Event()
    until_s = time.monotonic() + longest_s

    def speak() -> None:
        before_close()
        spoken.set()

    def end() -> None:
        for call in (speak, *([leave] if unsubscribe else []), consumer.close):
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                problems.append(error)

    def leave() -> None:
        _leave_group(consumer, has_joined, until_s)

    thread = threading.Thread(target=end, name="rocketshim-leaving", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the system has no thread left; or Python 3.12.1 runs the functions of `atexit`
        end()
    else:
        thread.join(longest_s)
    if problems:
        raise problems[0]
    if not thread.is_alive():
        return Parting.LEFT
    return Parting.STAYED if spoken.is_set() else Parting.SILENT


def _leave_group(consumer: ConsumerClient, has_joined: Callable[[], bool], until_s: float) -> None:
    def poll_until(is_done: Callable[[], bool]) -> None:
        while not is_done() and time.monotonic() < until_s:
            consumer.poll(0)
            time.sleep(_LEAVING_TURN_S)

    poll_until(has_joined)
    consumer.unsubscribe()
    poll_until(lambda: not consumer.memberid())

# ruff: noqa: D102 - these are confluent_kafka's methods, documented there; what we rely on stands below
"""The part of confluent_kafka that the shells use, as two Protocols.

Every shell takes objects of these shapes as arguments (through a factory, since a Kafka client belongs to the thread
and process that made it). Two things have the shape: `confluent_kafka.Consumer` / `Producer` themselves, with no
adapter between, and the in-memory Kafka of `rocketshim.testing`. A method that is not here is not used by a shell.

Names, argument forms, return values and errors are confluent_kafka's (2.15 and later); in particular

* `error()` of a message comes first, always; a message with an empty value is *false*, so test `is not None`;
* `headers()` is None where there are none;
* `consume(n, timeout)` waits for n messages or the whole timeout: the shells call `poll(t)` and then `consume(n, 0)`;
* errors are `confluent_kafka.KafkaException` with a `KafkaError` inside.
"""

import logging
import math
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, Protocol, TypeVar, overload

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from rocketshim.errors import BrokerUnavailableError, ConfigError

__all__ = [
    "AdminFactory",
    "Clients",
    "ConsumerClient",
    "ConsumerFactory",
    "DeliveryCallback",
    "KafkaMessage",
    "LastClientError",
    "LookupClient",
    "Parting",
    "ProducerClient",
    "ProducerFactory",
    "close_consumer",
    "close_producer",
    "confluent_admin",
    "confluent_clients",
    "explained",
    "poll_callbacks",
    "purge_producer",
    "unsubscribes",
    "with_log",
]


_Client = TypeVar("_Client")

_LEAVING_TURN_S: Final = 0.01
_LOG = logging.getLogger("rocketshim.client")
_LOG.addHandler(logging.NullHandler())  # else Python prints warnings to stderr where a program has not set up logging
_LINES: Final = 10
_LINES_S: Final = 10.0
_FAILING: Final = frozenset({"FAIL", "ERROR"})
_THREAD: Final = re.compile(r"^\[thrd:[^\]]*\]: ")
_IDLE: Final = re.compile(r"Disconnected.*\(after [0-9]{4,}ms in state UP")  # brokers close what is idle
_ADDRESS: Final = re.compile(r"(?:(ssl|sasl_ssl|sasl_plaintext)://)?([\w.\[\]:-]+:[0-9]+)/")
_NO_TLS: Final = re.compile(
    r"PLAINTEXT broker listener|wrong version number|unknown protocol|packet length too long"
    r"|Disconnected.*in state SSL_HANDSHAKE"
)
_CLOSED_EARLY: Final = re.compile(r"Disconnected.*\(after [0-9]{1,3}ms in state (APIVERSION_QUERY|AUTH_\w+|UP)")

# `close` of a producer whose transaction was fenced warns of an abort that cannot succeed any more.
warnings.filterwarnings(
    "ignore", message="Producer abort_transaction failed during close", module=r"rocketshim\.kafka\.clients$"
)


class KafkaMessage(Protocol):
    """A record as a Kafka client hands it out (`confluent_kafka.Message`)."""

    def error(self) -> KafkaError | None: ...
    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def key(self) -> Any: ...
    def value(self) -> Any: ...
    def headers(self) -> Any: ...
    def set_headers(self, headers: Any) -> None: ...
    def timestamp(self) -> tuple[int, int]: ...


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
    """The questions about topics and offsets that a consumer answers from the brokers it reads from."""

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float = ...) -> Any: ...
    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float = ...) -> list[TopicPartition]: ...
    def list_topics(self, topic: Any = ..., timeout: float = ...) -> Any: ...


class ProducerClient(Protocol):
    """The producer calls that the shells make. `produce` may be called from any thread, the rest from the owner."""

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
"""Makes a consumer from librdkafka settings; called in the thread that will own it."""

ProducerFactory = Callable[[dict[str, Any]], ProducerClient]
"""Makes a producer from librdkafka settings."""

AdminFactory = Callable[[dict[str, Any]], Any]
"""Makes a `confluent_kafka.admin.AdminClient` from librdkafka settings."""


@dataclass(frozen=True, slots=True)
class Clients:
    """Where a shell gets its Kafka clients from.

    Attributes:
        consumer: makes a consumer.
        producer: makes a producer.
        admin: makes an admin client, with which topics are created; None: nothing is ever created (the in-memory Kafka
            of `rocketshim.testing` has no admin client).
    """

    consumer: ConsumerFactory
    producer: ProducerFactory
    admin: AdminFactory | None = None


class LastClientError:
    """What a Kafka client says of itself: its log lines go to `logging`, the last complaint into the texts of errors.

    librdkafka would write its lines to stderr, up to twenty a second while no broker answers. Here they go to the
    logger `rocketshim.client`, at most ten in ten seconds for each client; a line says how many were left out before.

    Args:
        monotonic: clock for that bound, in seconds.

    Attributes:
        settings: defaults that the client is made with.

    Thread-safety: confluent_kafka calls it in the thread that polls the client; `text` without a client in any thread.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.settings: dict[str, Any] = {"logger": self, "error_cb": self._hear_error}
        self._monotonic = monotonic
        self._last = ""
        self._heard_s = -math.inf
        self._since_s = -math.inf
        self._logged_count = self._left_out_count = 0

    def log(self, level: int, text: str, *args: Any) -> None:
        """Take one line; the interface of `logging.Logger`, as far as confluent_kafka uses it.

        What a handler or filter of the program raises goes no further: it would come out of the client's `poll`.
        """
        facility, client, words = args if len(args) == 3 else ("", "", text % args)
        words = _THREAD.sub("", words)
        if facility in _FAILING and not _IDLE.search(words):
            self._hear(words)
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
        """Return the last complaint and its likely cause, to be put behind an error's text; `""`: there was none.

        Args:
            client: the client, to be polled for what it has not said yet; None: somebody else polls it.
            since_s: leave out a complaint that is older, on the monotonic clock.
        """
        if client is not None:
            client.poll(0.0)
        if not self._last or self._heard_s < since_s:
            return ""
        cause = _likely_cause(self._last)
        return f" ({cause}Kafka's client says: {self._last})"

    def _hear_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - no public spelling
            self._hear(error.str())

    def _hear(self, words: str) -> None:
        self._last = words
        self._heard_s = self._monotonic()


@contextmanager
def explained(complaints: LastClientError, client: Any) -> Iterator[None]:
    """Add to a `BrokerUnavailableError` what the client that was asked says of its connections."""
    try:
        yield
    except BrokerUnavailableError as error:
        said = complaints.text(client)
        if not said:
            raise
        raise BrokerUnavailableError(f"{error}{said}") from error


def _likely_cause(words: str) -> str:
    """Return what most often makes a client say this of a connection, as the beginning of a sentence; `""`: unknown."""
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


def confluent_clients() -> Clients:
    """confluent_kafka's own clients. Settings that they do not take are a `ConfigError`, which shows no value."""
    from confluent_kafka import Consumer, Producer  # noqa: PLC0415 - a Kafka client is loaded when one is needed
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    return Clients(consumer=_checked(Consumer), producer=_checked(Producer), admin=_checked(AdminClient))


def confluent_admin(settings: dict[str, Any]) -> Any:
    """An admin client of confluent_kafka's, for what is administered and nothing else; errors as above."""
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    return _checked(AdminClient)(settings)


def with_log(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings of a client whose lines go to `logging` (`LastClientError`), unless these settings name a logger.

    Where they ask for librdkafka's debug lines, all lines go to stderr, as librdkafka writes them.
    """
    if "debug" in settings:
        return {name: value for name, value in settings.items() if not isinstance(value, LastClientError)}
    return settings if "logger" in settings else {**settings, "logger": LastClientError()}


def _checked(make: Callable[[dict[str, Any]], _Client]) -> Callable[[dict[str, Any]], _Client]:
    def made(settings: dict[str, Any]) -> _Client:
        try:
            return make(with_log(settings))
        except KafkaException as error:
            raise ConfigError(f"Kafka's client does not take these settings: {error.args[0].str()}") from error

    return made


def poll_callbacks(producer: ProducerClient, timeout_s: float = 0.0) -> KafkaError | None:
    """Let a producer call its callbacks; the fatal error that it came upon, once, or None.

    confluent_kafka raises a fatal error out of whichever `poll` or `flush` comes next, `error_cb` or not.
    """
    try:
        producer.poll(timeout_s)
    except KafkaException as problem:
        error: KafkaError = problem.args[0]
        return error
    return None


def purge_producer(producer: ProducerClient, longest_s: float) -> None:
    """Give up what a producer holds; the reports of it are served."""
    producer.purge()
    for _ in range(2):  # a fatal error comes out of the first call
        try:
            producer.flush(longest_s)
        except KafkaException:
            continue
        return


def close_producer(producer: ProducerClient, longest_s: float) -> None:
    """Give up what a producer holds, and let its threads and connections go, whoever still refers to it.

    For its owner: nobody else may be in a call of it. The last reference may be out of reach: confluent_kafka keeps
    what `commit_transaction` raised, and with it the frames that the error has passed (our measurement, 2.16.1).

    Args:
        producer: not closed yet.
        longest_s: how long its reports are waited for, in seconds; if some are not in by then it ends with its last
            reference, since `close` would wait for them.
    """
    purge_producer(producer, longest_s)
    if len(producer) == 0:
        # After a fatal error, which was said before, `close` warns; where warnings are errors that is a SystemError.
        with suppress(KafkaException, SystemError):
            producer.close()


class Parting(Enum):
    """How far a consumer came within the time it had to leave its group."""

    LEFT = "left"
    STAYED = "its last words were answered, but the group may still count it as a member"
    SILENT = "its last words were not answered"


def unsubscribes(client: Mapping[str, Any]) -> bool:
    """Whether a consumer with these settings has to unsubscribe before it is closed; see `close_consumer`.

    Not with KIP-848, whose close leaves the group at once, and not as a static member, which must stay in the group.
    """
    return str(client.get("group.protocol", "classic")).lower() != "consumer" and not client.get("group.instance.id")


def close_consumer(
    consumer: ConsumerClient,
    longest_s: float,
    before_close: Callable[[], object] = lambda: None,
    *,
    unsubscribe: bool = False,
    has_joined: Callable[[], bool] = lambda: True,
) -> Parting:
    """Leave the group and close a consumer; return how far that came within the time.

    In the classic protocol `close` alone does not always leave (our measurement, librdkafka 2.16.1): a cooperative
    member without partitions sends no LeaveGroup, and behind a JoinGroup under way the broker does not read one. The
    others then wait for that member until its session times out. So the join is finished, and `unsubscribe` sends the
    LeaveGroup: librdkafka holds it back while the group rebalances, and forgets the member id when it is sent.

    Where the brokers are silent librdkafka waits, for the answer to a commit as well as to close: for as long as the
    session time-out, and for ever where connections stand and nobody answers (our measurement). Then the client is left
    behind in a daemon thread of its own, and ends when it can.

    Args:
        consumer: nobody else is in a call of it; not to be used afterwards.
        longest_s: how long to wait, in seconds.
        before_close: a commit that waits for its answer, say; called before it closes, in that thread.
        unsubscribe: leave explicitly before closing; what `unsubscribes` says of its settings.
        has_joined: whether its first rebalance is over; until then a member that leaves would hold up the others.

    Raises:
        What `before_close` or `close` raised within the time; the consumer is closed all the same.
    """
    problems: list[BaseException] = []
    spoken = threading.Event()
    until_s = time.monotonic() + longest_s

    def speak() -> None:
        before_close()
        spoken.set()

    def end() -> None:
        for call in (speak, *([give_up] if unsubscribe else []), consumer.close):
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                problems.append(error)

    def give_up() -> None:
        _give_up_membership(consumer, has_joined, until_s)

    thread = threading.Thread(target=end, name="rocketshim-leaving", daemon=True)
    thread.start()
    thread.join(longest_s)
    if problems:
        raise problems[0]
    if not thread.is_alive():
        return Parting.LEFT
    return Parting.STAYED if spoken.is_set() else Parting.SILENT


def _give_up_membership(consumer: ConsumerClient, has_joined: Callable[[], bool], until_s: float) -> None:
    def poll_until(is_done: Callable[[], bool]) -> None:
        while not is_done() and time.monotonic() < until_s:
            consumer.poll(0)
            time.sleep(_LEAVING_TURN_S)

    poll_until(has_joined)
    consumer.unsubscribe()
    poll_until(lambda: not consumer.memberid())

"""Transactional messages: a message is delivered if and only if a local transaction has committed.

::

    def is_paid(message: MessageView) -> LocalTransactionState:
        return COMMIT_MESSAGE if database.has(message.msg_id) else ROLLBACK_MESSAGE

    with TransactionMQProducer("localhost:9092", group="shop", listener=is_paid) as producer:
        with producer.transaction("orders", b"o-7 is paid") as transaction:
            database.insert(transaction.msg_id, …)  # and commit

The *half message* is stored before the local transaction begins, under its id as name (`core.named_timers`). COMMIT has
it delivered, ROLLBACK drops it. If neither comes, since the process died or did not know, the worker asks: it writes a
check to `rmq.check.<group>`, and any running producer of the group calls its listener for it. An answer is a COMMIT or
a ROLLBACK like any other, and the first one in the log counts. If the last check brings none either, the half message
is parked (GIVE_UP in `core.named_timers`, performed by `worker.timer_router`).

Threads: the caller's, and one that reads checks and calls the listener. Checks are read by a consumer group of their
own; one that is lost is asked again.

Source: `TransactionMQProducer`, `TransactionListener` and `LocalTransactionState` of RocketMQ.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from types import TracebackType
from typing import Any, Final, Protocol, Self, Unpack, overload
from weakref import WeakValueDictionary

from confluent_kafka import Message as Record

from rocketshim.codecs import Codec
from rocketshim.consumer.pull.lite_pull_consumer import LitePullConsumer
from rocketshim.core.clock import Clock
from rocketshim.core.start_position import ConsumeFromWhere
from rocketshim.core.user_values import call_problem
from rocketshim.errors import (
    ClosedError,
    ConfigError,
    MalformedRecordError,
    MessageError,
    RocketshimError,
    SendTimeoutError,
    TopicMissingError,
)
from rocketshim.kafka.client_config import for_reading
from rocketshim.kafka.clients import (
    Clients,
    LastClientError,
    answer_time_s,
    brokers_assign,
    confluent_clients,
    explained,
)
from rocketshim.logs import safe_logger
from rocketshim.producer.arguments import NO_BODY, Half, MessageOptions, check_timeout, is_delayed
from rocketshim.producer.producer import Producer
from rocketshim.producer.result import SendResult
from rocketshim.settings.consumer import LitePullConsumerSettings
from rocketshim.settings.producer import ProducerOptions, ProducerSettings
from rocketshim_topics.durations import Duration, parse_duration_ms
from rocketshim_topics.hops import source_record
from rocketshim_topics.layout import Layout
from rocketshim_topics.message import Message, MessageView
from rocketshim_topics.names import TopicNames, check_group
from rocketshim_topics.provision import ensure_topics
from rocketshim_topics.wire import coordinates

__all__ = ["LocalTransactionState", "Transaction", "TransactionListener", "TransactionMQProducer"]

_LOG = safe_logger("rocketshim.producer")
_AGAIN_S: Final = 5.0
_ANSWER_S: Final = 3.0
_LEAVE_S: Final = 10.0
_SESSION_MS: Final = 10_000  # a program that died and starts again answers after this time; Kafka's default is 45 s
_SHORTEST_MS: Final = 1_000
_CHECK_AFTER_S: Final = 6.0  # RocketMQ: transactionTimeOut


class LocalTransactionState(Enum):
    """What became of a local transaction. `UNKNOWN` is not known yet: the worker asks again."""

    COMMIT_MESSAGE = "COMMIT_MESSAGE"
    ROLLBACK_MESSAGE = "ROLLBACK_MESSAGE"
    UNKNOWN = "UNKNOWN"


class TransactionListener(Protocol):
    """What a `TransactionMQProducer` asks. A function of one message stands for `check_local_transaction` alone."""

    def execute_local_transaction(self, message: MessageView, arg: Any) -> LocalTransactionState:
        """Perform the local transaction of `send_message_in_transaction`, and return what became of it.

        The thread that sends calls it, after the half message is stored: `message.msg_id` is the id of the transaction,
        as in the check. If it raises, the outcome is unknown.
        """

    def check_local_transaction(self, message: MessageView) -> LocalTransactionState:
        """Return what became of the local transaction of a message, by its id (`msg_id`) or its body.

        The thread for checks calls it, one message at a time, of this producer or of another one of its group, perhaps
        more than once. If it raises, the outcome is unknown, and the worker asks again after 30 s.
        """


class Transaction:
    """A transaction whose half message is stored. As a context manager it commits at the end of the block.

    If the block raises, the outcome is unknown, and the check decides: an error of a database's commit does not tell
    whether it has committed. Call `rollback` where the local transaction certainly has not.

    Attributes:
        send_result: where the half message is stored.
        state: what this object has sent; `UNKNOWN`: nothing.

    Thread-safety: one thread at a time.
    """

    send_result: SendResult
    state: LocalTransactionState

    def __init__(
        self, producer: "TransactionMQProducer", half: Half, running: MutableMapping[str, "Transaction"]
    ) -> None:
        self.state = LocalTransactionState.UNKNOWN
        self._producer, self.half, self._running = producer, half, running
        running[half.msg_id] = self

    @property
    def msg_id(self) -> str:
        """The id of the message and of the transaction: store it with the local transaction, and look for it there."""
        return self.half.msg_id

    def commit(self, *, timeout_s: float = 3.0) -> None:
        """Have the message delivered: wait until the COMMIT is stored. It may be repeated.

        Raises:
            MessageError: `rollback` was called before; nothing was sent.
            SendTimeoutError, SendError: the COMMIT is not stored, or that is not known. The check decides then, so the
                message still comes if the local transaction has committed.
        """
        self._end(LocalTransactionState.COMMIT_MESSAGE, timeout_s)

    def rollback(self, *, timeout_s: float = 3.0) -> None:
        """Drop the message: wait until the ROLLBACK is stored. It may be repeated. The errors are as of `commit`."""
        self._end(LocalTransactionState.ROLLBACK_MESSAGE, timeout_s)

    def _end(self, state: LocalTransactionState, timeout_s: float) -> None:
        check_timeout(timeout_s)
        if self.state not in {state, LocalTransactionState.UNKNOWN}:
            raise MessageError(f"transaction {self.msg_id}: {self.state.name} was sent before; {state.name} was not")
        self.state = state
        self._running.pop(self.msg_id, None)
        _end(self._producer, state, self.half.message.topic, self.msg_id, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self.state is LocalTransactionState.UNKNOWN:
            with _logged(self.msg_id, LocalTransactionState.COMMIT_MESSAGE):
                self.commit()
        self._running.pop(self.msg_id, None)  # from now on the listener is asked


class TransactionMQProducer(Producer):
    """A producer of messages that are delivered if and only if a local transaction has committed.

    Args:
        bootstrap: as of `Producer`.
        group: the producer group. All producers of a group can answer for each other's transactions: their listeners
            look into the same database. Its topic is created, if that is allowed; else: `rocketshim init
            --producer-group GROUP`.
        listener: an object with the methods of `TransactionListener`, or a function of a `MessageView` that returns a
            `LocalTransactionState`.
        settings, clients, clock, codec, values: as of `Producer`.

    Raises:
        ConfigError: as `Producer`; or the group or the listener is not legal.

    Thread-safety: as `Producer`; `start` and `close` belong to one thread. The listener is called in a thread of its
        own, and for `send_message_in_transaction` in the one that sends.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        group: str,
        listener: TransactionListener | Callable[[MessageView], LocalTransactionState],
        settings: ProducerSettings | None = None,
        clients: Clients | None = None,
        clock: Clock | None = None,
        codec: Codec[Any] | None = None,
        **values: Unpack[ProducerOptions],
    ) -> None:
        check: Any = getattr(listener, "check_local_transaction", listener)
        execute: Any = getattr(listener, "execute_local_transaction", None)
        problem = call_problem(check, 1) or (execute is not None and call_problem(execute, 2))
        if problem:
            raise ConfigError(f"listener={listener!r:.80}: {problem}; give a function of a message, or a listener")
        super().__init__(bootstrap, settings=settings, clients=clients, clock=clock, codec=codec, **values)
        self.group = check_group(group)
        self._execute = execute
        self._running: WeakValueDictionary[str, Transaction] = WeakValueDictionary()
        self._checks = _Checks(self, check, clients, self._running)

    def start(self) -> None:
        """Begin to answer checks. The first transaction and `with` do it, too. It may be called twice.

        A program calls it when it starts, so that transactions which its predecessor has left are ended.

        Raises:
            TopicMissingError: the topic of the group's checks does not exist, and may not be created.
            NotAuthorizedError, BrokerUnavailableError: it cannot be read. Nothing was started.
        """
        self._checks.start()

    @overload
    def transaction(
        self, message: Message, *, check_after: Duration | None = None, timeout_s: float = 3.0
    ) -> Transaction: ...
    @overload
    def transaction(
        self,
        topic: str,
        /,
        body: object,
        *,
        codec: Codec[Any] | None = None,
        check_after: Duration | None = None,
        timeout_s: float = 3.0,
        **options: Unpack[MessageOptions],
    ) -> Transaction: ...
    def transaction(
        self,
        message: Message | str,
        body: Any = NO_BODY,
        *,
        codec: Codec[Any] | None = None,
        check_after: Duration | None = None,
        timeout_s: float = 3.0,
        **options: Unpack[MessageOptions],
    ) -> Transaction:
        """Store a half message, and return its transaction.

        Args:
            message: as of `send`, and so are body, codec, options and timeout_s. It has no delay and no name.
            body: see `send`.
            codec: see `send`.
            timeout_s: see `send`.
            options: see `send`.
            check_after: when the worker asks for the outcome, if it does not have it: `"6s"`, seconds or a timedelta, 1
                s or more, counted from the send. Then it asks each 30 s, 15 times. This producer does not answer while
                its transaction runs, but another one of the group may: see there. None: 6 s, or twice `timeout_s`, if
                that is longer.

        Raises:
            All that `send` and `start` raise. No half message is stored then, or, after `SendTimeoutError`, perhaps one
            that the check ends. That is also raised if half of `check_after` has passed: there is too little time left.
        """
        wait_s = check_timeout(timeout_s)
        made = self.sender.message(message, body, codec, options)
        others = ("timer", "recallable", "cron", "every")
        if is_delayed(made) or any(getattr(made, name) for name in others) or made.body is None:
            raise MessageError(
                "a message in a transaction has a body, and no delay and no name: it is delivered by the commit"
            )
        check_s = _check_after_s(check_after, min(wait_s, self.settings.delivery_timeout_ms / 1_000))
        self.start()
        half = Half(self.group, self.sender.new_id(), made)
        transaction = Transaction(self, half, self._running)
        began_s = time.monotonic()
        try:
            waiting = replace(made, delay=check_s, delay_level=None, deliver_at=None)
            future = self.sender.send(waiting, None, None, began_s + wait_s, half)
            transaction.send_result = self._stored(future, repr(made.topic), timeout_s, began_s + wait_s)
        except BaseException:
            self._running.pop(half.msg_id, None)
            raise
        took_s = time.monotonic() - began_s
        if took_s > check_s / 2:
            with _logged(half.msg_id, LocalTransactionState.ROLLBACK_MESSAGE):
                transaction.rollback()
            raise SendTimeoutError(
                f"the half message for {made.topic!r} was stored after {took_s:.1f} s, and the outcome is asked for "
                f"after {check_s:g} s (check_after): too late to begin. It is rolled back"
            )
        return transaction

    def send_message_in_transaction(
        self, message: Message, arg: Any = None, *, check_after: Duration | None = None, timeout_s: float = 3.0
    ) -> Transaction:
        """Store a half message, call the listener's `execute_local_transaction`, and send what it returns.

        The transaction that is returned has that as `state`, and where the half message is stored as `send_result`.

        An error of the listener is logged, and the outcome is unknown: the check decides. So it is if COMMIT or
        ROLLBACK cannot be stored.

        Raises:
            MessageError: also if the listener is a function: use `transaction`.
            All that `transaction` raises; the listener was not called.

        Source: `TransactionMQProducer#sendMessageInTransaction` of RocketMQ.
        """
        execute = self._execute
        if execute is None:
            raise MessageError("the listener has no execute_local_transaction: give it one, or use transaction()")
        transaction = self.transaction(message, check_after=check_after, timeout_s=timeout_s)
        view = _half_message(transaction, self.names)
        try:
            state = _state_of(lambda: execute(view, arg), transaction.msg_id)
        finally:
            self._running.pop(transaction.msg_id, None)  # from now on the listener is asked
        with _logged(transaction.msg_id, state):
            if state is LocalTransactionState.COMMIT_MESSAGE:
                transaction.commit()
            elif state is LocalTransactionState.ROLLBACK_MESSAGE:
                transaction.rollback()
        return transaction

    def close(self, timeout_s: float = 30.0) -> None:
        """Stop to answer checks, then close as `Producer`. Another producer of the group answers from now on.

        A listener that is being called has 10 s to return.
        """
        try:
            self._checks.close()
        finally:
            super().close(timeout_s)

    def __enter__(self) -> Self:
        self.start()
        return self


def _state_of(ask: Callable[[], Any], msg_id: str) -> LocalTransactionState:
    """Return the answer of user code; `UNKNOWN` if it raises, or is none."""
    try:
        state = ask()
        if not isinstance(state, LocalTransactionState):
            raise TypeError(f"{state!r:.80} is no LocalTransactionState")  # noqa: TRY301 - as what user code raises
    except Exception:  # noqa: BLE001 - user code
        _LOG.exception("producer.transaction-unknown", extra={"msg_id": msg_id})
        return LocalTransactionState.UNKNOWN
    return state


def _check_after_s(given: Duration | None, wait_s: float) -> float:
    """Return when the outcome is asked for, in seconds after the send, which may take this time."""
    if given is None:
        return max(_CHECK_AFTER_S, 2 * wait_s)
    try:
        check_ms = parse_duration_ms(given)
    except ConfigError as error:
        raise MessageError(f"check_after: {error}") from error
    if check_ms < _SHORTEST_MS:
        raise MessageError(f"check_after is {given!r:.80}: give 1 s or more")
    return check_ms / 1_000


def _half_message(transaction: Transaction, names: TopicNames) -> MessageView:
    """Return a half message as a check would have it, with the offset at which it is stored."""
    born_ms, sent = time.time_ns() // 1_000_000, transaction.send_result
    made = source_record(transaction.half.message, names, uniq_key=sent.msg_id, born_ms=born_ms)
    record = Record(
        topic=made.topic,
        partition=sent.message_queue.queue_id,
        offset=sent.queue_offset,
        key=made.key,
        value=made.value,
        headers=[*made.headers],
        timestamp=(1, born_ms),
    )
    return MessageView(record, trusted=True)


def _end(producer: Producer, state: LocalTransactionState, topic: str, msg_id: str, timeout_s: float) -> None:
    """Send COMMIT or ROLLBACK, and wait until it is stored."""
    send = producer.send_now if state is LocalTransactionState.COMMIT_MESSAGE else producer.cancel
    send(topic, timer=msg_id, timeout_s=timeout_s)


@contextmanager
def _logged(msg_id: str, state: LocalTransactionState) -> Iterator[None]:
    """Log a COMMIT or ROLLBACK that is not stored, instead of raising: the check decides."""
    try:
        yield
    except (RocketshimError, BufferError) as error:
        _LOG.warning(
            "producer.transaction-not-ended", extra={"msg_id": msg_id, "state": state.name, "error": str(error)}
        )


class _Checks:
    """Reads the checks of a producer group in a thread, and answers them."""

    def __init__(
        self,
        producer: TransactionMQProducer,
        check: Callable[[MessageView], Any],
        clients: Clients | None,
        running: Mapping[str, Transaction],
    ) -> None:
        self._producer, self._check, self._clients = producer, check, clients or confluent_clients()
        self._running = running  # nobody but those who run them knows what becomes of these
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._failure: tuple[float, Exception] | None = None  # of the last start, and when
        self._consumer: LitePullConsumer | None = None
        self._thread: threading.Thread | None = None
        self.is_by_hand = False  # a test harness calls `answer`, and nothing is read

    def start(self) -> None:
        """Join the group of readers, and start the thread. Several callers share one attempt and its error."""
        asked_s = time.monotonic()
        with self._lock:
            if self._thread is not None or self.is_by_hand:
                return
            if self._failure is not None and self._failure[0] >= asked_s:
                raise self._failure[1]
            self._producer.sender.check_process()
            if self._closing.is_set():
                raise ClosedError("this producer is closed; create a new one")
            try:
                self._consumer = self._opened()
            except Exception as error:
                self._failure = time.monotonic(), error
                raise
            self._thread = threading.Thread(target=self._read, name="rocketshim-checks", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread and leave the group. A listener that does not return is left alone.

        Without the lock: a signal handler may call it in a thread that waits in `start`.
        """
        self._closing.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_LEAVE_S)

    def _opened(self) -> LitePullConsumer:
        """Return a consumer that has joined the group of readers. A missing topic is created, if that is allowed."""
        producer = self._producer
        topic, client = producer.names.check(producer.group), for_reading(producer.settings.client)
        if not brokers_assign(client):
            client = {"session.timeout.ms": _SESSION_MS, **client}
        settings = LitePullConsumerSettings.make(
            bootstrap=producer.settings.bootstrap,
            namespace=producer.settings.namespace,
            client=client,
            allow_code_settings=producer.settings.allow_code_settings,
            group=topic,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        )
        for is_created in (False, True):
            consumer = LitePullConsumer(settings=settings, clients=self._clients)
            consumer.subscribe(topic)
            try:
                consumer.start()
            except TopicMissingError:
                if is_created or self._clients.admin is None:
                    raise
                self._create(self._clients.admin)
            else:
                break
        return consumer

    def _create(self, make_admin: Callable[..., Any]) -> None:
        producer, last_error = self._producer, LastClientError()
        admin = make_admin(producer.settings.client_config({}, last_error.settings))
        layout = Layout(producer.names, producer.settings.delay_levels)
        with explained(last_error, admin):
            ensure_topics(admin, [layout.check(producer.group)], timeout_s=answer_time_s(admin, last_error))

    def _read(self) -> None:
        while not self._closing.is_set():
            try:
                if self._consumer is None:
                    self._consumer = self._opened()
                for view in self._consumer.poll(100):
                    if self._closing.is_set():
                        break
                    self.answer(view)
            except Exception as error:  # noqa: BLE001 - nothing may end this thread
                if self._consumer is not None and not self._consumer.is_running:
                    return  # the program ends
                _LOG.warning("producer.checks-unread", extra={"group": self._producer.group, "error": str(error)})
                self._leave()
                self._closing.wait(_AGAIN_S)
        self._leave()

    def _leave(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            try:
                consumer.stop()
            except Exception as error:  # noqa: BLE001 - likewise
                _LOG.warning("producer.checks-unread", extra={"group": self._producer.group, "error": str(error)})

    def answer(self, view: MessageView) -> None:
        """Ask the listener, and send its answer. If that is not stored, the worker asks again."""
        try:
            topic, msg_id = view.topic, view.msg_id
        except MalformedRecordError as error:
            _LOG.warning("producer.check-malformed", extra={"record": coordinates(view.record), "error": str(error)})
            return
        if msg_id in self._running:
            return
        try:
            state = _state_of(lambda: self._check(view), msg_id)
        except BaseException:  # noqa: BLE001 - sys.exit of a listener ends neither this thread nor its membership
            _LOG.exception("producer.transaction-unknown", extra={"msg_id": msg_id})
            return
        if state is LocalTransactionState.UNKNOWN:
            return
        with _logged(msg_id, state):
            _end(self._producer, state, topic, msg_id, _ANSWER_S)

"""What both pull consumers share: start, stop, one calling thread at a time, and their clients."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import KafkaException

from rocketshim.at_exit import at_exit
from rocketshim.client_metrics import PullCounts
from rocketshim.clock import SystemClock
from rocketshim.core.clock import Clock, now_ms_of
from rocketshim.errors import ConfigError, ConsumerError
from rocketshim.kafka.client_config import CONSUMER_DEFAULTS, PROTECTED_CONSUMER
from rocketshim.kafka.clients import (
    Clients,
    ConsumerClient,
    LastClientError,
    check_threads,
    confluent_admin,
    confluent_clients,
)
from rocketshim.kafka.membership import GroupQuestion
from rocketshim.settings.consumer import LitePullConsumerSettings, PullConsumerSettings

__all__ = ["PullSession"]

_LEAVE_S: Final = 10.0


class PullSession:
    """The start, the calls and the end of one pull consumer; `close` closes its clients, once.

    Thread-safety: any thread; `stop` also in a signal handler.
    """

    def __init__(
        self,
        settings: LitePullConsumerSettings | PullConsumerSettings,
        clients: Clients | None,
        clock: Clock | None,
        close: Callable[[], None],
    ) -> None:
        check_threads()
        self.is_open = False
        self.stopping = False  # no event, because a signal handler sets it
        self.leave_s = _LEAVE_S  # how long `close` may take to leave the group
        # a consumer that is a member of no group keeps nobody waiting, so the exit of the interpreter ignores it
        self.exit_timeout_ms = settings.exit_timeout_ms if isinstance(settings, LitePullConsumerSettings) else 0
        self.last_error = LastClientError()
        self.counts = PullCounts()
        self.clock = clock or SystemClock()
        self.now_ms = now_ms_of(self.clock)
        self._settings = settings
        self._clients = clients
        self._close = close
        self._is_closed = False
        self._lock = threading.RLock()  # a signal handler may call stop() when a call has just taken it
        self._thread: int | None = None

    @contextmanager
    def call(self, messages: Collection[object] = ()) -> Iterator[None]:
        """Let one thread use the consumer, and close it if it is to stop. Raises ConsumerError for a second thread.

        It is not closed after a call that has `messages` to return: closing may raise an error.

        Decides: May a second thread use a pull consumer? No, a ConsumerError.
        """
        if self._thread is not None or not self._lock.acquire(blocking=False):
            raise ConsumerError("another call is using this consumer; only one thread at a time may use it")
        self._thread = threading.get_ident()
        try:
            self._close_if_stopping()
            yield
        finally:
            try:
                if not messages:
                    self._close_if_stopping()
            finally:
                self._thread = None
                self._lock.release()

    def start(self, open_clients: Callable[[], None]) -> None:
        """Open the clients, if they are not open. Raises ConsumerError if the consumer was stopped before."""
        with self.call():
            if self._is_closed:
                raise ConsumerError("this consumer was stopped, and a consumer runs only once: create a new one")
            if not self.is_open:
                open_clients()
                self.is_open = True
                if self.exit_timeout_ms:
                    at_exit.add_consumer(self)

    def stop(self) -> None:
        """Request the stop; wait for a call of another thread, and close the consumer.

        If a signal handler has interrupted a call of this thread, that call has to close it.
        """
        self.stopping = True
        if self._thread != threading.get_ident():
            with self._lock:
                self._close_if_stopping()

    def begin_exit(self) -> None:
        """Request the stop, since the interpreter exits and the program has not called `stop`; see `at_exit`."""
        self.stopping = True

    def finish_exit(self, until_s: float) -> int:
        """Close the consumer until a monotonic time in seconds; return 0: a consumer holds nothing that was sent.

        Raises ConsumerError: a call in another thread goes on; and what `close` raises.
        """
        self.leave_s = max(0.0, until_s - time.monotonic())
        if not self._lock.acquire(timeout=self.leave_s):
            raise ConsumerError(f"the consumer of group {self._settings.group!r} was not closed: a call goes on")
        try:
            self._close_if_stopping()
        finally:
            self._lock.release()
        return 0

    def _close_if_stopping(self) -> None:
        self._is_closed = self._is_closed or self.stopping
        if self._is_closed and self.is_open:
            self.is_open = False
            self._close()

    def check_open(self) -> None:
        """Raise ConsumerError if the consumer is not running."""
        if not self.is_open:
            raise ConsumerError(f"the consumer is {'stopped' if self._is_closed else 'not started'}")

    def make_client(self, required: Mapping[str, Any], defaults: Mapping[str, Any]) -> ConsumerClient:
        """Make a Kafka consumer. Raises ConfigError if Kafka's client rejects a setting."""
        settings = self._settings
        config = settings.client_config(
            {**PROTECTED_CONSUMER, "group.id": settings.group, **required},
            {**CONSUMER_DEFAULTS, **self.last_error.settings, **defaults},
        )
        try:
            return (self._clients or confluent_clients()).consumer(config)
        except (KafkaException, ValueError, TypeError) as error:
            raise ConfigError(f"Kafka's client rejects its settings: {error}") from error

    def group_question(self) -> GroupQuestion | None:
        """Make what asks the coordinator about the group; None: there is no admin client."""
        make = confluent_admin if self._clients is None else self._clients.admin
        settings = self._settings.client_config({}, LastClientError().settings)
        return make and GroupQuestion(make, settings, self._settings.group)

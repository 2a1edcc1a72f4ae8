"""The group-log thread: it alone reads and writes a group's log, and publishes the leases of this process.

How to use it::

    log = GroupLogThread(...)                    # clients are made in its own thread
    log.start()
    log.want({MessageQueue("orders", queue_id=0)})       # all queues that this process wants, again at each change
    lease = log.leases.get()                     # granted; and once more when it is stopped (`lease.stopped`)
    ...                                          # lease.holds(now_ms) before each listener call and each commit
    log.progress(lease, next_offset, counts)     # now and then: renewals carry it to the next owner
    log.commanded.get()                          # what a person wants done with a message of a lease
    log.release(lease, next_offset, counts)      # it was stopped, drained and committed, so the lock may be free
    log.stop(5.0)                                # releases what is released in time, and leaves

Any thread may call every method. Only `start` and `stop` wait. A lease comes twice, when it is granted and when it is
stopped, before the next lease of its queue; the caller answers it by `release`. In a rebalance the caller has already
stopped, drained and committed. It may then call `want` with fewer queues and `release` one directly after the other:
only the order of the calls matters (test_a_queue_drained_before_its_stop_event_is_released_immediately).

`rocketshim.locks` has the rules, `fold` and `holder` decide. This module acts:

* One iteration accepts commands, reads and folds new records, asks the holder what is due, and appends it. While a
  record of this process is on its way, the thread waits in the consumer, else in the queue of commands: 20 ms at most
  while it waits for a lock, which another member may release, else 100 ms.
* Members with another allocation strategy allocate queues unfairly, but not unsafely: they are logged.
* A log without LogAppendTime is an error, and so is a group that allocates its queues in another way. Every lease ends,
  `error` is set, and the thread ends.
* A leave is written only when everything was released. The leases of a member that does not drain in time expire.
"""

import importlib.metadata
import itertools
import math
import os
import socket
import threading
import uuid
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

from rocketshim.core.clock import Clock, Interval, now_ms_of
from rocketshim.errors import ConsumerError, TopicMismatchError
from rocketshim.kafka.client_config import PROTECTED_PRODUCER, merge
from rocketshim.kafka.clients import Clients
from rocketshim.kafka.topic_id import TopicId
from rocketshim.locks.fold import Folded, GroupLog, Owner
from rocketshim.locks.holder import Commanded, QueueLockAction, QueueLockHolder
from rocketshim.locks.lease import NO_TROUBLE, Lease, QueueLockSettings, ReconsumeCounts, StopReason, Trouble
from rocketshim.locks.log_clients import LogReader, LogWriter, log_reader_config, token_floor
from rocketshim.logs import safe_logger
from rocketshim.settings.consumer import PushConsumerSettings
from rocketshim_topics.errors import MalformedRecordError, UnknownVersionError
from rocketshim_topics.group_log import CommandRecord, GroupRecord, MemberRecord, decode_group_record
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.names import TopicNames, init_command

__all__ = ["GroupLogThread", "LockWatch", "MemberChecks", "connect_group_log", "new_client_id"]

_LOG = safe_logger("rocketshim.group")

_AT_THE_CONSUMER_S: Final = 0.005
_AWAITING_LOCK_S: Final = 0.02
_IDLE_S: Final = 0.1
_BEGIN_AGAIN_MS: Final = 1_000
_NEVER_MS: Final = 2**62
_LEAVE_S: Final = 2.0
_ANSWER_AGAIN_S: Final = 0.02
_NUMBERS: Final = itertools.count()
_SET_HERE: Final = frozenset({"linger.ms", "queue.buffering.max.ms", "delivery.timeout.ms", "message.timeout.ms"})
_CONSUMER_LOG = safe_logger("rocketshim.consumer")
_BY_KAFKA: Final = "the group protocol of Kafka"
_LOCK_PATIENCE_MS: Final = 5_000
_LOOK_MS: Final = 1_000
_MAX_LOGGED: Final = 100
_OWNED: Final = (
    "an owner that runs releases a queue when its listener call there returns. One that has ended without stop() keeps "
    "it until its lease ends (lock_lease_ms, 60 s by default), or until `rocketshim group release --owner-is-gone`"
)
_UNOWNED: Final = (
    "the group's log, as far as it was read, names no owner. This member claims the queues when it has read the log to "
    "its end, and, after the log was lost, one lease later"
)


class GroupLogThread:
    """One member's thread over its group's log. `reader` and `writer` are not open; `clock` is that of `Lease.holds`.

    Thread-safety: as described at the top of the module. Only the thread itself and tests call `open`, `turn` and
    `close`.

    Source: `RebalanceImpl#lockAll`, `RebalanceLockManager` of RocketMQ.
    """

    def __init__(
        self,
        reader: LogReader,
        writer: LogWriter,
        *,
        owner: Owner,
        settings: QueueLockSettings,
        clock: Clock,
        strategy: str | None = None,
    ) -> None:
        self.leases: SimpleQueue[Lease] = SimpleQueue()  # granted or stopped; for one reader
        self.commanded: SimpleQueue[Commanded] = SimpleQueue()  # for the same reader
        self.error: BaseException | None = None  # why the thread has ended by itself
        self.members: tuple[str, ...] = ()  # client ids of the live members, sorted
        self.owner = owner
        self._topic = reader.topic
        self._settings = settings
        self._now_ms = now_ms_of(clock)
        self._holder = QueueLockHolder(owner, settings, strategy, importlib.metadata.version("rocketshim"))
        self._reader = reader
        self._writer = writer
        self._checks = MemberChecks(owner, strategy, settings.lock_lease_ms)
        self._lock_watch = LockWatch(reader.topic, settings.lock_lease_ms)
        self._log = GroupLog(0)
        self._is_reading = False
        self._begin_at_ms = 0
        self._check_at_ms = 0
        self._wakeup_ms = 0
        self._has_changed = False  # a command came or a send failed since the last tick
        self._commands: SimpleQueue[Callable[[int], None]] = SimpleQueue()  # the thread calls them with the time in ms
        self._close_by_ms: int | None = None
        self._thread: threading.Thread | None = None

    # --- for others --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. Once only."""
        name = f"rocketshim-group-log-{self.owner.client_id}"
        thread = threading.Thread(target=self.run, name=name, daemon=True)
        thread.start()
        self._thread = thread

    def stop(self, timeout_s: float, answer: Callable[[], None] | None = None) -> bool:
        """Release everything and end the thread; return whether it ended in time. A second call does nothing.

        It may also be called before `start`. A queue that is not reported as drained and committed in time keeps its
        lease until the lease expires. `answer` is called repeatedly during the wait, to read `leases` and release them:
        a claim on its way may still be granted, and its queue is unavailable to others until it is released.
        """
        self.close_within(timeout_s)
        for _ in range(math.ceil((timeout_s + _LEAVE_S) / _ANSWER_AGAIN_S)):
            if answer is not None:
                answer()
            if self._thread is None:
                self._reader.topic_id = None  # it keeps an admin client
                return True
            self._thread.join(_ANSWER_AGAIN_S)
            if not self._thread.is_alive():
                return True
        return False

    def close_within(self, timeout_s: float) -> None:
        """Request what `stop` does, and do not wait."""
        by_ms = self._now_ms() + round(timeout_s * 1_000)

        def close(now_ms: int) -> None:
            self._close_by_ms = by_ms
            self._perform(self._holder.close(now_ms))

        self._commands.put(close)

    def want(self, queues: Collection[MessageQueue]) -> None:
        """Set all queues that this process wants from now on; stop the queues that it has and no longer wants."""
        wanted = frozenset(queues)
        self._commands.put(lambda now_ms: self._perform(self._holder.want(wanted, now_ms)))

    def progress(
        self,
        lease: Lease,
        next_offset: int | None,
        reconsume_counts: ReconsumeCounts,
        trouble: Trouble = NO_TROUBLE,
    ) -> None:
        """Report the progress of a queue; the next renewal carries it. Ignored when the lease has ended."""
        self._commands.put(lambda _: self._holder.progress(lease, next_offset, reconsume_counts, trouble))

    def release(
        self,
        lease: Lease,
        next_offset: int | None = None,
        reconsume_counts: ReconsumeCounts = (),
        trouble: Trouble = NO_TROUBLE,
    ) -> None:
        """Release the lock of a drained queue: no listener has a message of it, or gets one under this lease.

        If the lease is still valid, the position was committed before, or there was none to commit. If it has ended,
        position and counts are ignored.
        """
        lease.is_released = True
        self._commands.put(
            lambda now_ms: self._perform(self._holder.release(lease, next_offset, reconsume_counts, now_ms, trouble))
        )

    # --- the thread --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Read and write until `stop`, or until an error ends the thread; then `error` has the reason."""
        try:
            self.open()
            while not self.is_over:
                self.turn(self._wait_s())
        except BaseException as error:  # noqa: BLE001 - the top of a thread: it is kept and logged, and every lease ends
            self.error = error
            self._perform(self._holder.end_all())
            _LOG.exception("group.log-thread-failed", extra={"topic": self._topic})
        finally:
            self.close()

    def open(self) -> None:
        """Make the clients, without network calls."""
        self._writer.open()
        self._reader.open()

    @property
    def is_over(self) -> bool:
        """Return whether the thread must end: it has left the group, its time to stop is over, or it has failed."""
        if self.error is not None:
            return True
        if self._close_by_ms is None:
            return False
        left = self._holder.has_left and not self._writer.is_waiting
        has_nothing = not self._is_reading and not self._holder.has_leases
        return left or has_nothing or self._now_ms() >= self._close_by_ms

    def turn(self, wait_s: float) -> None:
        """Do one iteration; wait at most `wait_s` for a record or a command. A RocketshimError ends the thread."""
        messages = self._wait(wait_s)
        while self._commands.qsize():
            self._obey(self._commands.get())
        self._lock_watch.look(self._holder, self._log, self._now_ms())
        if not self._is_reading:
            self._begin()
            return
        now_ms = self._now_ms()
        if now_ms >= self._check_at_ms:
            heartbeat_ms = self._settings.heartbeat_every_ms
            why = self._reader.why_lost(self._log, late=now_ms >= self._check_at_ms + heartbeat_ms)
            self._check_at_ms = self._now_ms() + heartbeat_ms
            if why is not None:
                self._lost(why)
                return  # the messages belong to another log
        for message in messages:
            if message.error() is None:
                self._fold(message)
            elif (why := self._reader.why_lost_by(message.error(), now_ms)) is not None:
                self._lost(why)
                return
        self._process_reports()
        if messages or self._has_changed or self._now_ms() >= self._wakeup_ms:
            self._tick()

    def close(self) -> None:
        """End every lease, flush appended records and close the clients. A second call does nothing."""
        self._holder.end_all()
        self._writer.close()
        self._reader.close()
        while self._commands.qsize():
            self._commands.get()

    # --- reading -----------------------------------------------------------------------------------------------------

    def _wait_s(self) -> float:
        """Return how long nothing is due, in seconds."""
        until_ms = min(self._wakeup_ms, self._check_at_ms) if self._is_reading else self._begin_at_ms
        return max(0.0, (until_ms - self._now_ms()) / 1_000)

    def _obey(self, command: Callable[[int], None]) -> None:
        self._has_changed = True
        command(self._now_ms())

    def _tick(self) -> None:
        """Do what is due and note when something is due next. It visits every queue, so not every iteration does it."""
        self._has_changed = False
        self._perform(self._holder.tick(self._log, self._now_ms()))
        wakeup_ms = self._holder.next_wakeup_ms(self._log)
        self._wakeup_ms = _NEVER_MS if wakeup_ms is None else wakeup_ms

    def _wait(self, wait_s: float) -> list[Any]:
        if self._writer.is_waiting and self._is_reading:
            return self._reader.read(min(wait_s, _AT_THE_CONSUMER_S))
        if wait_s > 0:
            longest_s = _AWAITING_LOCK_S if self._holder.is_waiting else _IDLE_S
            with suppress(Empty):
                self._obey(self._commands.get(timeout=min(wait_s, longest_s)))
        return self._reader.read(0) if self._is_reading else []

    def _begin(self) -> None:
        """Begin a fold at the log's first record; if the cluster does not answer, try again later."""
        now_ms = self._now_ms()
        if now_ms < self._begin_at_ms:
            return
        self._begin_at_ms = now_ms + _BEGIN_AGAIN_MS
        beginning = self._reader.begin()
        if beginning is None:
            return
        low, high, floor = beginning
        self._log = GroupLog(low)
        self._is_reading = True
        self._check_at_ms = self._now_ms() + self._settings.heartbeat_every_ms
        self._perform(self._holder.begin(high, self._now_ms(), floor))
        self._tick()

    def _fold(self, message: Any) -> None:
        kind, append_ms = message.timestamp()
        if kind != TIMESTAMP_LOG_APPEND_TIME:
            raise TopicMismatchError(
                f"a record of {self._topic} has CreateTime: append times measure leases. Set "
                "message.timestamp.type=LogAppendTime, or delete the topic while no member runs: "
                f"{init_command(self._topic, '--fix')}. If it is set, the brokers do not obey it, and cannot be used: "
                "rocketshim doctor --probe"
            )
        offset = message.offset()
        try:
            record = decode_group_record(message.value())
        except UnknownVersionError as error:
            _LOG.error("group.log-unreadable", extra={"topic": self._topic, "offset": offset, "error": str(error)})
            self._observe(self._log.unreadable(offset, append_ms))
        except MalformedRecordError as error:
            _LOG.warning("group.record-void", extra={"topic": self._topic, "offset": offset, "error": str(error)})
            self._observe(self._log.skip(offset, append_ms))
        else:
            if isinstance(record, CommandRecord):
                self._observe(self._log.skip(offset, append_ms))
                self._perform(self._holder.command(record, self._now_ms()))
                return
            self._checks.check_lease(record)
            self._checks.check_client_id(record)
            self._observe(self._log.fold(offset, append_ms, record))

    def _observe(self, folded: Folded) -> None:
        if folded.owner == self.owner and folded.seq is not None:
            self._writer.was_read(folded.seq)
        if folded.has_restarted:
            _LOG.warning("group.log-began-anew", extra={"topic": self._topic, "offset": folded.offset})
        self._perform(self._holder.observe(folded, self._now_ms()))
        if folded.members_changed:
            self._checks.check_strategies(self._log)
            self.members = self._log.client_ids

    # --- a lost log --------------------------------------------------------------------------------------------------

    def _lost(self, why: str) -> None:
        _LOG.error("group.log-lost", extra={"topic": self._topic, "why": why})
        self._is_reading = False
        self._begin_at_ms = 0
        self._perform(self._holder.log_lost(self._log.token_floor, self._now_ms()))
        self._writer.forget_sent()

    # --- acting ------------------------------------------------------------------------------------------------------

    def _perform(self, actions: Iterable[QueueLockAction]) -> None:
        for action in actions:
            match action:
                case Lease(stopped=reason) as lease:
                    if reason not in (None, StopReason.UNWANTED):
                        facts = {"queue": str(lease.queue), "token": lease.token, "reason": reason.name}
                        _LOG.warning("group.lock-lost", extra=facts)
                    self.leases.put(lease)
                case Commanded() as command:
                    self.commanded.put(command)
                case record:
                    self._writer.append(record)

    def _process_reports(self) -> None:
        for seq in self._writer.take_failed(self._now_ms()):
            self._has_changed = True
            self._perform(self._holder.send_failed(seq, self._now_ms()))


class MemberChecks:
    """Compares the other members with this one; logs each difference once for each member."""

    def __init__(self, owner: Owner, strategy: str | None, lease_ms: int) -> None:
        self._owner = owner
        self._strategy = strategy
        self._lease_ms = lease_ms
        self._logged: set[tuple[str, Owner]] = set()
        self._has_joined = False

    def _is_first(self, difference: str, owner: Owner) -> bool:
        is_first = (difference, owner) not in self._logged
        self._logged.add((difference, owner))
        return is_first

    def check_strategies(self, log: GroupLog) -> None:
        """Check how the live members allocate queues. Two strategies are unfair, but safe: they are logged.

        Raise ConsumerError if the first member allocates by Kafka's protocol and this one does not, or the reverse.
        """
        conflict = log.conflicting_member(self._owner, self._strategy)
        if conflict is None:
            return
        if (conflict.strategy is None) != (self._strategy is None):
            raise ConsumerError(
                f"{conflict.owner.client_id} was first in this group and allocates its queues by "
                f"{conflict.strategy or _BY_KAFKA}, this member by {self._strategy or _BY_KAFKA}: configure the same "
                "in the whole group"
            )
        if self._is_first("strategy", conflict.owner):
            facts = {"client_id": conflict.owner.client_id, "theirs": conflict.strategy, "mine": self._strategy}
            _LOG.error("group.strategies-differ", extra=facts)

    def check_lease(self, record: GroupRecord) -> None:
        """Log a lease of another length: such leases are safe, except for the wait after the log was lost."""
        owner = Owner(record.client_id, record.incarnation)
        if record.lease_ms != self._lease_ms and self._is_first("lease", owner):
            facts = {"client_id": owner.client_id, "theirs_ms": record.lease_ms, "mine_ms": self._lease_ms}
            _LOG.warning("group.leases-differ", extra=facts)

    def check_client_id(self, record: GroupRecord) -> None:
        """Log another member with this member's client id. Shares go by client id, so one of the two gets no queue.

        Only a heartbeat after our own first one counts: before, it may be from this member's killed predecessor.
        """
        if self._strategy is None or not isinstance(record, MemberRecord) or record.client_id != self._owner.client_id:
            return
        owner = Owner(record.client_id, record.incarnation)
        if owner == self._owner:
            self._has_joined = True
        elif self._has_joined and self._is_first("client id", owner):
            _LOG.error("group.client-id-shared", extra={"client_id": owner.client_id})


class LockWatch:
    """Logs which queues wait for their locks, and for whom: after 5 s, and then every two leases."""

    def __init__(self, group_log: str, lease_ms: int) -> None:
        self._group_log = group_log
        self._again_ms = 2 * lease_ms
        self._look = Interval(_LOOK_MS)
        self._waits: dict[MessageQueue, tuple[int, int]] = {}  # since when, and when it is to be logged

    def look(self, holder: QueueLockHolder, log: GroupLog, now_ms: int) -> None:
        """Log the queues that wait for too long, in one line."""
        if not self._look.is_due(now_ms):
            return
        self._waits = {queue: self._waits.get(queue, (now_ms, now_ms + _LOCK_PATIENCE_MS)) for queue in holder.awaited}
        late = sorted(queue for queue, (_, due_ms) in self._waits.items() if now_ms >= due_ms)
        if not late:
            return
        waited_ms = max(now_ms - self._waits[queue][0] for queue in late)
        self._waits.update({queue: (self._waits[queue][0], now_ms + self._again_ms) for queue in late})
        left_ms: dict[str, int] = {}
        for lock in map(log.lock, late):
            if lock.owner is not None:
                name = f"{lock.owner.client_id} ({lock.owner.incarnation})"
                left_ms[name] = max(left_ms.get(name, 0), lock.lease_left_ms)
        facts = {
            "group_log": self._group_log,
            "partitions": [f"{queue.topic}/{queue.queue_id}" for queue in late[:_MAX_LOGGED]],
            "count": len(late),
            "waited_s": waited_ms // 1_000,
            "owners": sorted(left_ms),
            "lease_left_s": max(left_ms.values(), default=0) // 1_000,
            "hint": _OWNED if left_ms else _UNOWNED,
        }
        _CONSUMER_LOG.warning("consumer.lock-awaited", extra=facts)


def new_client_id() -> str:
    """Return a client id in RocketMQ's form: `host@pid@n`, where n counts the clients of this process. Any thread."""
    return f"{socket.gethostname()}@{os.getpid()}@{next(_NUMBERS)}"


def connect_group_log(
    settings: PushConsumerSettings,
    *,
    topics: Callable[[], Iterable[str]],
    clients: Clients,
    clock: Clock,
    admin: Any = None,
) -> GroupLogThread:
    """Make the group-log thread of a consumer with these settings; do not start it.

    The log's topic must exist (`Layout.for_group(group, with_log=True)`). `topics` returns those that the group commits
    for, its retry topic included. Without `admin`, only the log's records tell that its topic was created again.
    """
    group, lock_settings = settings.group, settings.lock_settings
    strategy = settings.allocate_message_queue_strategy
    topic = TopicNames(settings.namespace).group_log(group)
    producer_config = merge(
        {key: value for key, value in settings.client.items() if key not in _SET_HERE},
        defaults={"client.id": "rocketshim"},
        required={
            **PROTECTED_PRODUCER,
            "bootstrap.servers": settings.bootstrap,
            "linger.ms": 0,
            "delivery.timeout.ms": max(1_000, lock_settings.lock_hold_ms),
        },
        allow_code_settings=settings.allow_code_settings,
    )
    reader = LogReader(
        topic,
        lambda: clients.consumer(log_reader_config(settings, group)),
        lambda consumer: token_floor(consumer, tuple(topics())),
        None if admin is None else TopicId(admin, topic),
    )
    return GroupLogThread(
        reader,
        LogWriter(topic, lambda: clients.producer(producer_config)),
        owner=Owner(settings.client_id or new_client_id(), uuid.uuid4().hex),
        settings=lock_settings,
        clock=clock,
        strategy=None if strategy is None else strategy.name,
    )

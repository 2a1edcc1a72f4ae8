"""The partitions of the schedule topic that this worker holds: where each begins, how far it is, when it is fetched.

* The rebalance callbacks are called from inside `poll` and `close`; an exception out of one would destroy a record, so
  none is let out: what goes wrong is kept in `failure` and raised by the worker's next step.
* A partition begins at its committed position. Where there is none the earliest is committed at once, so that a later
  start knows where to look, and where the last commit carries another level table, the position is committed again with
  this worker's, so that the table in use can be seen. A position outside the log means earliest and an alarm. The
  bounds of all partitions are asked for at once: one by one they take long on a starved machine. A cluster that
  refuses (a topic just made has leaders that do not know it yet) is asked again for two seconds. If positions cannot
  be read then or in time, the broker's own count is used (`OFFSET_STORED`), which means the same.
* Each assignment of a partition is a `AssignedPartition` of its own; one that was given up is `gone`, and results that
  still arrive for it are dropped. A log that begins anew below what was read (re-created topic) is a new one, too.
* Fetching pauses where enough waits. Enough is little while the head is due in more than two seconds (memory does not
  depend on the backlog), and more when it is near (no stall while it is drained).

Not handled: who gets which partition; the group protocol (cooperative-sticky) decides.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, KafkaError, KafkaException, TopicPartition

from rocketshim.core.level_queue import LevelQueue, QueueLimits
from rocketshim.errors import ConfigError
from rocketshim.kafka.clients import ConsumerClient
from rocketshim.logs import safe_logger
from rocketshim_topics.levels import DelayLevels

if TYPE_CHECKING:
    from rocketshim.worker.target_health import TargetHealth

__all__ = ["AssignedPartition", "Assignment", "levels_metadata", "levels_of"]

_LOG = safe_logger("rocketshim.worker")
_TIMEOUT_S: Final = 5.0
_TRIES: Final = 20
_TRY_AGAIN_S: Final = 0.1
_FAR_NS: Final = 2_000_000_000
_AGAIN_NS: Final = 1_000_000_000
_LEVELS_MARK: Final = "rs1-levels;"
_FAR_SHARE: Final = 20  # a far queue holds a twentieth of the limits


def levels_metadata(levels: DelayLevels) -> str:
    """What a worker's commits carry: its level table, at most about 500 ASCII characters (Kafka takes 4,096)."""
    return f"{_LEVELS_MARK}{levels}"


def levels_of(metadata: str | None) -> DelayLevels | None:
    """The level table that a worker's commit carries; None: none of ours."""
    if metadata is None or not metadata.startswith(_LEVELS_MARK):
        return None
    try:
        return DelayLevels.parse(metadata.removeprefix(_LEVELS_MARK))
    except ConfigError:
        return None


class AssignedPartition:
    """One assignment of one partition.

    Attributes:
        number: of the partition.
        queue: what waits in it.
        committed: the position that is committed, or being committed.
        paused: whether fetching is paused.
        gone: it was given up; what arrives for it is dropped.
        skipped_to: the position after the last probe that was read.
        rest_until_ns: nothing leaves it before: a record of it could not be placed.
        awaited: nothing leaves it while one of these targets is not known.
        rests: how often in a row.
        hop_prefix: first part of the coordinates of its records.
    """

    __slots__ = (
        "_metadata", "_topic", "awaited", "committed", "gone", "hop_prefix", "number", "paused", "queue",
        "rest_until_ns", "rests", "skipped_to",
    )  # fmt: skip

    def __init__(self, topic: str, number: int, queue: LevelQueue[Any], committed: int, metadata: str = "") -> None:
        self._topic = topic
        self._metadata = metadata
        self.number = number
        self.queue = queue
        self.committed = committed
        self.paused = False
        self.gone = False
        self.skipped_to = -1
        self.rest_until_ns = 0
        self.rests = 0
        self.awaited: set[TargetHealth] = set()
        self.hop_prefix = f"{topic}/{number}/".encode()

    @property
    def position(self) -> int | None:
        """The position to commit; None while nothing is confirmed."""
        position = self.queue.next_offset
        if self.skipped_to > (position or -1) and self.queue.waiting_count == 0 and self.queue.idle:
            return self.skipped_to
        return position

    def at(self, offset: int) -> TopicPartition:
        """This offset of the partition as it is committed: with the level table of the worker that commits."""
        return TopicPartition(self._topic, self.number, offset, metadata=self._metadata)

    def is_waiting(self, now_ns: int) -> bool:
        """Whether a target of its records is not known yet, so that nothing leaves it."""
        if self.awaited and all(now_ns >= target.ready_ns for target in self.awaited):
            self.awaited = set()
        return bool(self.awaited)

    @property
    def has_uncommitted(self) -> bool:
        """Whether more is confirmed than is committed."""
        position = self.position
        return position is not None and position > self.committed


class Assignment:
    """What this worker holds.

    Args:
        topic: the schedule topic, physical.
        levels: the worker's table.
        limits: how much of one partition is held when its head is near.
        leave: called with what is about to be given up, while it may still be committed, and with nothing before
            partitions are added; must be bounded in time.
        gone: told the number of each partition that was given up, or whose log begins anew.
        alarm: told an event and its facts.
        sleep: waits a number of seconds.

    Thread-safety: none; the worker's thread.
    """

    def __init__(
        self,
        topic: str,
        levels: DelayLevels,
        limits: QueueLimits,
        *,
        leave: Callable[[list[AssignedPartition]], None],
        gone: Callable[[int], None],
        alarm: Callable[..., None],
        sleep: Callable[[float], None],
    ) -> None:
        self.held: dict[int, AssignedPartition] = {}
        self.failure: Exception | None = None
        self.assignments = 0
        self.has_joined = False  # whether the first rebalance is over
        self._topic = topic
        self._levels = levels
        self._metadata = levels_metadata(levels)
        self._limits = limits
        self._leave = leave
        self._gone = gone
        self._alarm = alarm
        self._sleep = sleep
        self._closing = False
        self._unread: set[int] = set()
        self._unread_ns = 0

    # --- callbacks of the Kafka consumer; nothing may escape from them -----------------------------------------------

    def on_assign(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        """Begin with these partitions."""
        self.has_joined = True
        try:
            if self._closing:  # they go back at once
                consumer.incremental_assign(partitions)
                return
            if partitions:
                self._leave([])
            starts = self._starts(consumer, partitions)
            consumer.incremental_assign(starts)
            consumer.resume(starts)
        except (KafkaException, RuntimeError) as error:
            self.failure = error
            return
        for start in starts:
            self.held[start.partition] = self._held_queue(start.partition, max(start.offset, -1))
        if starts:
            _LOG.info("worker.assigned", extra={"partitions": sorted(start.partition for start in starts)})

    def on_revoke(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        """Give these partitions up in order: finish or abandon what is in flight, commit, let go."""
        leaving = [self.held[item.partition] for item in partitions if item.partition in self.held]
        try:
            self._leave(leaving)
        except (KafkaException, RuntimeError) as error:
            self.failure = error
        self._let_go(consumer, partitions, leaving)
        if leaving:
            _LOG.info("worker.revoked", extra={"partitions": sorted(held.number for held in leaving)})

    def on_lost(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        """These partitions are somebody else's already: nothing may be committed."""
        self._alarm("worker.partitions-lost", partitions=sorted(item.partition for item in partitions))
        leaving = [self.held[item.partition] for item in partitions if item.partition in self.held]
        self._let_go(consumer, partitions, leaving)

    def _let_go(
        self, consumer: ConsumerClient, partitions: list[TopicPartition], leaving: Iterable[AssignedPartition]
    ) -> None:
        for held in leaving:
            held.gone = True
            self.held.pop(held.number, None)
            self._unread.discard(held.number)
            self._gone(held.number)
        try:
            consumer.incremental_unassign(partitions)
        except (KafkaException, RuntimeError) as error:
            if not self._closing:
                self.failure = error

    def closing(self) -> None:
        """The consumer is about to be closed: what is given up from here on was drained and committed already."""
        self._closing = True
        self._leave = lambda _: None

    def _starts(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> list[TopicPartition]:
        if not partitions:
            return []
        for left in reversed(range(_TRIES)):
            try:
                return self._known_starts(consumer, partitions)
            except KafkaException as error:
                if not left or error.args[0].code() == KafkaError._TIMED_OUT:  # noqa: SLF001 - no public spelling
                    self._alarm("worker.positions-unknown", error=str(error))
                    break
                self._sleep(_TRY_AGAIN_S)
        return [TopicPartition(item.topic, item.partition, OFFSET_STORED) for item in partitions]

    def _known_starts(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> list[TopicPartition]:
        starts: list[TopicPartition] = []
        first: list[TopicPartition] = []
        lows, highs = _bounds(consumer, partitions, OFFSET_BEGINNING), _bounds(consumer, partitions, OFFSET_END)
        for item in consumer.committed(partitions, timeout=_TIMEOUT_S):
            low, high = lows[item.partition], highs[item.partition]
            offset = item.offset
            if offset < 0:
                offset = low
                first.append(TopicPartition(item.topic, item.partition, low, metadata=self._metadata))
            elif not low <= offset <= high:
                self._alarm(
                    "worker.position-out-of-range", partition=item.partition, position=offset, low=low, high=high
                )
                offset = low
            elif item.metadata != self._metadata:
                first.append(TopicPartition(item.topic, item.partition, offset, metadata=self._metadata))
            starts.append(TopicPartition(item.topic, item.partition, offset))
        if first:
            consumer.commit(offsets=first, asynchronous=False)
        return starts

    def _held_queue(self, number: int, committed: int) -> AssignedPartition:
        self.assignments += 1
        delay_ms = self._levels.queue_delay_ms(number)
        # a level of somebody's longer table: looked at after a second, and hopped on if it is not due
        delay_ms = self._levels.UNKNOWN_LEVEL_MS if delay_ms is None else delay_ms
        queue: LevelQueue[Any] = LevelQueue(delay_ms, self._limits, self.assignments)
        return AssignedPartition(self._topic, number, queue, committed, self._metadata)

    # --- fetching ----------------------------------------------------------------------------------------------------

    def restarted(self, number: int) -> AssignedPartition:
        """The log of a partition begins anew: what was held of it is given up."""
        old = self.held[number]
        old.gone = True
        self._gone(number)
        self._alarm("worker.log-restarted", partition=number)
        fresh = self.held[number] = self._held_queue(number, -1)
        fresh.paused = old.paused
        return fresh

    def overtaken(self, number: int) -> None:
        """The client has stopped reading a partition: its position is not in the log any more, or seems not to be.

        The next `throttle` reads on.
        """
        if number in self.held:
            self._unread.add(number)
            self._unread_ns = 0

    def throttle(self, consumer: ConsumerClient, now_ns: int) -> None:
        """Pause and resume fetching by what waits; read on what the client has stopped to read."""
        if self._unread and now_ns >= self._unread_ns:
            self._unread_ns = now_ns + _AGAIN_NS
            self._read_on(consumer, sorted(self._unread))
        for held in self.held.values():
            queue = held.queue
            if not held.paused:
                if queue.full or (
                    queue.waiting_count * _FAR_SHARE >= queue.limits.full_count and self._is_far(queue, now_ns)
                ):
                    consumer.pause([TopicPartition(self._topic, held.number)])
                    held.paused = True
            elif queue.hungry and (not queue.waiting_count or not self._is_far(queue, now_ns)):
                consumer.resume([TopicPartition(self._topic, held.number)])
                held.paused = False

    def _read_on(self, consumer: ConsumerClient, numbers: list[int]) -> None:
        """Read partitions on that the client has stopped to read.

        Where retention was faster, from the earliest record; the records between are lost, and that is said. What was
        fetched before is still delivered. A position that is in the log after all (a leader that has just moved may
        deny it) is read on from. A cluster that does not answer is asked again a second later. All are asked for at
        once, or if that fails one by one, so that one without a leader holds up no other.
        """
        places = [TopicPartition(self._topic, number) for number in numbers]
        try:
            lows, highs = _bounds(consumer, places, OFFSET_BEGINNING), _bounds(consumer, places, OFFSET_END)
            positions = {item.partition: item.offset for item in consumer.position(places)}
        except KafkaException as error:
            if len(numbers) == 1:
                self._alarm("worker.positions-unknown", error=str(error))
                return
            for number in numbers:
                self._read_on(consumer, [number])
            return
        starts: list[TopicPartition] = []
        for number in numbers:
            held, low, high = self.held[number], lows[number], highs[number]
            at = positions[number] if positions[number] >= 0 else held.committed  # nothing read yet
            starts.append(TopicPartition(self._topic, number, at if low <= at <= high else low))
            if starts[-1].offset != at:
                self._alarm("worker.position-out-of-range", partition=number, position=at, low=low, high=high)
        try:
            # the client has stopped fetching them, and would refuse to seek
            consumer.incremental_unassign(places)
            consumer.incremental_assign(starts)
            consumer.resume(starts)  # a pause sticks to a partition that goes and comes
        except (KafkaException, RuntimeError) as error:
            self.failure = error
            return
        for number in numbers:
            self.held[number].paused = False
        self._unread.difference_update(numbers)

    @staticmethod
    def _is_far(queue: LevelQueue[Any], now_ns: int) -> bool:
        next_ns = queue.next_ns()
        return next_ns is not None and next_ns - now_ns > _FAR_NS


def _bounds(consumer: ConsumerClient, partitions: list[TopicPartition], which: int) -> dict[int, int]:
    """Where the logs begin or end, in one question; Kafka takes `OFFSET_BEGINNING` and `OFFSET_END` for a time."""
    asked = [TopicPartition(item.topic, item.partition, which) for item in partitions]
    found = consumer.offsets_for_times(asked, timeout=_TIMEOUT_S)
    for item in found:
        if item.error is not None:
            raise KafkaException(item.error)
    return {item.partition: item.offset for item in found}

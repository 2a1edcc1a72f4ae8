"""The Kafka clients of one simulated process: where it can crash, and what the history and the trace record.

Each call of a client is a point at which the process may die, before the call takes effect or after it. A dead process
gets `CrashedError` from every further call, so that nothing that its `finally` blocks do reaches the cluster. Calls
that only release something do nothing then: the garbage collector makes them, too, where it ends a generator.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, TopicPartition

from proof.simulate.world import World
from rocketshim.core.start_position import decode_metadata
from rocketshim.kafka.clients import Clients
from rocketshim.testing.partition_result import PartitionResult
from rocketshim_topics.wire import HOP_ID

__all__ = ["CrashedError", "ProcessClients"]

_LOCAL = frozenset({"memberid", "assignment", "position", "consumer_group_metadata"})
_RELEASING = frozenset({"unassign", "close"})
_NO_POINT = "unassign"  # the cluster does not see it, and the garbage collector may make it
_GUARD_S = 30.0
_LONGEST_SESSION_MS = 6_000  # with KIP-848 it is a setting of the brokers


class CrashedError(BaseException):
    """The simulated process has died. No code of the library handles it."""


class ProcessClients:
    """Makes the clients of one process.

    Args:
        world: the cluster, its clock, and the history.
        name: name of the process.
        group: group whose commits and hops the history records; None: it records none.

    Attributes:
        is_dead: whether the process has crashed.
        consumers: the clients that joined the group, to freeze them.
        polled: the producers that a thread of the library polls.
    """

    def __init__(self, world: World, name: str, group: str | None = None) -> None:
        self.world = world
        self.name = name
        self.group = group
        self.is_dead = False
        self.epoch = 0
        self.consumers: list[Any] = []
        self.producers: list[Any] = []
        self.polled: list[PolledInTurns] = []
        self._calls_left: int | None = None
        self._dies_after = False
        self._repeat_count = 0

    def factories(self, *, in_turns: bool = False) -> Clients:
        """Return the factories for `clients=`; `in_turns`: another thread polls the producers, when it is let."""

        def producer(config: dict[str, Any]) -> Any:
            made = self.world.kafka.producer(config)
            self.producers.append(made)
            if not in_turns:
                return GuardedProducer(self, made)
            self.polled.append(PolledInTurns(self, made))
            return self.polled[-1]

        def consumer(config: dict[str, Any]) -> Any:
            made = self.world.kafka.consumer(config)
            made.session_timeout_ms = min(made.session_timeout_ms, _LONGEST_SESSION_MS)
            self.consumers.append(made)
            return GuardedConsumer(self, made)

        return Clients(consumer=consumer, producer=producer)

    def crash_at(self, call_count: int, *, after: bool) -> None:
        """Let the process die at a later call: `call_count` calls before it succeed. `after`: it takes effect."""
        self._calls_left, self._dies_after = call_count, after

    def repeat_replies(self, count: int) -> None:
        """Let the broker call the next records of this process duplicates, and not store them."""
        self._repeat_count = count

    def prepare_reply(self, topic: str) -> None:
        """Order the broker's answer to a record that is about to be produced."""
        if self._repeat_count:
            self._repeat_count -= 1
            self.world.kafka.fail_produce(None, topic=topic)

    def cancel_faults(self) -> None:
        """Let the process live, and have its records answered truly."""
        self._calls_left, self._repeat_count = None, 0

    def die(self) -> None:
        """Kill the process: nothing is flushed or committed, and no callback runs any more."""
        self.is_dead = True
        for client in [*self.consumers, *self.producers]:
            self.world.kafka.kill(client)

    def let_threads_poll(self) -> None:
        """Let the threads of the library process the reports that have arrived."""
        for each in self.polled:
            each.turn()

    def end_threads(self) -> None:
        """End the threads of the library in this dead process, and wait for them."""
        for each in self.polled:
            each.free()
            if each.thread is not None:
                each.thread.join(_GUARD_S)

    def call(self, what: str, act: Callable[[], Any], detail: str = "") -> Any:
        """Make a call of a client, unless the process dies before or after it."""
        if self.is_dead:
            if what in _RELEASING:
                return None
            raise CrashedError
        self.world.note(self.name, what, detail)
        if self._calls_left is not None and what != _NO_POINT:
            self._calls_left -= 1
            if self._calls_left < 0:
                self._calls_left = None
                if self._dies_after:
                    act()
                self.world.note(self.name, "dies", what)
                self.die()
                raise CrashedError
        return act()


class _Guarded:
    """A client each of whose calls is a point at which its process may die."""

    def __init__(self, process: ProcessClients, client: Any) -> None:
        self._process = process
        self._client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name in _LOCAL:
            return method
        return lambda *values, **named: self._process.call(name, lambda: method(*values, **named))


class GuardedConsumer(_Guarded):
    """The process's view of a consumer."""

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        """Subscribe; the callbacks get this object."""

        def guarded(name: str, callback: Any) -> Any:
            def rebalance(_: Any, partitions: list[TopicPartition]) -> None:
                self._process.epoch += 1
                self._process.world.note(self._process.name, name, _text(partitions))
                callback(self, partitions)

            return rebalance

        wrapped = {name: guarded(name, callback) for name, callback in callbacks.items() if callback is not None}
        self._process.call("subscribe", lambda: self._client.subscribe(topics, **wrapped))

    def get_watermark_offsets(self, partition: TopicPartition, **named: Any) -> Any:
        """Ask for a partition's bounds: two requests. If the first one is refused, the client gives the end twice."""
        process = self._process
        ask = partial(self._client.get_watermark_offsets, partition, **named)
        low, high = process.call("get_watermark_offsets", ask)
        if not process.world.half_answers or named.get("cached"):
            return low, high
        process.world.half_answers -= 1
        process.world.note(process.name, "half-answer", f"{_text([partition])} {low} {high}")
        return high, high

    def offsets_for_times(self, partitions: list[TopicPartition], **named: Any) -> Any:
        """Ask where logs begin or end, or for a time. A broker may refuse to answer for one of the partitions."""
        process = self._process
        answers = process.call("offsets_for_times", lambda: self._client.offsets_for_times(partitions, **named))
        if process.world.half_answers:
            process.world.half_answers -= 1
            process.world.note(process.name, "half-answer", _text(partitions))
            (asked, *_), error = partitions, KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
            answers[0] = PartitionResult.of((asked.topic, asked.partition), asked.offset, error=error)
        return answers

    def commit(self, **named: Any) -> Any:
        """Commit, and record the call."""
        process, offsets = self._process, named.get("offsets") or []
        if process.group is not None and not process.is_dead:
            for item in offsets:  # an orderly consumer may begin again in one assignment, under another token
                found = decode_metadata(item.metadata)
                epoch = process.epoch if found is None or not found.token else found.token
                position = {f"{item.topic}/{item.partition}": item.offset}
                process.world.commit_called(process.name, process.group, epoch, position)
        return process.call("commit", lambda: self._client.commit(**named), _text(offsets))


class GuardedProducer(_Guarded):
    """The process's view of a producer."""

    def __len__(self) -> int:
        return len(self._client)

    def __bool__(self) -> bool:
        return True

    def produce(self, topic: str, value: Any = None, key: Any = None, partition: int = -1, **named: Any) -> None:
        """Produce, and record the hop of a failed message."""
        process = self._process
        made_from = dict(named.get("headers") or []).get(HOP_ID)
        if process.group is not None and made_from is not None and not process.is_dead:
            origin = made_from.decode() if isinstance(made_from, bytes) else made_from
            named["on_delivery"] = self._recorded(origin, topic, named["on_delivery"])
        process.prepare_reply(topic)
        process.call(
            "produce", lambda: self._client.produce(topic, value, key, partition, **named), f"{topic}/{partition}"
        )

    def _recorded(self, made_from: str, topic: str, callback: Any) -> Any:
        process = self._process
        end = process.world.hop_began(process.name, process.group or "", made_from, topic)

        def reported(error: KafkaError | None, message: Any) -> None:
            offset = None if error is not None else message.offset()
            is_stored = offset is not None and offset >= 0
            end(f"{message.topic()}/{message.partition()}/{offset}" if is_stored else None)
            callback(error, message)

        return reported


class PolledInTurns(GuardedProducer):
    """A producer that a thread of the library polls: the thread waits in `poll` until it is given a turn.

    Attributes:
        link: what the thread serves; it ends when that is over.
        thread: the thread; None: it has not polled yet.
    """

    def __init__(self, process: ProcessClients, client: Any) -> None:
        super().__init__(process, client)
        self.link: Any = None
        self.thread: threading.Thread | None = None
        self._waits = threading.Semaphore(0)
        self._may_go = threading.Semaphore(0)
        self._is_free = False

    def poll(self, timeout: float = -1) -> int:
        """Wait for a turn, then process the reports that are there."""
        del timeout
        self.thread = threading.current_thread()
        if not self._is_free:
            self._waits.release()
            self._may_go.acquire()
        return int(self._client.poll(0))

    def turn(self) -> None:
        """Let the thread poll once, if a record waits for its report or to be sent again; wait until it has."""
        if self._is_free or self.link is None or not self.link.outstanding:
            return
        self._await()
        self._may_go.release()
        self._await()
        self._waits.release()

    def free(self) -> None:
        """End the thread: it needs no turns from now on."""
        if not self._is_free:
            self._is_free = self.link.is_over = True
            self._may_go.release()

    def purge(self, *values: Any, **named: Any) -> None:
        """Give up what was not sent; the library then waits for its thread."""
        self._process.call("purge", lambda: self._client.purge(*values, **named))
        self.free()

    def __len__(self) -> int:
        return 0 if self._is_free else len(self._client)

    def _await(self) -> None:
        if not self._waits.acquire(timeout=_GUARD_S):
            raise TimeoutError("the thread that polls a simulated producer did not come back")


def _text(partitions: list[TopicPartition]) -> str:
    return " ".join(f"{item.topic}/{item.partition}@{item.offset}" for item in partitions)

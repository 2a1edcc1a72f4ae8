"""What all simulated processes share: the cluster, the virtual clock, the trace, and the history for the checker.

Time passes where a client waits, and where a step of the plan says so. The history's clock is the virtual one, moved on
by a nanosecond with each event, so that no two events have the same time.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal

from proof.history import CommitCall, Delivery, History, Hop, Outcome, Seen, Send, Source
from proof.lines import (
    Commit,
    Fault,
    FoldSeen,
    Group,
    Process,
    Record,
    Setup,
    SinkWrite,
    TimerCommand,
    digest_of,
    encoded,
    headers_to_json,
)
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics.hops import is_probe
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.message import Message, MessageView
from rocketshim_topics.names import TopicNames
from rocketshim_topics.wire import REPLAY_ID, TIMER_ASKS, UNIQ_KEY, coordinates, headers_shown, read_headers

__all__ = ["FORMER_TOPIC", "GROUP", "LEVELS", "NAMES", "PRODUCERS", "World"]

NAMES: Final = TopicNames("")
LEVELS: Final = DelayLevels.parse("1s 2s 3s 4s")
PRODUCERS: Final = "shop"
GROUP: Final = Group(name="pay", mode="concurrent", topics=("orders",), limit=2)
ALLOWED: Final = ("orders",)
FORMER_TOPIC: Final = "carts"
"""What a consumer of a former version has a listener for, instead of the group's topic."""
RECOVERY_MS: Final = 15_000
_START_MS: Final = 1_700_000_000_000
_LOG_APPEND_TIME: Final = 2


class World:
    """One simulated installation.

    Attributes:
        kafka, clock: the cluster, and the clock of everything.
        trace: what happened, in order: the same for each run of a seed.
        history: for the checker; records and commits are added at the end.
        longest_wait_ms: how far the clock moves at most when a client waits.
        half_answers: of how many of the next answers about where logs begin and end a broker refuses a part.
        created: how often each topic was created again.
        group: the consumer group.
        commit_interval_ms: of consumers.
        dead_every: one of this number of messages fails always.
        has_killers: some messages kill the process that handles them.
        has_timers: there are named timers and transactions.
    """

    def __init__(
        self,
        *,
        exactly_once: bool,
        is_orderly: bool,
        dead_every: int = 11,
        has_killers: bool = False,
        partitions: int = 2,
        has_timers: bool = False,
    ) -> None:
        self.has_killers = has_killers
        self.commit_interval_ms = 200
        self.group = replace(GROUP, mode="orderly") if is_orderly else GROUP
        self.dead_every = dead_every
        self.clock = VirtualClock(start_wall_ms=_START_MS, auto_advance=True)
        self.kafka = InMemoryKafka(self.clock, on_wait=self._wait)
        self.trace: list[str] = []
        self.longest_wait_ms = 20.0
        self.half_answers = 0
        self._last_ns = 0
        self._lost = 0
        self.created = Counter[str]()
        self._is_orderly = is_orderly
        self.has_timers = has_timers
        self.create_topics()
        self.kafka.create_topics([Layout(NAMES, LEVELS).redrive_log()])
        self.paid: dict[str, bool] = {}  # by the id of a transaction: how it has ended in the database
        if has_timers:
            self.kafka.create_topics([*Layout(NAMES, LEVELS).timers(), Layout(NAMES, LEVELS).check(PRODUCERS)])
        self.kafka.create_topic("orders", partitions, config={"message.timestamp.type": "LogAppendTime"})
        self.kafka.create_topic("secret", 1)
        self.kafka.create_topic(FORMER_TOPIC, 1)
        self.history = History(
            Setup(
                levels=str(LEVELS), groups=(self.group,), allow=ALLOWED, exactly_once=exactly_once,
                recovery_ms=RECOVERY_MS, broker_minus_host_ns=_START_MS * 1_000_000,
            )
        )  # fmt: skip

    def create_topics(self) -> None:
        """Create the missing topics of the library."""
        self.kafka.create_topics(Layout(NAMES, LEVELS).shared())
        self.kafka.create_topics(Layout(NAMES, LEVELS).for_group(GROUP.name, with_log=self._is_orderly))

    def _wait(self, seconds: float) -> None:
        longest_ms = self.longest_wait_ms
        self.clock.advance(min(seconds * 1_000, longest_ms) if seconds >= 0 else longest_ms)

    # --- time and trace ----------------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """Monotonic virtual time in ms."""
        return self.clock.monotonic_ns() // 1_000_000

    def event_ns(self) -> int:
        """Return the time of an event: later than that of every event before."""
        self._last_ns = max(self._last_ns + 1, self.clock.monotonic_ns())
        return self._last_ns

    def source(self) -> Source:
        """Return the place of the next line of the history."""
        return Source("trace", len(self.trace) + 1)

    def note(self, who: str, what: str, detail: str = "") -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.clock.monotonic_ns() / 1e6:11.3f} {who:12} {what} {detail}".rstrip())

    # --- history -----------------------------------------------------------------------------------------------------

    def process(self, process: Process) -> None:
        """Record that a process starts."""
        self.history.processes[process.name] = process

    def fault(self, kind: str, target: str, begin_ns: int, end_ns: int | None = None) -> None:
        """Record a fault."""
        end_ns = self.event_ns() if end_ns is None else end_ns
        fault = Fault(kind=kind, target=target, begin_ns=begin_ns, end_ns=end_ns)
        self.history.faults.append(Seen(self.source(), fault))

    def commit_called(self, process: str, group: str, epoch: int, positions: dict[str, int]) -> None:
        """Record a call of `commit`."""
        source, at_ns = self.source(), self.event_ns()
        self.history.commit_calls.append(
            CommitCall(
                source=source, process=process, begin_ns=at_ns, end_ns=at_ns, outcome="info", group=group, epoch=epoch,
                positions=positions,
            )
        )  # fmt: skip

    def hop_began(self, process: str, group: str, made_from: str, topic: str) -> Callable[[str | None], None]:
        """Record that a hop is produced; call the result with the coordinates of the stored record."""
        source, begin_ns = self.source(), self.event_ns()

        def end(where: str | None) -> None:
            outcome: Outcome = "info" if where is None else "ok"
            self.history.hops.append(
                Hop(
                    source=source, process=process, begin_ns=begin_ns, end_ns=self.event_ns(), outcome=outcome,
                    group=group, made_from=made_from, topic=topic, where=where,
                )
            )  # fmt: skip

        return end

    def send_began(self, process: str, message: Message, *, is_half: bool = False) -> Callable[[Outcome, Any], None]:
        """Record that a message is sent; call the result with the outcome and the result of the send."""
        body, level = (message.body or b"").decode(), message.delay_level
        facts: dict[str, Any] = {
            "topic": message.topic, "key": encoded(message.key_bytes), "digest": digest_of(message.body),
            "headers": headers_to_json(message.headers), "deliver_at_ms": message.deliver_at_ms,
            "delay_ms": message.delay_ms if level is None else LEVELS.delay_ms(level),
        }  # fmt: skip
        if is_half:
            facts |= {"command": "SET", "delay_ms": None}
        if message.timer is None:
            return self._send_began(process, body, facts)
        command: TimerCommand = "SET-IF-ABSENT" if message.if_absent else "SET"
        facts |= {"timer": message.timer, "command": command}
        return self._send_began(process, f"{body} {command} {message.timer}", facts)

    def command_began(
        self, process: str, command: TimerCommand, topic: str, timer: str
    ) -> Callable[[Outcome, Any], None]:
        """Record that a command for a name is sent; call the result as that of `send_began`."""
        facts: dict[str, Any] = {
            "topic": topic, "key": encoded(f"{topic}/{timer}".encode()), "digest": None, "headers": (),
            "deliver_at_ms": None, "delay_ms": None, "timer": timer, "command": command,
        }  # fmt: skip
        return self._send_began(process, f"{command} {timer}", facts)

    def _send_began(self, process: str, what: str, facts: dict[str, Any]) -> Callable[[Outcome, Any], None]:
        self.note(process, "sends", what)
        source, begin_ns = self.source(), self.event_ns()

        def end(outcome: Outcome, result: Any) -> None:
            offset = None if result is None else result.queue_offset
            self.history.sends.append(
                Send(
                    source=source, process=process, begin_ns=begin_ns, end_ns=self.event_ns(), outcome=outcome,
                    where=None if offset is None or offset < 0 else result.offset_msg_id,
                    id=None if result is None else result.msg_id, **facts,
                )
            )  # fmt: skip

        return end

    def sink_written(self, process: str, where: str, token: int, *, accepted: bool) -> None:
        """Record that a listener writes to the sink."""
        source, at_ns = self.source(), self.event_ns()
        write = SinkWrite(at_ns=at_ns, group=GROUP.name, where=where, token=token, by=process, accepted=accepted)
        self.note("sink", "takes" if accepted else "refuses", f"{where} under {token}")
        self.history.sink.append(Seen(source, write))

    def fold_seen(self, line: FoldSeen) -> None:
        """Record what a member's fold says; not any more once the log was lost, since a member learns that later."""
        if not self._lost:
            self.history.folds.append(Seen(self.source(), line))

    def delivery_began(
        self, process: str, message: MessageView, *, token: int | None = None
    ) -> Callable[[Outcome], None]:
        """Record that a listener is called; `token`: of an orderly one. Call the result with the outcome."""
        source, begin_ns = self.source(), self.event_ns()
        then: Literal["retry", "again"] = "retry" if token is None else "again"
        replay = dict(read_headers(message.record) or ()).get(REPLAY_ID)
        self.note(process, "handles", f"{message.offset_msg_id} attempt {message.reconsume_times}")

        def end(outcome: Outcome) -> None:
            self.history.deliveries.append(
                Delivery(
                    source=source, process=process, begin_ns=begin_ns, end_ns=self.event_ns(), outcome=outcome,
                    group=GROUP.name, where=message.offset_msg_id, id=message.msg_id, attempt=message.reconsume_times,
                    replay=None if replay is None else replay.decode(), token=token,
                    key=encoded(message.key), digest=digest_of(message.body),
                    headers=headers_to_json(message.headers), then=then if outcome == "fail" else None,
                )
            )  # fmt: skip

        return end

    def finish(self) -> History:
        """Add what lies in the topics, and the commits, and return the history."""
        for topic in self.kafka.topics():
            self._dump(topic)
        for group in (GROUP.name, NAMES.worker_group):
            for each in self.kafka.commits(group):
                commit = Commit(
                    group=group, queue=f"{each.topic}/{each.partition}", position=each.next_offset,
                    ms=_START_MS + each.monotonic_ns // 1_000_000, metadata=each.metadata or "",
                )  # fmt: skip
                self.history.commits.append(Seen(self.source(), commit))
        return self.history

    def log_lost(self) -> None:
        """Add what lies in the group's log, which is about to be lost."""
        self._lost += 1
        self._dump(NAMES.group_log(GROUP.name), lost=self._lost)

    def _dump(self, topic: str, *, lost: int = 0) -> None:
        visible = {coordinates(record) for record in self.kafka.records(topic)}
        for record in self.kafka.records(topic, read_committed=False):
            stamp, stamped_ms = record.timestamp()
            where = coordinates(record)
            line = Record(
                where=where, ms=stamped_ms, stamp="append" if stamp == _LOG_APPEND_TIME else "create",
                key=encoded(record.key()), digest=digest_of(record.value()),
                headers=headers_to_json(headers_shown(record)), committed=where in visible, lost=lost,
                value=encoded(record.value()) if topic == NAMES.group_log(GROUP.name) else None,
            )  # fmt: skip
            self.history.records.append(Seen(self.source(), line))

    def transaction_problems(self) -> list[str]:
        """Return what was delivered of transactions that have not committed, and what was not of those that have."""
        if not self.has_timers:
            return []
        told = [dict(read_headers(record) or ()) for record in self.kafka.records(NAMES.timers)]
        ids = {each[UNIQ_KEY].decode() for each in told if TIMER_ASKS in each}
        found = [dict(read_headers(record) or ()) for record in self.kafka.records("orders")]
        delivered = {each[UNIQ_KEY].decode() for each in found if UNIQ_KEY in each}
        problems = [f"phantom: {each} has not committed" for each in ids & delivered if not self.paid.get(each)]
        return problems + [f"lost: {each} has committed" for each in ids - delivered if self.paid.get(each)]

    def is_drained(self) -> bool:
        """Return whether the worker and the group have committed past every message."""
        waiting = [NAMES.schedule, *([NAMES.timers] if self.has_timers else [])]
        topics = {NAMES.worker_group: waiting, GROUP.name: ["orders", NAMES.retry(GROUP.name)]}
        for group, names in topics.items():
            committed = self.kafka.committed(group)
            for name in names:
                for record in self.kafka.records(name):
                    key = (name, record.partition() or 0)
                    if (record.offset() or 0) >= committed.get(key, 0) and not is_probe(record):
                        return False
        return True

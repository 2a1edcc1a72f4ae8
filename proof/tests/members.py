"""Consumer groups of the model: concurrent and drop-in, orderly, broadcasting."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from proof.folds import said_of
from proof.lines import Group, SinkWrite, digest_of, encoded, headers_to_json
from rocketshim.locks.fold import GroupLog
from rocketshim_topics import OutgoingRecord, decode, hops
from rocketshim_topics.group_log import (
    ClaimedQueue,
    ClaimRecord,
    LeaseEntry,
    RenewRecord,
    encode_group_record,
)
from rocketshim_topics.wire import own_name

from .world import MS, TOPICS, Kept, S, World, first_unfinished

Fate = Callable[[str, int], str]
"""What a listener does with a message by its id and count: `ok`, `retry`, or `dead`."""


def call_fields(world: World, group: str, record: Kept, attempt: int) -> dict[str, Any]:
    """What the line of a delivery says about a record."""
    trusted = record.topic() == world.names.retry(group)
    envelope = decode(record.headers(), trusted=trusted)
    return {
        "group": group, "where": record.where, "id": envelope.uniq_key or record.where, "attempt": attempt,
        "replay": envelope.replay_id, "key": encoded(record.key()), "digest": digest_of(record.value()),
        "headers": headers_to_json((own_name(name), value) for name, value in envelope.user),
    }  # fmt: skip


class Members:
    """A concurrent group, or a drop-in one: what fails is sent back, each queue has an owner, owners commit."""

    def __init__(
        self, world: World, name: str, topics: tuple[str, ...], fate: Fate, until_s: float, *,
        drop_in: bool = False, limit: int = 3,
    ) -> None:  # fmt: skip
        self._world, self.name, self._fate, self._drop_in, self._limit = world, name, fate, drop_in, limit
        world.groups.append(Group(name=name, mode="drop-in" if drop_in else "concurrent", topics=topics, limit=limit))
        self._retry_topic = world.names.retry(name)
        self._runs = 0
        self.members = [self._start(), self._start()]
        self._gone: set[str] = set()
        self._finished: dict[str, set[int]] = defaultdict(set)
        self._committed: Counter[str] = Counter()
        self._epoch = 1
        for topic in (*topics, self._retry_topic):
            world.watchers[topic].append(lambda record: world.after(world.jitter_ms(1, 5), lambda: self._call(record)))
        world.every(S // 2, self.commit, until_s)

    def _start(self) -> str:
        self._runs += 1
        return self._world.process(f"{self.name}-{self._runs}", "dropin" if self._drop_in else "consumer", self.name)

    def _owner(self, queue: str) -> str:
        return self.members[sum(queue.encode()) % len(self.members)]

    def _call(self, record: Kept) -> None:
        world, member = self._world, self._owner(record.queue)
        if member in self._gone or record.at in self._finished[record.queue]:
            return  # the next owner gets it
        times = decode(record.headers(), trusted=record.topic() == self._retry_topic).reconsume_times or 0
        fields = call_fields(world, self.name, record, times)
        op = world.invoke(member, "deliver", **fields)
        world.after(world.jitter_ms(1, 40), lambda: self._returned(record, member, op, fields["id"], times))

    def _returned(self, record: Kept, member: str, op: int, uid: str, times: int) -> None:
        world = self._world
        if member in self._gone:
            return
        fate = self._fate(uid, times)
        if fate == "ok":
            world.end(member, op)
            self._finished[record.queue].add(record.at)
            return
        world.end(member, op, "fail", then=fate)
        failure = hops.Failure("Timeout", f"no {times}", world.broker_ms)
        dead = fate == "dead" or times >= self._limit
        common: dict[str, Any] = {
            "group": self.name, "trusted": record.topic() == self._retry_topic, "failure": failure,
            "reconsume_times": times + 1,
        }  # fmt: skip
        if dead:
            out = hops.dead_letter(record, world.names, **common)
        else:
            out = hops.retry(record, world.names, world.levels, level=times + 1, delay_ms=None, lane=0, **common)
        hop = world.invoke(member, "hop", group=self.name, where=record.where, topic=out.topic)

        def store() -> None:
            kept = world.append(out)
            if member in self._gone:
                return
            world.end(member, hop, where=kept.where)
            self._finished[record.queue].add(record.at)

        world.after(world.jitter_ms(0, 3), store)

    def commit(self) -> None:
        positions: dict[str, dict[str, int]] = defaultdict(dict)
        for queue, records in self._world.logs.items():
            member = self._owner(queue)
            position = first_unfinished(records, self._finished[queue])
            if member not in self._gone and position > self._committed[queue]:
                positions[member][queue] = self._committed[queue] = position
        for member, moved in positions.items():
            op = self._world.invoke(member, "commit", group=self.name, epoch=self._epoch, positions=moved)
            for queue, position in moved.items():
                self._world.commit(self.name, queue, position)
            self._world.end(member, op)

    def kill(self) -> None:
        """`kill -9` of a member; its successor reads again from the committed positions."""
        number = self._world.dice.randrange(2)
        member = self.members[number]
        self._world.fault("kill-9", member, 0.3)
        self._gone.add(member)
        self._world.after(2 * S, lambda: self._take_over(number))

    def rebalance(self) -> None:
        """A forced rebalance: what was in progress is read again by its next owner."""
        self._world.fault("rebalance", f"group:{self.name}", 0.5)
        for number, member in enumerate(self.members):
            self._gone.add(member)
            self._world.after(S, partial(self._take_over, number))

    def _take_over(self, number: int) -> None:
        self.members[number] = self._start()
        self._epoch += 1
        for queue, records in self._world.logs.items():
            topic = queue.rpartition("/")[0]
            watched = topic == self._retry_topic or topic in next(
                group.topics for group in self._world.groups if group.name == self.name
            )
            if watched and self._owner(queue) == self.members[number]:
                self._finished[queue] = {at for at in self._finished[queue] if at < self._committed[queue]}
                for record in records:
                    if record.at >= self._committed[queue]:
                        self._world.after(self._world.jitter_ms(1, 9), partial(self._call, record))


class Broadcast:
    """A broadcasting group: every member gets every message, nothing is committed in Kafka."""

    def __init__(self, world: World, name: str, topics: tuple[str, ...], fate: Fate) -> None:
        self._world, self.name, self._fate = world, name, fate
        world.groups.append(Group(name=name, mode="broadcasting", topics=topics))
        self._members = [world.process(f"{name}-{number}-a", "consumer", name, f"{name}-{number}") for number in (1, 2)]
        for topic in topics:
            world.watchers[topic].append(self._give)

    def _give(self, record: Kept) -> None:
        for member in self._members:
            self._world.after(self._world.jitter_ms(1, 9), partial(self._call, member, record))

    def _call(self, member: str, record: Kept) -> None:
        world, fields = self._world, call_fields(self._world, self.name, record, 0)
        op = world.invoke(member, "deliver", **fields)
        failed = self._fate(fields["id"], 0) != "ok"
        world.after(world.jitter_ms(1, 9), lambda: world.end(member, op, "fail" if failed else "ok"))


def _named(queue: str) -> dict[str, Any]:
    topic, _, number = queue.rpartition("/")
    return {"topic": topic, "queue_id": int(number)}


@dataclass(frozen=True)
class _Call:
    record: Kept
    key: bytes | None
    member: str
    token: int
    op: int
    uid: str
    times: int


class Orderly:
    """An orderly group: one owner a queue, by a log; a failing message is repeated in place."""

    LEASE_MS = 4_000

    def __init__(
        self, world: World, name: str, topic: str, fate: Fate, until_s: float, *, by_key: bool = False, limit: int = 2
    ) -> None:
        self._world, self.name, self._fate, self._by_key, self._limit = world, name, fate, by_key, limit
        mode: Any = "orderly-by-key" if by_key else "orderly"
        world.groups.append(Group(name=name, mode=mode, topics=(topic,), limit=limit))
        if "sink" not in world.files:
            world.process("sink", "sink")
        self._log = GroupLog(0)
        self._seq: Counter[str] = Counter()
        self._runs = 0
        self._queues = [f"{topic}/{number}" for number in range(TOPICS[topic])]
        self._owner: dict[str, tuple[str, int]] = {}
        self._claimed_at: dict[str, int] = {}
        self._busy: set[tuple[str, bytes | None]] = set()
        self._finished: dict[str, set[int]] = defaultdict(set)
        self._attempts: Counter[str] = Counter()
        self._committed: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()
        self._gone: set[str] = set()
        self._frozen: dict[str, int] = {}
        members = [self._start(), self._start()]
        for number, member in enumerate(members):
            self._claim(member, self._queues[number::2])
        world.watchers[topic].append(lambda record: world.after(world.jitter_ms(1, 5), lambda: self._go(record.queue)))
        world.every(S // 2, self.commit, until_s)
        world.every(S, self._renew, until_s)

    def _start(self) -> str:
        self._runs += 1
        return self._world.process(f"{self.name}-{self._runs}", "consumer", self.name, f"client-{self._runs}")

    # --- locks -------------------------------------------------------------------------------------------------------

    def _write(self, member: str, kind: str, queues: list[str]) -> int:
        """Write one record for some queues; say what the fold makes of each."""
        world = self._world
        self._seq[member] += 1
        common: dict[str, Any] = {
            "client_id": f"client-{member.rpartition('-')[2]}", "incarnation": member, "seq": self._seq[member],
            "lease_ms": self.LEASE_MS, "base": self._log.base or world.broker_ms,
        }  # fmt: skip
        record: ClaimRecord | RenewRecord
        if kind == "claim":
            record = ClaimRecord(queues=tuple(ClaimedQueue(**_named(queue)) for queue in queues), **common)
        else:
            record = RenewRecord(queues=tuple(self._held(queue) for queue in queues), **common)
        out = OutgoingRecord(world.names.group_log(self.name), 0, None, encode_group_record(record), [])
        kept = world.append(out)
        for seen in said_of(self._log, self._log.fold(kept.at, kept.at_ms, record), self.name, world.now_ns):
            world.line(member, seen)
        return kept.at

    def _held(self, queue: str) -> LeaseEntry:
        return LeaseEntry(
            token=self._owner[queue][1], confirmed_offset=self._claimed_at[queue], next_offset=self._committed[queue],
            **_named(queue),
        )  # fmt: skip

    def _claim(self, member: str, queues: list[str]) -> None:
        at = self._write(member, "claim", queues)
        for queue in queues:
            self._claimed_at[queue] = at
            self._owner[queue] = member, (self._log.base or 0) + at
            self._finished[queue] = {at for at in self._finished[queue] if at < self._committed[queue]}
            self._busy = {unit for unit in self._busy if unit[0] != queue}
            self._go(queue)

    def _renew(self) -> None:
        for queue, (member, _) in self._owner.items():
            if member not in self._gone:
                self._write(member, "renew", [queue])

    # --- messages ----------------------------------------------------------------------------------------------------

    def _go(self, queue: str) -> None:
        """Hand out what is next: the first unfinished message, by key the first one of each key."""
        if queue not in self._owner or self._owner[queue][0] in self._gone:
            return
        blocked: set[bytes | None] = set()
        for record in self._world.logs[queue]:
            key = record.key() if self._by_key else None
            if record.at in self._finished[queue] or key in blocked:
                continue
            blocked.add(key)
            if (queue, key) not in self._busy:
                self._busy.add((queue, key))
                self._call(record, key)
            if not self._by_key:
                return

    def _call(self, record: Kept, key: bytes | None) -> None:
        world, (member, token) = self._world, self._owner[record.queue]
        times = self._attempts[record.where]
        fields = call_fields(world, self.name, record, times)
        op = world.invoke(member, "deliver", token=token, **fields)
        call = _Call(record, key, member, token, op, fields["id"], times)
        world.after(world.jitter_ms(1, 40), lambda: self._returned(call))

    def _returned(self, call: _Call) -> None:
        world, record, member = self._world, call.record, call.member
        frozen_until = self._frozen.get(member, 0)
        if frozen_until > world.now_ns:
            world.after(frozen_until - world.now_ns + MS, lambda: self._returned(call))
            return
        if member in self._gone and member not in self._frozen:
            return
        fate = self._fate(call.uid, call.times)
        if fate == "ok" and not self._write_to_sink(call):
            world.end(member, call.op, "fail", then="again")
        elif fate == "ok":
            world.end(member, call.op)
        else:
            world.end(member, call.op, "fail", then="again" if fate == "retry" else "dead")
        if self._owner[record.queue] == (member, call.token):  # else it woke up after its lock had ended
            self._go_on(call, fate)

    def _write_to_sink(self, call: _Call) -> bool:
        queue = call.record.queue
        accepted = call.token >= self._taken[queue]
        write = SinkWrite(
            at_ns=self._world.now_ns, group=self.name, where=call.record.where, token=call.token, by=call.member,
            accepted=accepted,
        )  # fmt: skip
        self._world.line("sink", write)
        self._taken[queue] = max(self._taken[queue], call.token)
        return accepted

    def _go_on(self, call: _Call, fate: str) -> None:
        world, record, queue = self._world, call.record, call.record.queue
        dead = fate == "dead" or (fate == "retry" and call.times >= self._limit)
        if dead:
            failure = hops.Failure("Timeout", f"no {call.times}", world.broker_ms)
            out = hops.dead_letter(
                record, world.names, group=self.name, trusted=False, failure=failure, reconsume_times=call.times + 1
            )
            hop = world.invoke(call.member, "hop", group=self.name, where=record.where, topic=out.topic)
            world.end(call.member, hop, where=world.append(out).where)
        if dead or fate == "ok":
            self._finished[queue].add(record.at)
            self._busy.discard((queue, call.key))
            world.after(world.jitter_ms(0, 2), lambda: self._go(queue))
            return
        self._attempts[record.where] += 1

        def again() -> None:
            if self._owner[queue] == (call.member, call.token) and call.member not in self._gone:
                self._call(record, call.key)

        world.after(50 * MS, again)

    def commit(self) -> None:
        for queue, (member, token) in self._owner.items():
            position = first_unfinished(self._world.logs[queue], self._finished[queue])
            if member not in self._gone and position > self._committed[queue]:
                self._committed[queue] = position
                op = self._world.invoke(
                    member, "commit", group=self.name, epoch=token % 1_000_000, positions={queue: position}
                )
                self._world.commit(self.name, queue, position)
                self._world.end(member, op)

    # --- faults ------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """`kill -9` of an owner; its queues go to a successor when the lease has run out."""
        self._lose("kill-9", 0.3)

    def freeze(self) -> None:
        """SIGSTOP of an owner for longer than its lease."""
        self._lose("freeze", 8.0)

    def _lose(self, kind: str, seconds: float) -> None:
        member = self._owner[self._world.dice.choice(self._queues)][0]
        if member in self._gone:
            return
        self._world.fault(kind, member, seconds)
        self._gone.add(member)
        if kind == "freeze":
            self._frozen[member] = self._world.now_ns + int(seconds * S)
        self._world.after((self.LEASE_MS + 1_200) * MS, lambda: self._take_over(member))

    def _take_over(self, lost: str) -> None:
        self._claim(self._start(), [queue for queue, (member, _) in self._owner.items() if member == lost])

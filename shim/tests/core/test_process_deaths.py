"""Messages that kill their processes are found, and others are not blamed, whatever is killed when.

The model is a group of one process at a time, with two partitions and a few listener threads. What it has committed is
all that its successor knows. A step hands out, commits, lets a commit arrive, finishes a message, or kills the process.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.core.process_deaths import CarefulStart, Handling, decode_handling, encode_handling
from rocketshim_topics.coordinates import TopicPartitionKey

P = TopicPartitionKey("orders", 0)
Q = TopicPartitionKey("orders", 1)
OFFSETS = st.integers(0, 2**62)
MAX_DEATHS = 3
WINDOW = 4


class DiedError(Exception):
    """The process is gone."""


@dataclass
class Group:
    """What outlives a process: positions and handlings, finished and failed messages."""

    ends: dict[TopicPartitionKey, int]
    killers: set[tuple[TopicPartitionKey, int]]
    committed: dict[TopicPartitionKey, tuple[int, Handling | None]] = field(default_factory=dict)
    handled: Counter[tuple[TopicPartitionKey, int]] = field(default_factory=Counter)
    failed: dict[tuple[TopicPartitionKey, int], int] = field(default_factory=dict)
    deaths: int = 0

    def is_done(self) -> bool:
        return all(self.committed.get(key, (0, None))[0] == end for key, end in self.ends.items())


class Process:
    """One process, step by step; what it does next is decided by `choose`."""

    def __init__(self, group: Group, choose: random.Random, threads: int) -> None:
        self.group, self.choose, self.threads = group, choose, threads
        self.care = CarefulStart(max_deaths=MAX_DEATHS, window=WINDOW)
        self.next: dict[TopicPartitionKey, int] = {}
        self.done: dict[TopicPartitionKey, set[int]] = {}
        self.kept: dict[TopicPartitionKey, list[int]] = {}
        self.handed: list[tuple[TopicPartitionKey, int]] = []
        self.running: list[tuple[TopicPartitionKey, int]] = []
        self.sent: list[dict[TopicPartitionKey, tuple[int, Handling | None]]] = []
        self.now_ms = 0
        for key in group.ends:
            position, found = group.committed.get(key, (0, None))
            self.care.begin(key, position, found)
            self.next[key], self.done[key], self.kept[key] = position, set(), []
        self.positions = dict(self.next)

    def position(self, key: TopicPartitionKey) -> int:
        while self.positions[key] in self.done[key]:
            self.positions[key] += 1
        return self.positions[key]

    def in_progress(self, key: TopicPartitionKey) -> set[int]:
        return {offset for each, offset in (*self.running, *self.handed) if each == key}

    def take(self, key: TopicPartitionKey) -> int | None:
        offset = self.next[key]
        if offset == self.group.ends[key]:
            return None
        self.next[key] += 1
        return offset

    def hand_out(self) -> None:
        self.now_ms += self.choose.choice([1, 1, 1, 40_000])
        care = self.care
        careful = [key for key in self.group.ends if care.is_careful(key, self.position(key))]
        waiting: dict[TopicPartitionKey, list[int]] = {}
        running = {key: self.in_progress(key) for key in careful}
        for key in careful:
            limit = 1 if care.has_suspects(key) else care.share
            while len(self.kept[key]) + len(running[key]) < limit:
                offset = self.take(key)
                if offset is None:
                    break
                times = care.at_limit(key).get(offset)
                if times is None:
                    self.kept[key].append(offset)
                else:
                    care.fail(key, offset)
                    self.group.failed[key, offset] = times
                    self.done[key].add(offset)
                limit = 1 if care.has_suspects(key) else care.share
            waiting[key] = list(self.kept[key])
        others = [key for key in self.group.ends if key not in careful]
        begin = care.next(waiting, running, lambda: any(map(self.in_progress, others)), self.now_ms)
        for key in careful:
            self.handed += [(key, offset) for offset in self.kept[key] if (key, offset) in begin]
            self.kept[key] = [offset for offset in self.kept[key] if (key, offset) not in begin]
        for key in others if not care.holds_others else ():
            self.handed += [(key, offset) for offset in self.kept[key]]
            self.kept[key] = []
            while (offset := self.take(key)) is not None:
                self.handed.append((key, offset))

    def commit(self) -> None:
        if not self.sent:
            self.sent.append({key: (self.position(key), self.care.handling(key)) for key in self.group.ends})

    def arrive(self) -> None:
        """A commit arrives, and so does its answer."""
        for commit in self.sent:
            for key, (position, handling) in commit.items():
                assert handling is not None
                text = encode_handling(handling.since(position))
                self.group.committed[key] = position, decode_handling(text)
                self.care.stored(key, handling)
        self.sent.clear()

    def work(self) -> None:
        while self.handed and len(self.running) < self.threads:
            message = self.handed.pop(0)
            self.running.append(message)
            if message in self.group.killers:
                raise DiedError
        if self.running:
            key, offset = message = self.running.pop(self.choose.randrange(len(self.running)))
            self.group.handled[message] += 1
            self.done[key].add(offset)

    def mark_released(self) -> None:
        self.care.mark_released(self.group.ends)
        self.sent.clear()
        self.commit()
        self.arrive()

    def run(self, steps: int | None) -> None:
        """Run until all is done, for a number of steps, or until it dies."""
        if self.choose.random() < 0.9:  # else it is killed before its first commit
            self.commit()
            self.arrive()
        while not self.group.is_done() and steps != 0:
            steps = None if steps is None else steps - 1
            self.choose.choice([self.hand_out, self.hand_out, self.commit, self.arrive, self.work, self.work])()


@given(st.data(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_killer_fails_and_nothing_else_does(data: st.DataObject, threads: int, choose: random.Random) -> None:
    ends = {P: data.draw(st.integers(0, 30)), Q: data.draw(st.integers(0, 30))}
    everything = [(key, offset) for key, end in ends.items() for offset in range(end)]
    killers = data.draw(st.sets(st.sampled_from(everything), max_size=3)) if everything else set()
    group = Group(ends, killers)
    kills, moves = data.draw(st.integers(0, MAX_DEATHS - 2)), data.draw(st.integers(0, 4))
    moved = 0
    lost = 0  # processes that died before their first commit
    while not group.is_done():
        process = Process(group, choose, threads)
        steps = choose.randrange(60) if kills + moves else None
        before = dict(group.committed)
        try:
            process.run(steps)
        except DiedError:
            group.deaths += 1
            lost += before == group.committed
        else:
            if group.is_done():
                break
            if kills:
                kills -= 1  # from outside
            else:
                moves -= 1
                moved += 1  # a process that was not careful may follow
                process.mark_released()
        assert group.deaths <= lost + moved + len(killers) * (MAX_DEATHS + 2), "the processes die forever"
    assert set(group.failed) == killers
    assert all(times >= MAX_DEATHS for times in group.failed.values())
    assert all(group.handled[message] >= 1 for message in everything if message not in killers)


def begun(found: Handling | None = None) -> CarefulStart:
    care = CarefulStart(max_deaths=3, window=4)
    care.begin(P, 10, found)
    return care


def store(care: CarefulStart) -> None:
    care.stored(P, care.handling(P))


def nobody() -> bool:
    return False


def test_after_an_end_in_good_order_nothing_is_handed_out_with_care() -> None:
    care = begun(Handling(is_open=False))
    assert not care.is_active
    assert care.dirty == {P}
    store(care)
    assert not care.dirty


def test_without_a_window_nothing_is_noted() -> None:
    care = CarefulStart()
    care.begin(P, 0, Handling(is_open=True, begun=((3, 2),)))
    assert care.handling(P) is None
    assert not care.dirty
    assert not care.is_active


def test_messages_wait_until_a_commit_has_noted_them() -> None:
    care = begun(Handling(is_open=True))
    assert care.is_careful(P, None)
    assert care.next({P: [10, 11]}, {P: []}, nobody, 0) == set()
    assert care.handling(P) == Handling(is_open=True, deaths=1, begun=((10, 1), (11, 1)))
    store(care)
    assert care.next({P: [10, 11]}, {P: []}, nobody, 0) == {(P, 10), (P, 11)}


def test_a_suspect_waits_until_nothing_else_is_in_progress() -> None:
    care = begun(Handling(is_open=True, begun=((10, 1),)))
    care.begin(Q, 0, None)
    busy = True
    assert care.next({P: [10]}, {P: []}, lambda: busy, 0) == set()
    assert care.holds_others
    busy = False
    care.next({P: [10]}, {P: []}, lambda: busy, 0)
    assert dict(care.handling(P).begun) == {10: 2}  # type: ignore[union-attr]
    store(care)
    assert care.next({P: [10]}, {P: []}, lambda: busy, 0) == {(P, 10)}
    assert care.holds_others
    care.next({P: []}, {P: []}, lambda: busy, 0)
    assert not care.has_suspects(P)
    assert care.holds_others  # the last commit would blame it if the process died now
    store(care)
    care.next({P: []}, {P: []}, lambda: busy, 0)
    assert not care.holds_others


def test_a_suspect_that_waits_for_half_a_minute_begins_but_is_not_counted() -> None:
    care = begun(Handling(is_open=True, begun=((10, 1),)))
    assert care.next({P: [10]}, {P: []}, lambda: True, 0) == set()
    care.next({P: [10]}, {P: []}, lambda: True, 30_000)
    assert dict(care.handling(P).begun) == {10: 1}  # type: ignore[union-attr]
    store(care)
    assert care.next({P: [10]}, {P: []}, lambda: True, 30_001) == {(P, 10)}
    assert not care.holds_others


def test_a_partition_given_back_in_good_order_keeps_its_suspects() -> None:
    care = begun(Handling(is_open=True, begun=((10, 2), (12, 1))))
    care.mark_released([P])
    assert care.handling(P) == Handling(is_open=False, begun=((10, 2), (12, 1)))
    after = begun(care.handling(P))
    assert after.is_careful(P, 10)
    assert after.has_suspects(P)


def test_care_lasts_twice_as_long_after_each_death() -> None:
    for deaths, until in ((0, 10_010), (1, 20_010), (3, 80_010), (40, 10 + 10_000 * 1024)):
        care = begun(Handling(is_open=True, deaths=deaths))
        assert care.is_careful(P, until - 1)
        assert not care.is_careful(P, until)
        assert care.handling(P) == Handling(is_open=True)


def test_care_ends_where_the_log_ended_at_the_start() -> None:
    for end, until in ((10, 10), (12, 12), (5, 10), (90_000, 10_010)):
        care = CarefulStart(max_deaths=3, window=4)
        care.begin(P, 10, Handling(is_open=True), end)
        assert care.is_active == (until > 10)
        assert not care.is_careful(P, until)


def test_a_seek_ends_the_care() -> None:
    care = begun(Handling(is_open=True, begun=((10, 2),)))
    care.end_care(P)
    assert not care.is_active
    assert care.handling(P) == Handling(is_open=True)


def test_a_suspect_that_is_gone_from_the_log_is_forgotten() -> None:
    care = begun(Handling(is_open=False, begun=((10, 2),)))
    assert not care.is_careful(P, 11)


@given(st.booleans(), st.integers(0, 999_999), st.dictionaries(OFFSETS, st.integers(1, 999_999), max_size=256))
def test_a_handling_is_read_as_it_was_written(is_open: bool, deaths: int, begun: dict[int, int]) -> None:
    handling = Handling(is_open, deaths, tuple(sorted(begun.items())))
    assert decode_handling(encode_handling(handling)) == handling


@pytest.mark.parametrize(
    "text", ["", "x1", "o", "o1,", "o1,5", "o1,5x", "o-1", "o1,5x1;", "g1,٣x1", "o1" + ",1x1" * 257]
)
def test_other_texts_are_not_understood(text: str) -> None:
    assert decode_handling(text) is None


class Member:
    """A living process that handles message 10 alone or among others, and is cut off while the call goes on."""

    def __init__(self, clock: list[int]) -> None:
        self.care = CarefulStart(max_deaths=3, window=4, now_ms=lambda: clock[0])

    def handle_and_be_cut_off(self, found: Handling | None) -> Handling | None:
        """Return what its last commit carries."""
        care = self.care
        care.begin(P, 10, found)
        store(care)
        assert not care.at_limit(P), "a healthy message would fail"
        if care.is_careful(P, 10):
            care.next({P: [10]}, {P: []}, nobody, 0)
            store(care)
            assert care.next({P: [10]}, {P: []}, nobody, 0) == {(P, 10)}
        handling = care.handling(P)
        care.forget(P)
        return handling


@pytest.mark.parametrize("pause_ms", [1_000, 3_600_000])
def test_a_process_that_lost_its_partition_takes_back_its_marks(pause_ms: int) -> None:
    clock = [0]
    member, found = Member(clock), None
    for _ in range(8):
        found = member.handle_and_be_cut_off(found)
        clock[0] += pause_ms
    assert found is None or all(times == 1 for _, times in found.begun)


def test_a_process_takes_back_its_marks_after_others_had_the_partition() -> None:
    clock = [0]
    members, found = [Member(clock), Member(clock), Member(clock)], Handling(is_open=True)
    for turn in range(12):
        clock[0] += 3_600_000
        found = members[turn % 3].handle_and_be_cut_off(found) or found
    assert dict(found.begun) == {10: 3}
    clock[0] += 3_600_000
    stranger = CarefulStart(max_deaths=3, window=4)
    stranger.begin(P, 10, found)
    assert stranger.at_limit(P) == {10: 3}, "nothing tells it that the three live"


def test_a_process_that_was_cut_off_believes_nobodys_marks() -> None:
    clock = [0]
    member = Member(clock)
    member.handle_and_be_cut_off(None)
    for clock[0], suspects in ((599_999, {}), (600_000, {10: 3, 11: 1})):
        assert member.care.begin(P, 10, Handling(is_open=True, begun=((10, 3), (11, 1)))) == suspects
        assert member.care.is_careful(P, 10)


def test_a_process_that_gave_its_partition_back_believes_the_marks_of_others() -> None:
    care = begun()
    store(care)
    care.mark_released([P])
    store(care)
    care.forget(P)
    assert care.begin(P, 10, Handling(is_open=True, begun=((10, 3),))) == {10: 3}

"""The sampler's thread runs while somebody watches, and one round serves everybody."""

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from rocketshim.errors import BrokerUnavailableError, ClosedError
from rocketshim.observe.sampler import Sampler
from rocketshim.observe.snapshot import GroupStanding, Offsets, PartitionStanding, WorkerSnapshot
from rocketshim.testing import VirtualClock
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames

NAMES, LEVELS = TopicNames(""), DelayLevels.default()
PATIENCE_S = 60.0


class Rounds:
    """Look-ups that a test permits one by one."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.permits = threading.Semaphore(0)
        self.all_permitted = False
        self.made = self.opened = 0
        self.begun, self.closed = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self) -> "Rounds":
        self.opened += 1
        return self

    def look_up(self, between: Callable[[], None]) -> Offsets:
        del between
        self.begun.release()
        assert self.all_permitted or self.permits.acquire(timeout=PATIENCE_S)
        self.made += 1
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return Offsets(topics={NAMES.schedule: 0})

    def permit_all(self) -> None:
        self.all_permitted = True
        self.permits.release()

    def close(self) -> None:
        self.closed.release()


def sampler(rounds: Rounds, idle_s: float = 0.0) -> Sampler:
    return Sampler(rounds, NAMES, LEVELS, every_s=0.0, idle_s=idle_s, clock=VirtualClock())


def test_no_client_is_made_before_somebody_watches() -> None:
    rounds = Rounds()
    with sampler(rounds) as sampling:
        assert not sampling.is_running
    assert rounds.opened == 0


class SlowRound:
    """A look-up that takes 70 s, with one record that was due 10 s after it began and is delivered since."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock

    def look_up(self, between: Callable[[], None]) -> Offsets:
        between()
        key, due_ms = TopicPartitionKey(NAMES.schedule, 0), self.clock.wall_ms() + 10_000
        self.clock.advance(70_000)
        waiting = PartitionStanding(*key, 0, 0, 1, first_unread_ms=due_ms - 1_000)
        worker = GroupStanding(NAMES.worker_group, partitions=(waiting,))
        return Offsets({NAMES.schedule: 1}, {key: (0, 1)}, {NAMES.worker_group: worker})

    def close(self) -> None:
        """Nothing is open."""


def test_what_was_due_after_a_slow_round_had_begun_is_not_late() -> None:
    clock = VirtualClock()
    with Sampler(lambda: SlowRound(clock), NAMES, LEVELS, clock=clock) as sampling, sampling.watch() as watch:
        snapshot = watch.wait_newer(None, PATIENCE_S)
    assert snapshot is not None
    assert (snapshot.waiting, snapshot.late_ms) == (1, 0)


def test_the_last_hour_is_noted_and_outlasts_the_thread() -> None:
    clock = VirtualClock()
    with Sampler(lambda: SlowRound(clock), NAMES, LEVELS, every_s=0.0, idle_s=0.0, clock=clock) as sampling:
        with sampling.watch() as watch:
            newest = None
            for _ in range(3):
                newest = watch.wait_newer(newest, PATIENCE_S)
                assert newest is not None
        sampling.close()
        assert [value for _, value in sampling.history.series("waiting")][:2] == [1, 1]


class EndlessRound:
    """A look-up of requests without an end."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()

    def look_up(self, between: Callable[[], None]) -> Offsets:
        while True:
            between()
            self.has_begun.set()

    def close(self) -> None:
        """Nothing is open."""


def test_a_sampler_that_closes_does_not_wait_for_the_rest_of_its_round() -> None:
    endless = EndlessRound()
    with Sampler(lambda: endless, NAMES, LEVELS) as sampling, sampling.watch():
        assert endless.has_begun.wait(PATIENCE_S)


def test_what_the_first_round_found_is_kept_for_a_watcher_that_comes_back() -> None:
    rounds = Rounds()
    with sampler(rounds, idle_s=PATIENCE_S) as sampling:
        with sampling.watch():
            assert rounds.begun.acquire(timeout=PATIENCE_S)
        sampling._unwatched_since_s -= 2 * PATIENCE_S  # the round takes longer than the thread goes on unwatched
        rounds.permits.release()
        goes_on = rounds.begun.acquire(timeout=PATIENCE_S)
        rounds.permit_all()
        assert goes_on
        with sampling.watch() as watch:
            assert watch.newest() is not None


def test_many_watchers_share_each_round() -> None:
    rounds = Rounds()
    with sampler(rounds) as sampling, sampling.watch() as one, sampling.watch() as other:
        assert one.newest() is None
        rounds.permits.release()
        seen = one.wait_newer(None, PATIENCE_S)
        assert seen is not None
        assert other.wait_newer(None, PATIENCE_S) is seen
        assert (rounds.opened, rounds.made) == (1, 1)
        rounds.permits.release()
        assert other.wait_newer(seen, PATIENCE_S) is not seen
        rounds.permit_all()


def test_the_thread_ends_and_closes_its_clients_when_nobody_watches() -> None:
    rounds = Rounds()
    with sampler(rounds) as sampling:
        with sampling.watch() as watch:
            rounds.permits.release()
            assert watch.wait_newer(None, PATIENCE_S) is not None
            rounds.permit_all()
        assert rounds.closed.acquire(timeout=PATIENCE_S)
        assert not sampling.is_running
        with sampling.watch() as watch:
            assert watch.wait_newer(None, PATIENCE_S) is not None
        assert rounds.opened == 2


def test_a_round_that_fails_keeps_the_last_values_and_the_next_round_has_new_clients() -> None:
    rounds = Rounds(None, BrokerUnavailableError("no broker answered"), ValueError("unexpected"))
    with sampler(rounds) as sampling, sampling.watch() as watch:
        seen = None
        found = []
        for _ in range(4):
            rounds.permits.release()
            seen = watch.wait_newer(seen, PATIENCE_S)
            assert seen is not None
            found.append(seen.error)
        assert found == [None, "no broker answered", "unexpected", None]
        assert rounds.opened == 3
        rounds.permit_all()


@pytest.mark.parametrize("errors", [(), (BrokerUnavailableError("no broker answered"),)])
def test_after_a_round_that_lasted_long_the_next_one_waits(
    monkeypatch: pytest.MonkeyPatch, errors: tuple[Exception, ...]
) -> None:
    """A command that shows the error ends then, and pages are not always behind a round."""
    now_s = [0.0]
    monkeypatch.setattr("rocketshim.observe.sampler.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    rounds = Rounds(*errors)

    def look_up(between: Callable[[], None]) -> Offsets:
        now_s[0] += 100.0
        return Rounds.look_up(rounds, between)

    rounds.look_up = look_up  # type: ignore[method-assign]
    rounds.permit_all()
    with Sampler(rounds, NAMES, LEVELS, every_s=50.0, clock=VirtualClock()) as sampling, sampling.watch() as watch:
        assert watch.wait_newer(None, PATIENCE_S) is not None
    assert rounds.made == 1


def test_if_the_system_has_no_thread_left_the_next_watcher_starts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    rounds = Rounds()
    rounds.permit_all()
    with sampler(rounds) as sampling:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start new thread"), sampling.watch():
                pass
        assert not sampling.is_running
        with sampling.watch() as watch:
            assert watch.wait_newer(None, PATIENCE_S) is not None


def test_a_wait_without_a_newer_snapshot_ends() -> None:
    rounds = Rounds()
    with sampler(rounds) as sampling, sampling.watch() as watch:
        assert watch.wait_newer(None, 0.01) is None
        rounds.permit_all()


def test_a_closed_sampler_is_not_watched() -> None:
    sampling = sampler(Rounds())
    sampling.close()
    sampling.close()
    with pytest.raises(ClosedError), sampling.watch():
        pass


def test_workers_are_asked_in_each_round_also_while_the_cluster_does_not_answer() -> None:
    rounds, asked = Rounds(BrokerUnavailableError("away"), None), []

    def ask() -> tuple[WorkerSnapshot, ...]:
        asked.append(WorkerSnapshot(f"http://worker-{len(asked)}:8080"))
        return (asked[-1],)

    sampling = Sampler(rounds, NAMES, LEVELS, every_s=0.0, idle_s=0.0, clock=VirtualClock(), workers=ask)
    with sampling, sampling.watch() as watch:
        rounds.permits.release()
        failed = watch.wait_newer(None, PATIENCE_S)
        assert failed is not None
        assert (failed.error, failed.workers) == ("away", (asked[0],))
        rounds.permits.release()
        good = watch.wait_newer(failed, PATIENCE_S)
        assert good is not None
        assert (good.error, good.workers) == (None, (asked[1],))
        rounds.permit_all()

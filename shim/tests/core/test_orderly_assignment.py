"""Facts about `rocketshim.core.orderly_assignment`: the states of a partition, then random histories beside a model."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketshim.core.orderly_assignment import (
    TRANSITIONS,
    EndRun,
    OrderlyAssignment,
    PartitionEvent,
    PartitionState,
    PauseReading,
    ReleaseLock,
)
from rocketshim.locks.lease import Lease, QueueStarted
from rocketshim_topics.message_queue import MessageQueue

KEY = ("orders", 0)


def grant(token: int = 1) -> QueueStarted:
    return QueueStarted(Lease(MessageQueue("orders", queue_id=0), token, 1_000), 7, ((7, 2),))


def running(lock: QueueStarted) -> OrderlyAssignment[tuple[str, int]]:
    """Return an assignment with one partition, which runs."""
    assignment: OrderlyAssignment[tuple[str, int]] = OrderlyAssignment()
    assignment.assign([KEY])
    assert assignment.grant(KEY, lock) == []
    assignment.start(KEY)
    return assignment


def test_every_state_is_reached_and_left_and_every_event_happens() -> None:
    assert {state for state, _ in TRANSITIONS} == set(PartitionState)
    assert {state for state, _ in TRANSITIONS.values()} == set(PartitionState)
    assert {event for _, event in TRANSITIONS} == set(PartitionEvent)


def test_a_revoked_partition_keeps_its_lock_until_its_listener_has_returned() -> None:
    lock = grant()
    assignment = running(lock)
    assert assignment.revoke([KEY]) == [EndRun(KEY)]
    assert assignment.wanted == []
    assert assignment.draining == [KEY]
    assert assignment.drain(KEY) == [ReleaseLock(KEY, lock)]
    assert assignment.state_of(KEY) is PartitionState.UNASSIGNED


def test_a_lock_that_comes_too_late_is_released_with_what_the_log_knew() -> None:
    assignment: OrderlyAssignment[tuple[str, int]] = OrderlyAssignment()
    lock = grant()
    assert assignment.grant(KEY, lock) == [ReleaseLock(KEY, lock)]
    assert assignment.started(KEY) is None


def test_a_lost_lock_is_wanted_again_after_the_listener_has_returned() -> None:
    lock = grant()
    assignment = running(lock)
    assert assignment.stop(KEY, lock.lease) == [EndRun(KEY), PauseReading(KEY)]
    assert assignment.lost_count == 1
    assert assignment.wanted == [KEY]
    assert assignment.drain(KEY) == [ReleaseLock(KEY, lock)]
    assert assignment.grant(KEY, grant(2)) == []
    assert assignment.starting == [KEY]


def test_a_partition_whose_log_was_cut_starts_again_under_the_same_lock() -> None:
    lock = grant()
    assignment = running(lock)
    assert assignment.cut(KEY) == [EndRun(KEY), PauseReading(KEY)]
    assignment.start(KEY)
    assert assignment.revoke([KEY]) == [EndRun(KEY)]
    assert assignment.drain(KEY) == [ReleaseLock(KEY, lock)]


def test_a_stop_of_a_former_lock_is_ignored() -> None:
    assignment = running(grant(2))
    assert assignment.stop(KEY, grant(1).lease) == []
    assert assignment.state_of(KEY) is PartitionState.RUNNING


def test_an_event_that_cannot_happen_is_an_error_and_changes_nothing() -> None:
    lock = grant()
    assignment = running(lock)
    with pytest.raises(ValueError, match="GRANT cannot happen"):
        assignment.grant(KEY, grant(2))
    with pytest.raises(ValueError, match="DRAIN cannot happen"):
        assignment.drain(KEY)
    with pytest.raises(ValueError, match="ASSIGN cannot happen"):
        assignment.assign([KEY])
    assert (assignment.state_of(KEY), assignment.started(KEY)) == (PartitionState.RUNNING, lock)


# --- random histories ---------------------------------------------------------------------------------------------


@dataclass
class Model:
    """One partition as a handful of flags, and what must be done with it."""

    assigned: bool = False
    lock: QueueStarted | None = None
    usable: bool = False  # the lock was neither stopped nor revoked since it was granted
    runs: bool = False
    ended: bool = False
    again: bool = False  # the run starts again after it has ended
    lost: int = 0
    actions: list[Any] = field(default_factory=list)

    def assign(self) -> None:
        self.assigned = True

    def revoke(self) -> None:
        self.assigned = False
        self._give_up_lock(pause=False)

    def grant(self, lock: QueueStarted) -> None:
        self.lock, self.usable = lock, self.assigned
        if not self.assigned:
            self._release()

    def stop(self, lease: Lease) -> None:
        if self.lock is not None and self.lock.lease is lease and self.usable:
            self.lost += 1
            self._give_up_lock(pause=True)

    def start(self) -> None:
        self.runs, self.ended, self.again = True, False, False

    def cut(self) -> None:
        self.ended = self.again = True
        self.actions += [EndRun(KEY), PauseReading(KEY)]

    def drain(self) -> None:
        self._release()

    def _give_up_lock(self, *, pause: bool) -> None:
        if not self.usable:
            return
        self.usable = self.again = False
        if not self.runs:
            self._release()
        elif not self.ended:
            self.ended = True
            self.actions.append(EndRun(KEY))
            self.actions += [PauseReading(KEY)] if pause else []

    def _release(self) -> None:
        self.actions.append(ReleaseLock(KEY, self.lock))  # type: ignore[arg-type]
        self.lock = None
        self.runs = self.usable = self.ended = self.again = False


class History:
    """Random events of one partition, given to the state machine and to the model."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.assignment: OrderlyAssignment[tuple[str, int]] = OrderlyAssignment()
        self.model = Model()
        self.granted: list[QueueStarted] = []
        self.released: list[QueueStarted] = []

    def step(self, event: PartitionEvent) -> None:
        """Let an event happen, if it can, and compare."""
        model, assignment = self.model, self.assignment
        model.actions = []
        actions: list[Any] = []
        match event:
            case PartitionEvent.ASSIGN if not model.assigned:
                assignment.assign([KEY])
                model.assign()
            case PartitionEvent.REVOKE:
                actions = list(assignment.revoke([KEY]))
                model.revoke()
            case PartitionEvent.GRANT if model.lock is None:
                self.granted.append(grant(len(self.granted)))
                actions = list(assignment.grant(KEY, self.granted[-1]))
                model.grant(self.granted[-1])
            case PartitionEvent.STOP if self.granted:
                lease = self.random.choice(self.granted[-2:]).lease
                actions = list(assignment.stop(KEY, lease))
                model.stop(lease)
            case PartitionEvent.START if model.usable and (not model.runs or model.again):
                assignment.start(KEY)
                model.start()
            case PartitionEvent.CUT if model.runs and not model.ended:
                actions = list(assignment.cut(KEY))
                model.cut()
            case PartitionEvent.DRAIN if model.ended and not model.again:
                actions = list(assignment.drain(KEY))
                model.drain()
            case PartitionEvent.STOP:
                pass
            case _:
                self.refused(event)
        self.compare(actions)

    def refused(self, event: PartitionEvent) -> None:
        """Check that an event that the model does not allow has no transition."""
        assert (self.assignment.state_of(KEY), event) not in TRANSITIONS

    def compare(self, actions: list[Any]) -> None:
        model = self.model
        assert actions == model.actions
        self.released += [action.started for action in actions if isinstance(action, ReleaseLock)]
        assert self.assignment.started(KEY) == model.lock
        assert self.assignment.lease_of(KEY) == (model.lock.lease if model.lock and model.usable else None)
        assert self.assignment.wanted == ([KEY] if model.assigned else [])
        assert bool(self.assignment.waiting) == (model.assigned and model.lock is None)
        assert bool(self.assignment.starting) == (model.usable and not model.runs)
        assert bool(self.assignment.draining) == model.ended
        assert self.assignment.is_changing == (model.ended or (model.assigned and not model.runs))
        assert self.assignment.lost_count == model.lost


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_every_history_equals_the_model_and_each_lock_is_released_once(seed: int) -> None:
    random = Random(seed)  # noqa: S311 - a test's dice
    history = History(random)
    for event in random.choices(list(PartitionEvent), k=200):
        history.step(event)
    history.step(PartitionEvent.REVOKE)
    history.step(PartitionEvent.DRAIN)
    assert history.released == history.granted
    assert history.assignment.state_of(KEY) is PartitionState.UNASSIGNED


def test_the_histories_reach_every_transition() -> None:
    seen: set[Any] = set()
    random = Random(5)  # noqa: S311 - a test's dice
    history = History(random)
    for event in random.choices(list(PartitionEvent), k=5_000):
        before = history.assignment.state_of(KEY)
        history.step(event)
        seen.add((before, event))
    assert set(TRANSITIONS) <= seen

"""Random programs of commands, deaths and clocks: a name is delivered as the log alone says."""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketshim.core.named_timers import NAME_BYTES, Change, Command, Effect, Generations, TimerTable

NAME = b"digest of the o7"


def table(*commands: tuple[Command, int | None]) -> tuple[TimerTable, list[Effect]]:
    """Apply commands at the offsets 0, 1, 2 …; return the table and what each did."""
    made = TimerTable()
    return made, [
        made.apply(at, command, NAME, generation=generation).effect for at, (command, generation) in enumerate(commands)
    ]


def test_a_timer_that_nothing_voids_fires_once() -> None:
    made, effects = table((Command.SET, None), (Command.FIRE, 0), (Command.FIRE, 0))
    assert effects == [Effect.SCHEDULE, Effect.DELIVER, Effect.NOTHING]
    assert len(made) == 0


def test_a_cancel_before_the_fire_wins_and_one_behind_it_is_too_late() -> None:
    _, effects = table((Command.SET, None), (Command.CANCEL, None), (Command.FIRE, 0))
    assert effects == [Effect.SCHEDULE, Effect.FORGET, Effect.NOTHING]
    _, effects = table((Command.SET, None), (Command.FIRE, 0), (Command.CANCEL, None))
    assert effects == [Effect.SCHEDULE, Effect.DELIVER, Effect.NOTHING]


def test_a_name_that_is_set_again_replaces_the_former_message() -> None:
    made, effects = table((Command.SET, None), (Command.SET, None), (Command.FIRE, 0), (Command.FIRE, 1))
    assert effects == [Effect.SCHEDULE, Effect.SCHEDULE, Effect.NOTHING, Effect.DELIVER]
    assert len(made) == 0


def test_set_if_absent_never_replaces_a_pending_name() -> None:
    made, effects = table((Command.SET_IF_ABSENT, None), (Command.SET_IF_ABSENT, None), (Command.FIRE, 0))
    assert effects == [Effect.SCHEDULE, Effect.NOTHING, Effect.DELIVER]
    assert made.apply(3, Command.SET_IF_ABSENT, NAME).after == 3


def test_now_delivers_the_pending_message_and_its_fire_finds_nothing() -> None:
    made, _ = table((Command.SET, None))
    assert made.apply(1, Command.NOW, NAME) == Change(Effect.DELIVER_PENDING, 0, None)
    assert made.apply(2, Command.NOW, NAME).effect is Effect.NOTHING
    assert made.apply(3, Command.FIRE, NAME, generation=0).effect is Effect.NOTHING


def test_a_debounce_is_not_put_off_for_longer_than_at_most() -> None:
    made = TimerTable()

    def put(offset: int, appended_ms: int) -> Change:
        return made.apply(offset, Command.SET, NAME, due_ms=appended_ms + 100, appended_ms=appended_ms, at_most_ms=250)

    assert [put(at, 1_000 + 80 * at).due_ms for at in range(4)] == [1_100, 1_180, 1_250, 1_250]
    made.apply(4, Command.FIRE, NAME, generation=3)
    assert put(5, 2_000).due_ms == 2_100


def test_a_limit_of_a_debounce_outlives_its_owner() -> None:
    made = TimerTable()
    made.load(NAME, 3, is_pending=True, since_ms=1_000)
    made.begin()
    assert made.apply(4, Command.SET, NAME, due_ms=9_000, appended_ms=1_200, at_most_ms=250).due_ms == 1_250


def test_a_command_that_its_entry_knows_is_not_applied_again() -> None:
    made = TimerTable()
    made.load(NAME, 5, is_pending=False)  # ahead of the position: the unique job of offset 4 was refused, 3 fired
    assert made.apply(4, Command.SET_IF_ABSENT, NAME).effect is Effect.NOTHING
    assert made.apply(5, Command.FIRE, NAME, generation=3).effect is Effect.NOTHING
    made.begin()
    assert made.apply(6, Command.SET_IF_ABSENT, NAME).effect is Effect.SCHEDULE


def test_an_older_entry_that_a_frozen_owner_stored_late_is_ignored() -> None:
    made = TimerTable()
    made.load(NAME, 7, is_pending=True)
    made.load(NAME, 5, is_pending=False)
    made.load(NAME, 5, is_pending=True)
    made.begin()
    assert made.pending(NAME) == 7
    assert made.next_offset == 8


def test_an_end_that_was_stored_is_not_undone_by_an_older_entry() -> None:
    made = TimerTable()
    made.load(NAME, 7, is_pending=False)
    made.load(NAME, 5, is_pending=True)
    assert len(made) == 0


def test_a_message_that_cannot_wait_frees_its_name() -> None:
    made, _ = table((Command.SET, None), (Command.SET, None))
    assert not made.forget(NAME, 0)
    assert made.forget(NAME, 1)
    assert made.apply(2, Command.SET_IF_ABSENT, NAME).effect is Effect.SCHEDULE


ALIKE = st.integers(0, NAME_BYTES).map(lambda at: (b"\1".rjust(at, b"\0") if at else b"").ljust(NAME_BYTES, b"\0"))
STEP = st.tuples(st.sampled_from(["keep", "keep", "pop", "get"]), ALIKE, st.sampled_from([0, 1, 256, 2**63 - 1]))


@settings(max_examples=300)
@given(st.lists(STEP, max_size=60))
def test_generations_are_found_as_in_a_dict_also_if_names_and_numbers_look_alike(
    steps: list[tuple[str, bytes, int]],
) -> None:
    found, plain = Generations(), dict[bytes, int]()
    for do, name, number in steps:
        assert found.get(name) == plain.get(name)
        if do == "keep":
            found.keep(name, number)
            plain[name] = number
        elif do == "pop":
            assert found.pop(name) == plain.pop(name, None)
    assert len(found) == len(plain)
    assert dict(found.items()) == plain


def test_a_half_message_is_asked_about_until_it_is_committed() -> None:
    made = TimerTable()
    made.apply(0, Command.SET, NAME, checks_left=2)
    assert made.apply(1, Command.FIRE, NAME, generation=0, due_ms=30, checks_left=2) == Change(Effect.ASK, 0, 1, 30)
    assert made.apply(2, Command.FIRE, NAME, generation=0, checks_left=2).effect is Effect.NOTHING
    assert made.apply(3, Command.NOW, NAME) == Change(Effect.DELIVER_PENDING, 1, None)
    assert made.apply(4, Command.FIRE, NAME, generation=1, checks_left=1).effect is Effect.NOTHING


def test_a_half_message_is_given_up_after_the_last_question_and_a_commit_comes_too_late() -> None:
    made = TimerTable()
    made.apply(0, Command.SET, NAME, checks_left=1)
    made.apply(1, Command.FIRE, NAME, generation=0, checks_left=1)
    assert made.apply(2, Command.FIRE, NAME, generation=1, checks_left=0).effect is Effect.GIVE_UP
    assert len(made) == 0
    assert made.apply(3, Command.NOW, NAME).effect is Effect.NOTHING


class DiedError(Exception):
    """The owner ends between two writes."""


@dataclass
class Entry:
    """A record of the command log."""

    command: Command
    name: bytes
    generation: int | None = None
    due: int = 0
    left: int | None = None  # of a half message: how often its producers may still be asked

    def apply(self, made: TimerTable, at: int) -> Change:
        return made.apply(
            at, self.command, self.name, generation=self.generation, due_ms=self.due, checks_left=self.left
        )


@dataclass
class World:
    """A command log, its compacted state, one delay queue, and a target. One owner at a time, which may die."""

    dice: Random
    exactly_once: bool
    crash: float = 0.15
    now: int = 0
    position: int = 0
    log: list[Entry] = field(default_factory=list)
    stored: list[tuple[bytes, int, int | None]] = field(default_factory=list)
    before_last: int = 0  # number of entries before the last transaction, whose markers may arrive late
    waiting: list[tuple[int, bytes, int, int | None]] = field(default_factory=list)
    delivered: list[tuple[bytes, int, int]] = field(default_factory=list)
    asked: list[tuple[bytes, int]] = field(default_factory=list)
    given_up: list[tuple[bytes, int]] = field(default_factory=list)
    unfinished: set[tuple[bytes, int]] = field(default_factory=set)  # delivered, and the position is not stored
    repeatable: set[tuple[bytes, int]] = field(default_factory=set)

    def own(self, steps: int) -> None:
        """Apply some commands as a new owner; it may die at any write."""
        made = TimerTable()
        markers_are_late = self.exactly_once and self.dice.random() < 0.3
        for name, applied, generation in self.stored[: self.before_last if markers_are_late else None]:
            made.load(name, applied, is_pending=generation is not None)
        known = made.next_offset
        for at in range(min(known, self.position), max(known, self.position)):
            self.log[at].apply(made, at)
        made.begin()
        self.position = max(known, self.position)
        try:
            while self.position < len(self.log) and steps > 0:
                steps -= self._turn(made, min(steps, self.dice.randint(1, 4)))
        except DiedError:
            pass

    def _turn(self, made: TimerTable, most: int) -> int:
        """Apply a run of commands: effects, then the state, then the position; or all of it in one transaction."""
        run = list(enumerate(self.log))[self.position : self.position + most]
        changes = [(at, each, each.apply(made, at)) for at, each in run]
        end = run[-1][0] + 1
        self.unfinished = set()
        if self.exactly_once:
            self._die()
        self.before_last = len(self.stored)
        for at, each, change in changes:
            self._effect(at, each, change)
        for at, each, change in changes:
            if change.is_change:
                self.stored.append((each.name, at, change.after))
                self._die_between()
        self.position = end
        self._die_between()
        return len(run)

    def _effect(self, at: int, each: Entry, change: Change) -> None:
        of = each.name, -1 if change.before is None else change.before
        if change.effect is Effect.SCHEDULE:
            self.waiting.append((change.due_ms, each.name, at, each.left))
        elif change.effect is Effect.NOTHING or change.effect is Effect.FORGET:
            pass
        else:
            self.unfinished.add(of)
            if change.effect is Effect.GIVE_UP:
                self.given_up.append(of)
            elif change.effect is Effect.ASK:
                self.waiting.append((self.now + 7, each.name, at, (each.left or 0) - 1))
                self._die_between()
                self.asked.append(of)
            else:
                self.delivered.append((*of, self.now))
        self._die_between()

    def _die_between(self) -> None:
        if not self.exactly_once:
            self._die()

    def _die(self) -> None:
        if self.dice.random() < self.crash:
            self.repeatable |= self.unfinished
            raise DiedError

    def tick(self) -> None:
        """Let time pass; the owner of the delay queue writes a FIRE for what is due, perhaps twice."""
        self.now += self.dice.randint(1, 5)
        due = [each for each in self.waiting if each[0] <= self.now]
        self.waiting = [each for each in self.waiting if each[0] > self.now]
        self.dice.shuffle(due)
        for _, name, generation, left in due:
            twice = not self.exactly_once and self.dice.random() < 0.2
            self.log += [Entry(Command.FIRE, name, generation, left=left)] * (1 + twice)

    def finish(self) -> None:
        """Go on with fewer deaths until nothing waits."""
        self.crash = 0.02
        for _ in range(500):
            self.own(50)
            self.tick()
            if self.position == len(self.log) and not self.waiting:
                return
        pytest.fail("it does not end")


@dataclass
class Verdict:
    """What the log says happens to generations."""

    fired: set[tuple[bytes, int]] = field(default_factory=set)
    at_once: set[tuple[bytes, int]] = field(default_factory=set)  # delivered by a NOW, perhaps early
    asked: set[tuple[bytes, int]] = field(default_factory=set)
    given_up: set[tuple[bytes, int]] = field(default_factory=set)


def by_the_log(log: list[Entry]) -> Verdict:
    """Return what the log says."""
    live: dict[bytes, int] = {}
    says = Verdict()
    for at, each in enumerate(log):
        if each.command is Command.SET or (each.command is Command.SET_IF_ABSENT and each.name not in live):
            live[each.name] = at
        elif each.command is Command.CANCEL:
            live.pop(each.name, None)
        elif each.command is Command.NOW and each.name in live:
            says.at_once.add((each.name, live.pop(each.name)))
        elif each.command is Command.FIRE and each.name in live and live[each.name] == each.generation:
            of = each.name, live.pop(each.name)
            if each.left is None:
                says.fired.add(of)
            elif each.left:
                says.asked.add(of)
                live[each.name] = at
            else:
                says.given_up.add(of)
    return says


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_any_program_with_deaths_between_any_two_writes_delivers_what_the_log_says(
    seed: int, exactly_once: bool
) -> None:
    dice = Random(seed)  # noqa: S311 - a test, no secret
    world = World(dice, exactly_once)
    names = [b"digest%010d" % number for number in range(dice.randint(1, 6))]
    for _ in range(dice.randint(20, 120)):
        name, due = dice.choice(names), world.now + dice.randint(0, 20)
        kind = dice.random()
        if kind < 0.35:
            world.log.append(Entry(Command.SET, name, due=due, left=dice.choice([None, None, 0, 1, 2])))
        elif kind < 0.45:
            world.log.append(Entry(Command.SET_IF_ABSENT, name, due=due))
        elif kind < 0.60:
            world.log.append(Entry(Command.CANCEL, name))
        elif kind < 0.65:
            world.log.append(Entry(Command.NOW, name))
        elif kind < 0.85:
            world.own(dice.randint(1, 10))
        else:
            world.tick()
    world.finish()
    says = by_the_log(world.log)
    ends = [(name, generation) for name, generation, _ in world.delivered]
    for did, wanted in (
        (ends, says.fired | says.at_once),
        (world.asked, says.asked),
        (world.given_up, says.given_up),
    ):
        assert set(did) == wanted
        assert len(did) == len(wanted) or not exactly_once
        assert {of for of in did if did.count(of) > 1} <= world.repeatable
    for name, generation, at in world.delivered:
        assert (name, generation) in says.at_once or at >= world.log[generation].due

"""The steps of a simulated run, all chosen by its seed before it begins.

A step carries every number that it needs, and takes effect in any state of the run. So steps can be left out of a plan,
which is how a failing one is shrunk. Each seed also chooses which kinds of faults it has: runs without faults find
repeats that nothing explains, runs with few kinds get deeper into each.
"""

from dataclasses import dataclass
from random import Random
from typing import Final, Literal

__all__ = ["FAULTS", "Kind", "Plan", "Step", "make_plan"]

Kind = Literal[
    "send",  # a message
    "turn",  # of a worker's or a consumer's loop
    "listen",  # a listener runs a chunk
    "hear",  # results of listeners that were late arrive
    "report",  # the sender's thread polls
    "pass",  # time
    "crash",  # a process dies at one of its next calls of Kafka
    "freeze",  # a process stands still
    "leave",  # a process ends in order
    "evict",  # the group puts a member out
    "refuse",  # the broker refuses records
    "lose-reply",  # the broker stores records, and the answer is lost
    "repeat-reply",  # the broker calls records duplicates, and has not stored them
    "hold",  # delivery reports wait, so that results arrive in another order
    "release",  # … and arrive
    "commit-fails",  # a commit of positions is refused, or its answer is lost
    "transaction-fails",  # a call of a transaction fails, and may have taken effect
    "broker-down",  # for a while
    "clock",  # the brokers' clock is set
    "settle",  # faults end, and all processes work until nothing is pending
    "name",  # a message with a name is sent, or a command for one
    "half",  # a transaction begins: its half message is sent
    "sender",  # the sender dies at one of its next calls, or ends, or its records are called duplicates
    "half-answer",  # a broker refuses a part of an answer about where logs begin and end
    "log",  # the log of the orderly consumers' group is created again, truncated, or gets a record of a later version
    "redrive",  # a redrive is planned or resumed; it may crash, or be overtaken by another
]

FAULTS: Final[tuple[Kind, ...]] = (
    "crash", "freeze", "leave", "evict", "refuse", "lose-reply", "repeat-reply", "hold", "commit-fails",
    "transaction-fails", "broker-down", "clock",
)  # fmt: skip
_OFTEN: Final[dict[Kind, int]] = {"turn": 12, "listen": 4, "send": 3, "hear": 1, "report": 1, "pass": 1, "release": 1}
_WORK: Final[tuple[Kind, ...]] = tuple(kind for kind, share in _OFTEN.items() for _ in range(share))


@dataclass(frozen=True, slots=True)
class Step:
    """One step: what, whom it concerns, and a number that the kind interprets."""

    kind: Kind
    who: int
    amount: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does.

    Attributes:
        seed: it was made from this seed.
        exactly_once: the mode of its workers.
        orderly: whether the consumers take the messages of a queue in order.
        logs: whether the log of the orderly consumers' group is lost.
        half_answers: whether a broker refuses a part of answers about where logs begin and end.
        churns: whether members come and go, and nothing else goes wrong: then no repeat is explained.
        redrives: whether dead letters are sent again; then there are more of them.
        senders: whether the sender dies or ends, and another one starts.
        dropin: whether the consumers are programs with the drop-in consumer.
        rolling: whether one of the consumers has no listener for the topic until the end, as in a rolling deployment.
        killers: whether some messages kill the process of the push consumer that gets them.
        timers: whether messages have names, by which they are cancelled, replaced or delivered now, and transactions.
        alone: whether there is only one worker.
        kip_848: whether the brokers assign the partitions to the push consumers.
        steps: what happens, in order.
    """

    seed: int
    exactly_once: bool
    orderly: bool
    logs: bool
    half_answers: bool
    churns: bool
    redrives: bool
    senders: bool
    dropin: bool
    rolling: bool
    killers: bool
    timers: bool
    alone: bool
    kip_848: bool
    steps: tuple[Step, ...]


def make_plan(seed: int, *, length: int = 160) -> Plan:
    """Make the plan of a seed."""
    dice = Random(seed)  # noqa: S311 - repeatable, no secret
    faults = dice.sample(FAULTS, dice.choice([0, 1, 2, 3, 5]))
    share = dice.choice([0.02, 0.05, 0.12]) if faults else 0.0
    churns = seed % 8 == 7
    if churns:
        faults, share = ["leave"], 0.12
    steps = [
        Step(
            dice.choice(faults) if faults and dice.random() < share else dice.choice(_WORK),
            dice.randrange(4),
            dice.randrange(10_000),
        )
        for _ in range(length)
    ]
    redrives = seed % 4 == 2 or seed % 16 == 5  # of both modes
    if redrives:
        _insert(steps, "redrive", dice, dice.randrange(2, 6), first=length // 2)
        steps.insert(length // 2, Step("settle", 0, 0))
    senders = seed % 3 == 0
    if senders:
        for _ in range(dice.randrange(2, 8)):
            amount = dice.randrange(10_000)
            steps.insert(dice.randrange(len(steps)), Step("sender", 0, 3 if churns else amount))
    logs = seed % 16 == 8
    if logs:
        for _ in range(dice.randrange(2, 5)):
            before = dice.choice([Step("freeze", 2, 2), Step("freeze", 3, 2), Step("clock", 0, 0), Step("turn", 2, 0)])
            at = dice.randrange(len(steps) // 4, len(steps))
            steps[at:at] = [before, Step("log", 0, dice.randrange(10_000))]
    half_answers = seed % 3 == 1
    if half_answers:
        steps.insert(0, Step("half-answer", 0, dice.randrange(10_000)))  # consumers ask when they start
        _insert(steps, "half-answer", dice, dice.randrange(4))
    dropin = seed % 8 in {1, 6} or seed % 64 == 31
    if dropin and not churns:  # send-backs that are refused: else few programs meet one
        for _ in range(dice.randrange(4)):
            steps.insert(dice.randrange(len(steps)), Step("refuse", 0, 5 * dice.randrange(2_000)))
    # a partition that moves away is rarely seen to repeat a message: the seeds that show it keep their steps
    timers = seed % 5 == 4 or (seed % 5 == 1 and not churns)
    _insert(steps, "name", dice, dice.choice([10, 30]) if timers else 0)
    _insert(steps, "half", dice, dice.choice([0, 5, 15]) if timers else 0)
    return Plan(
        seed, exactly_once=seed % 2 == 1, orderly=seed % 8 == 0, logs=logs, half_answers=half_answers, churns=churns,
        redrives=redrives, senders=senders, dropin=dropin, rolling=seed % 16 == 4, killers=seed % 16 in {0, 12},
        timers=timers, alone=timers and seed // 10 % 2 == 1, kip_848=seed % 5 == 3, steps=tuple(steps),
    )  # fmt: skip


def _insert(steps: list[Step], kind: Kind, dice: Random, count: int, first: int = 0) -> None:
    """Insert steps of a kind at chosen places, none before `first`."""
    for _ in range(count):
        steps.insert(dice.randrange(first, len(steps)), Step(kind, 0, dice.randrange(10_000)))

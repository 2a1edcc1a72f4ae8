"""The faults: a table. Each is done to the running system and returns when it has ended.

A new fault is a function and a line of the table. `kind` appears in the history; kinds that begin with `freeze` and
`clock-` mean something to the checker (see `proof.check.locks` and `proof.index`).
"""

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from proof.chaos.plan import CONCURRENT, LEASE_MS, SESSION_S
from proof.chaos.stage import Stage

__all__ = ["FAULTS", "FaultKind"]

Do = Callable[[Stage, random.Random], str]
"""Do it, and return its target."""


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A row of the table.

    Attributes:
        kind: its name in the history.
        of: role that it hits, for people.
        weight: how often it is chosen, relative to the others.
        do: does it.
    """

    kind: str
    of: str
    weight: int
    do: Do


def _kill(role: str) -> Do:
    def kill(stage: Stage, dice: random.Random) -> str:
        process = dice.choice(stage.of_role(role))
        stage.kill(process)
        stage.start(role)
        return process.name

    return kill


def _freeze(role: str, seconds: float) -> Do:
    def freeze(stage: Stage, dice: random.Random) -> str:
        process = dice.choice(stage.of_role(role))
        process.popen.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.popen.send_signal(signal.SIGCONT)
        return process.name

    return freeze


def _restart_broker(stage: Stage, dice: random.Random) -> str:
    del dice
    stage.cluster.kill(1)
    stage.cluster.restart(1)
    return "broker-1"


def _churn(stage: Stage, dice: random.Random) -> str:
    """Members come and leave in order, one every half second."""
    for _ in range(2):
        comer = stage.start("consumer")
        time.sleep(0.5 + dice.random())
        stage.end(comer)
    return f"group:{CONCURRENT.name}"


def _kill_redrive(stage: Stage, dice: random.Random) -> str:
    """A redrive is killed at some point, and the same plan is applied again."""
    plan = stage.plan_redrive(CONCURRENT.name)
    name = stage.apply_redrive(plan, kill_after_s=dice.random() * 2)
    stage.apply_redrive(plan, kill_after_s=None)
    return name


FAULTS: tuple[FaultKind, ...] = (
    FaultKind("kill-9", "consumer", 3, _kill("consumer")),
    FaultKind("kill-9", "orderly consumer", 3, _kill("orderly")),
    FaultKind("kill-9", "worker", 3, _kill("worker")),
    FaultKind("kill-9", "sender", 1, _kill("sender")),
    FaultKind("kill-9-redrive", "redrive", 1, _kill_redrive),
    FaultKind("freeze", "consumer, longer than its session", 2, _freeze("consumer", SESSION_S + 2)),
    FaultKind("freeze", "orderly consumer, longer than its lease", 2, _freeze("orderly", LEASE_MS / 1_000 + 2)),
    FaultKind("freeze", "worker, longer than its session", 1, _freeze("worker", SESSION_S + 2)),
    FaultKind("broker-restart", "broker", 1, _restart_broker),
    FaultKind("churn", "members of a group", 2, _churn),
)

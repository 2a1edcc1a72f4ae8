"""Faults of single processes: killed, frozen, cut off, slowed down, with another clock or version, churned."""

import random
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Final

from proof.chaos.fault import LaneFault, PointNotReachedError
from proof.chaos.plan import LEASE_MS, SESSION_S, TRANSACTION_MS
from proof.chaos.proxy import How
from proof.chaos.stage import Running, Stage

__all__ = ["LANE_FAULTS"]

Do = Callable[[Stage, random.Random, Running], str]
_POINT_S: Final = 12.0
_LINK_S: Final = 5.0
_LATE_S: Final = 9.0
_QUOTA_S: Final = 10.0
_QUOTA_BYTES: Final = 1_000
_SENDERS_QUOTA_BYTES: Final = 10_000
_VERSION_S: Final = 4.0
_CONSUMERS: Final = ("consumer", "orderly", "dropin", "broadcast")


def _kill(stage: Stage, dice: random.Random, running: Running) -> str:
    del dice
    stage.kill(running)
    stage.start(running.lane, running.role, running.place)
    return running.name


def _kill_at(point: str) -> Do:
    def kill(stage: Stage, dice: random.Random, running: Running) -> str:
        time.sleep(dice.random())
        stage.release(running)
        armed = stage.control(running, "point")
        armed.write_text(point)
        try:
            running.popen.wait(_POINT_S)
        except subprocess.TimeoutExpired as error:
            running.popen.kill()
            running.popen.wait()
            raise PointNotReachedError(running.name) from error
        finally:
            stage.start(running.lane, running.role, running.place)
        return running.name

    return kill


def _freeze(seconds: float) -> Do:
    def freeze(stage: Stage, dice: random.Random, running: Running) -> str:
        del stage
        running.popen.send_signal(signal.SIGSTOP)
        time.sleep(seconds + dice.random() * 2)
        running.popen.send_signal(signal.SIGCONT)
        return running.name

    return freeze


def _link(how: How) -> Do:
    def disturb(stage: Stage, dice: random.Random, running: Running) -> str:
        with stage.proxies.fault(how, lambda link: link.client == running.name):
            time.sleep(_LINK_S + dice.random() * 4)
        return running.name

    return disturb


def _late(stage: Stage, dice: random.Random, running: Running) -> str:
    """A link on which each request takes three seconds."""
    with stage.proxies.fault("replies-late", lambda link: link.client == running.name):
        time.sleep(_LATE_S + dice.random() * 6)
    return running.name


def _limit(stage: Stage, dice: random.Random, running: Running) -> str:
    """A quota below what the process writes. A broker that enforces it does not read for seconds."""
    with stage.quota(running.name, _SENDERS_QUOTA_BYTES if running.role == "sender" else _QUOTA_BYTES):
        time.sleep(_QUOTA_S + dice.random() * 5)
    return running.name


def _set_clock(stage: Stage, dice: random.Random, running: Running) -> str:
    """A day ahead or behind for some seconds. It costs nothing but immediate sends, which brokers may refuse."""
    stage.client_clocks.set(running.name, dice.choice((-1, 1)) * 86_400)
    time.sleep(3.0)
    stage.client_clocks.set(running.name, 0)
    return running.name


def _churn(stage: Stage, dice: random.Random, running: Running) -> str:
    """Members join and leave in order, one every half second."""
    lane, role = running.lane, running.role
    for _ in range(2):
        comers = [stage.start(lane, role, 10 + number) for number in range(2)]
        for comer in comers:
            time.sleep(0.5 + dice.random())
            stage.end(comer)
    return f"group:{lane.group_of(role).name}"


def _leave(stage: Stage, dice: random.Random, running: Running) -> str:
    """A deployment: a process ends in order, and its successor starts."""
    del dice
    stage.end(running)
    stage.start(running.lane, running.role, running.place)
    return running.name


def _roll(stage: Stage, dice: random.Random, running: Running) -> str:
    """Two rolling deployments: back to the version with one listener less, and to the one that has it.

    Members of both versions are there for a while, and then only former ones: retries of the topic must not die.
    """
    lane, role = running.lane, running.role
    for is_former in (True, False):
        for member in stage.of(lane, role):
            stage.end(member)
            stage.start(lane, role, member.place, is_former=is_former)
            time.sleep(_VERSION_S + dice.random() * 4)
    return f"group:{lane.group_of(role).name}"


def _kill_redrive(stage: Stage, dice: random.Random, running: Running) -> str:
    """A redrive is killed at some point, and the same plan is applied again."""
    lane = running.lane
    plan = stage.plan_redrive(lane, lane.group("concurrent").name)
    name = stage.apply_redrive(lane, plan, kill_after_s=dice.random() * 3)
    stage.apply_redrive(lane, plan, kill_after_s=None)
    return name


LANE_FAULTS: Final = (
    LaneFault("kill-9", (*_CONSUMERS, "worker", "sender", "shop"), 4, _kill),
    LaneFault("kill-9-in-listener", _CONSUMERS, 2, _kill_at("listener")),
    LaneFault("kill-9-after-listener", _CONSUMERS, 2, _kill_at("listener-after")),
    LaneFault("kill-9-before-commit", ("consumer", "orderly", "dropin"), 2, _kill_at("commit-before")),
    LaneFault("kill-9-after-commit", ("consumer", "orderly", "dropin"), 2, _kill_at("commit-after")),
    LaneFault("kill-9-before-produce", ("consumer", "worker", "sender", "shop"), 2, _kill_at("produce-before")),
    LaneFault("kill-9-after-produce", ("consumer", "worker", "sender", "shop"), 2, _kill_at("produce-after")),
    LaneFault("kill-9-offsets-sent", ("worker",), 1, _kill_at("send_offsets_to_transaction-after"), exactly_once=True),
    LaneFault(
        "kill-9-before-transaction-commit", ("worker",), 1, _kill_at("commit_transaction-before"), exactly_once=True
    ),
    LaneFault(
        "kill-9-after-transaction-commit", ("worker",), 1, _kill_at("commit_transaction-after"), exactly_once=True
    ),
    LaneFault("kill-9-redrive", ("consumer",), 1, _kill_redrive),
    LaneFault("leave", (*_CONSUMERS, "worker"), 1, _leave),
    LaneFault("churn", ("consumer", "orderly"), 2, _churn),
    LaneFault("listeners-changed", ("consumer", "orderly", "dropin"), 1, _roll),
    LaneFault("freeze-session", ("consumer", "dropin", "worker"), 1, _freeze(SESSION_S + 1)),
    LaneFault("freeze-lease", ("orderly",), 2, _freeze(LEASE_MS / 1_000 + 1)),
    LaneFault("freeze-transaction", ("worker",), 1, _freeze(TRANSACTION_MS / 1_000 + 2)),
    LaneFault("link-cut", (*_CONSUMERS, "worker", "sender", "shop"), 1, _link("cut")),
    LaneFault("link-held", (*_CONSUMERS, "worker", "sender", "shop"), 1, _link("held")),
    LaneFault("link-replies-held", (*_CONSUMERS, "worker", "sender", "shop"), 1, _link("replies-held")),
    LaneFault("link-requests-held", (*_CONSUMERS, "worker", "sender", "shop"), 1, _link("requests-held")),
    LaneFault("link-replies-late", (*_CONSUMERS, "worker", "sender", "shop"), 1, _late),
    LaneFault("quota", ("consumer", "orderly", "dropin", "worker", "sender"), 1, _limit),
    LaneFault("client-clock", (*_CONSUMERS, "worker", "sender", "shop"), 1, _set_clock),
)

"""Where a failed message goes next: a retry after a level or a delay, or the dead-letter topic. Pure functions.

RocketMQ's rules (`AbstractSendMessageProcessor#consumerSendMsgBack`), in the order of their evaluation:

1. A requested level below 0: dead letter, immediately, without delay.
2. The attempts are used up (`reconsume_times >= limit`): dead letter. A limit of -1 means 16 (`effective_limit`).
   Another limit below 0 is taken literally: every failure exceeds it, so the first failure is the last.
3. A requested delay is used exactly.
4. So is a requested level above 0 (the level table clamps it).
5. Otherwise the policy decides; the default is level `3 + reconsume_times`.

An orderly queue counts by itself, and its -1 means indefinitely (`core.orderly_queue`): it only asks with level -1.

`reconsume_times` is the count of failed attempts *before* this failure. The record of the next hop carries it + 1, and
so does the dead letter: 17 by default after 17 deliveries.

A custom policy is any object with `next_hop`. It must not read a clock; it gets randomness as `unit`. `check_policy`
asks it once for each attempt when the consumer is made, so that a mistake in it is not found at the first failure.
"""

import math
from dataclasses import dataclass
from typing import Final, Protocol, TypeGuard, runtime_checkable

from rocketshim.core.clock import Backoff
from rocketshim.core.user_values import call_problem, safe_text
from rocketshim.errors import ConfigError
from rocketshim_topics.hops import DEFAULT_MAX_DELAY_MS
from rocketshim_topics.limits import FIRST_RETRY_LEVEL as _FIRST_RETRY_LEVEL

__all__ = [
    "DEFAULT_MAX_RECONSUME_TIMES",
    "AfterDelay",
    "AtLevel",
    "Dead",
    "Decision",
    "ExponentialRetryPolicy",
    "LevelTableRetryPolicy",
    "RetryPolicy",
    "check_policy",
    "decide",
    "effective_limit",
    "is_hop",
]

_ASKED_ATTEMPTS: Final = 100
_MIDDLE: Final = 0.5

DEFAULT_MAX_RECONSUME_TIMES = 16
"""What -1 means for a concurrent listener. Source: `DefaultMQPushConsumerImpl#getMaxReconsumeTimes`."""


@dataclass(frozen=True, slots=True)
class AtLevel:
    """Retry at a delay level; the level table clamps it to its highest."""

    level: int


@dataclass(frozen=True, slots=True)
class AfterDelay:
    """Retry after a delay in ms, for which the worker may combine several hops."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class Dead:
    """Dead-letter immediately. `asked`: the listener asked for it; otherwise the limit was reached."""

    asked: bool


Decision = AtLevel | AfterDelay | Dead


@runtime_checkable
class RetryPolicy(Protocol):
    """How long to wait before the next attempt, when the listener did not choose.

    Thread-safety: called from the consumer's poll thread; must not block and must not keep state.
    """

    def next_hop(self, reconsume_times: int, unit: float) -> AtLevel | AfterDelay:
        """Return the wait before attempt `reconsume_times + 2`.

        Args:
            reconsume_times: failed attempts before the one that failed just now, 0 or more.
            unit: a random number in [0, 1).
        """
        ...


@dataclass(frozen=True, slots=True)
class LevelTableRetryPolicy:
    """RocketMQ's policy: level `first_level + reconsume_times`, up to the highest of the table.

    Args:
        first_level: level of the first retry, 1 or more. Default 3 (10 s in RocketMQ's table).
    """

    first_level: int = _FIRST_RETRY_LEVEL

    def __post_init__(self) -> None:
        if self.first_level < 1:
            raise ConfigError(f"first_level={self.first_level}: levels begin at 1")

    def next_hop(self, reconsume_times: int, unit: float) -> AtLevel | AfterDelay:
        """Return the level that follows; `unit` is not used."""
        del unit
        return AtLevel(self.first_level + reconsume_times)


@dataclass(frozen=True, slots=True)
class ExponentialRetryPolicy:
    """Delays that grow by a factor up to a cap, spread by jitter.

    Args:
        initial_ms: delay of the first retry, in ms, at least 1. Default 5 s.
        factor: growth per attempt, finite, at least 1. Default 2.
        cap_ms: longest delay, jitter included, in ms, at least `initial_ms`, at most 40 days. Default 2 h.
        jitter: share of the delay that is random, 0 to 1: the delay is within `± jitter / 2` of its value. Delays at
            the cap are spread below it, so that messages that failed together do not come back together.

    Source: RocketMQ's `ExponentialRetryPolicy` (5 s, 2, 2 h), with jitter added.
    """

    initial_ms: int = 5_000
    factor: float = 2.0
    cap_ms: int = 7_200_000
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if not 1 <= self.initial_ms <= self.cap_ms <= DEFAULT_MAX_DELAY_MS:
            raise ConfigError(f"need 1 <= initial_ms={self.initial_ms} <= cap_ms={self.cap_ms} <= 40 days")
        if not (self.factor >= 1 and math.isfinite(self.factor)) or not 0 <= self.jitter <= 1:
            raise ConfigError(f"need a finite factor={self.factor} >= 1 and 0 <= jitter={self.jitter} <= 1")

    def next_hop(self, reconsume_times: int, unit: float) -> AtLevel | AfterDelay:
        """Return the delay that follows."""
        highest = self.cap_ms / (1 + self.jitter / 2)
        delay = min(Backoff(self.initial_ms, self.cap_ms, self.factor).pause(reconsume_times), highest)
        spread = delay * (1 + self.jitter * (unit - 0.5))
        return AfterDelay(max(1, min(round(spread), self.cap_ms)))


def effective_limit(limit: int, message_limit: int | None) -> int:
    """Return the limit that counts: the group's (-1: 16) or the message's own, whichever is lower.

    Other negative limits are taken literally: with them the first failure is the last.
    """
    resolved = DEFAULT_MAX_RECONSUME_TIMES if limit == -1 else limit
    return resolved if message_limit is None else min(resolved, message_limit)


def decide(
    policy: RetryPolicy,
    reconsume_times: int,
    *,
    limit: int,
    asked_level: int = 0,
    asked_delay_ms: int | None = None,
    unit: float = _MIDDLE,
) -> Decision:
    """Return the next hop of a message that failed; `reconsume_times` is the number of attempts that failed before.

    `limit` is the effective one. What the listener asked for: a level above 0 exactly, one below 0 is the dead-letter
    topic, 0 is nothing; a delay counts before a level. `unit` is a random number in [0, 1).

    Source: `AbstractSendMessageProcessor#consumerSendMsgBack`.

    Decides: Is a failed message retried, and when, or is it dead? Dead if the listener asked for it (DeadLetter) or at
        the limit (`core.retry_policy.effective_limit`: the group's or the message's own). Else it waits as the listener
        asked (RetryLater, delay_level_when_next_consume), or by the group's policy. Which exceptions are final:
        `core.listener_answers.FailureRules`. If a policy raises or answers nonsense, the level table is used instead:
        `core.next_hop.HopMaker._decide`. Of an orderly queue: `core.orderly_queue.OrderlyQueue`.
    """
    if asked_level < 0:
        return Dead(asked=True)
    if reconsume_times >= limit:
        return Dead(asked=False)
    if asked_delay_ms is not None:
        return AfterDelay(max(0, asked_delay_ms))
    if asked_level > 0:
        return AtLevel(asked_level)
    return policy.next_hop(reconsume_times, unit)


def is_hop(answer: object) -> TypeGuard[Decision]:
    """Return whether the answer of a policy, which is user code, is a decision."""
    if isinstance(answer, AtLevel):  # 0.1 µs; patterns with these attributes take 0.8 µs (our measurement)
        return _is_int(answer.level) and answer.level >= 1
    if isinstance(answer, AfterDelay):
        return _is_int(answer.delay_ms) and 0 <= answer.delay_ms <= DEFAULT_MAX_DELAY_MS
    return isinstance(answer, Dead)


def check_policy(policy: RetryPolicy, limit: int) -> RetryPolicy:
    """Return a policy that answers for each attempt up to a limit.

    Args:
        policy: a policy of a program.
        limit: `max_reconsume_times` of the group. At most the first 100 attempts are asked for.

    Decides: May a consumer have this retry policy? One that fails only later is replaced by the level table
        (`core.next_hop.HopMaker`).

    Raises:
        ConfigError: it is a class, it cannot be called like a policy, or it raises or returns an invalid value.
    """
    shown = f"retry_policy={safe_text(policy, repr):.200}"
    if isinstance(policy, type):
        raise ConfigError(f"{shown} is a class: pass an object, {policy.__name__}()")
    problem = call_problem(getattr(policy, "next_hop", None), 2)
    if problem:
        raise ConfigError(f"{shown}: {problem}; write next_hop(self, reconsume_times, unit)")
    for times in range(min(effective_limit(limit, None), _ASKED_ATTEMPTS)):
        try:
            answer: object = policy.next_hop(times, _MIDDLE)
        except Exception as error:  # of the program
            raise ConfigError(f"{shown}: next_hop({times}, 0.5) raised {safe_text(error, repr):.200}") from error
        if not is_hop(answer):
            raise ConfigError(
                f"{shown}: next_hop({times}, 0.5) returned {safe_text(answer, repr):.200}: it returns AtLevel of 1 or "
                "more, or AfterDelay of 0 ms to 40 days"
            )
    return policy


def _is_int(value: object) -> bool:
    return isinstance(value, int)

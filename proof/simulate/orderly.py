"""What an orderly consumer needs in a simulated run: a sink that checks tokens, and turns of its group-log thread.

The group's log may be lost: its topic is created again or truncated, or it has a record of a later version.
"""

from functools import partial
from typing import Any, Final

from proof.folds import observing
from proof.simulate.world import GROUP, NAMES, World
from rocketshim import MessageView

__all__ = ["LOCKS", "LogInTurns", "Sink", "lose_log"]

LOCKS: Final[dict[str, Any]] = {"lock_lease_ms": 6_000, "lock_hold_ms": 3_000, "lock_renew_ms": 1_000}
_LAST_TURNS: Final = 3


class Sink:
    """What listeners write to: it refuses a token lower than the highest that it has seen of a queue."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._highest: dict[str, int] = {}

    def takes(self, by: str, message: MessageView, token: int) -> bool:
        """Take a write, or refuse it."""
        where = message.offset_msg_id
        queue = where.rpartition("/")[0]
        is_accepted = token >= self._highest.get(queue, -1)
        if is_accepted:
            self._highest[queue] = token
        self._world.sink_written(by, where, token, accepted=is_accepted)
        return is_accepted


class TopicIds:
    """`TopicId` over the Kafka in memory, whose topics have no ids: an answer is as old as the question before."""

    def __init__(self, world: World, topic: str) -> None:
        self._world = world
        self._topic = topic
        self._answer: str | None = None

    def now(self) -> str | None:
        """Return the id."""
        self._answer = str(self._world.created[self._topic])
        return self._answer

    def latest(self) -> str | None:
        """Return the answer to the question before."""
        before, self._answer = self._answer, self.now()
        return before


class LogInTurns:
    """The group-log thread of a consumer, without its thread.

    Args:
        world: what it runs in.
        log: the `GroupLogThread`; None: the consumer is concurrent, and has none.
    """

    def __init__(self, world: World, log: Any) -> None:
        self._log = log
        if log is not None:
            log.start = log.open
            observe = observing(type(log)._observe, GROUP.name, world.fold_seen, world.event_ns)  # noqa: SLF001
            log._observe = partial(observe, log)  # noqa: SLF001
            log._reader.topic_id = TopicIds(world, NAMES.group_log(GROUP.name))  # noqa: SLF001 - no admin client

    def turn(self) -> None:
        """Do an iteration."""
        if self._log is not None:
            self._log.turn(0)

    def close(self) -> None:
        """Write what was released, and close."""
        if self._log is not None:
            for _ in range(_LAST_TURNS):
                self._log.turn(0)
            self._log.close()


def lose_log(world: World, amount: int) -> None:
    """Lose the group's log in one of three ways."""
    topic, begin_ns = NAMES.group_log(GROUP.name), world.event_ns()
    match amount % 3:
        case 0:
            world.log_lost()
            world.kafka.delete_topic(topic)
            world.create_topics()
            world.created[topic] += 1
        case 1:
            world.log_lost()
            world.kafka.truncate(topic, before_offset=world.kafka.end_offsets(topic)[0])
        case _:
            world.kafka.append(topic, b'{"v":99}')
    world.fault("log-lost", f"group:{GROUP.name}", begin_ns)

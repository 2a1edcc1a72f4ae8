"""Programs that use the drop-in consumer as a program of `confluent_kafka` would, in each of its ways of committing.

A program handles what a call returned before its next call, and sends back what fails. If a message can be neither
handled nor sent back, the program tries again later, or goes back to it by `seek`. What it stores or commits itself
never passes such a message.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal

from confluent_kafka import KafkaException, TopicPartition

from proof.lines import Process
from proof.simulate.clients import ProcessClients
from proof.simulate.dropin_client import DropinClients, commit_in_background
from proof.simulate.processes import CLASSIC, KIP_848, fails
from proof.simulate.world import GROUP, LEVELS, World
from rocketshim.errors import RocketshimError, StaleMessageError

__all__ = ["Dropin", "Style", "style_of"]

_PAUSES_EVERY: Final = 9
_RAISES_EVERY: Final = 3
_AGAIN_EVERY: Final = 6
_POLL_S: Final = 0.05
Way = Literal["auto", "commit", "store", "message"]


@dataclass(frozen=True, slots=True)
class Style:
    """How a program uses its consumer.

    Attributes:
        way: how it commits: `auto` does nothing; `commit` calls `commit()` after each batch; `store` stores the offset
            of each handled message; `message` commits each handled message.
        protocol: how the group shares out its partitions.
        batch: most messages of a call of `consume`; 0: it calls `poll`.
        seeks: it goes back to a message that could not be sent back, instead of sending it back later.
        pauses: it pauses its partitions now and then.
        raises: its rebalance callbacks fail now and then.
    """

    way: Way
    protocol: Literal["eager", "cooperative", "kip-848"]
    batch: int
    seeks: bool
    pauses: bool
    raises: bool


def style_of(seed: int) -> Style:
    """Choose a style by the digits of a seed."""
    number = seed // 8
    return Style(
        way=("auto", "store", "auto", "commit", "message")[number % 5],
        protocol=("eager", "cooperative", "kip-848")[number // 2 % 3],
        batch=(0, 3, 0, 8)[number % 4],
        seeks=number % 7 < 3,
        pauses=number % 6 == 1,
        raises=number % 3 == 0,
    )


class Dropin:
    """A program with a drop-in consumer.

    Args:
        world: what it runs in.
        name: of the process.
        makes: makes its consumer.
        style: how it uses it.
    """

    def __init__(self, world: World, name: str, makes: DropinClients, style: Style) -> None:
        self.name = name
        self.clients = ProcessClients(world, name, GROUP.name)
        self._world = world
        self._makes = makes
        self._style = style
        self._unsent: list[Any] = []
        self._uncommitted: dict[tuple[str, int], int] = {}
        self._turns = 0
        self._rebalances = 0
        self._is_subscribed = False
        world.process(Process(name=name, role="dropin", group=GROUP.name, client_id=name))
        strategy = "range" if style.protocol == "eager" else "cooperative-sticky"
        classic = {**CLASSIC, "partition.assignment.strategy": strategy}
        self._consumer = makes.make(
            self.clients,
            {
                "bootstrap.servers": "memory", "group.id": GROUP.name, "auto.offset.reset": "earliest",
                **(KIP_848 if style.protocol == "kip-848" else classic),
                "enable.auto.commit": style.way in {"auto", "store"},
                "auto.commit.interval.ms": world.commit_interval_ms, "enable.auto.offset.store": style.way != "store",
                "rocketshim.retry.enable": True, "rocketshim.delay.levels": str(LEVELS),
                "rocketshim.max.reconsume.times": GROUP.limit, "rocketshim.hop.timeout.ms": 2_000,
            },
        )  # fmt: skip

    def turn(self) -> None:
        """Poll once, and handle what came."""
        with self._makes.running(self.clients):
            if not self._is_subscribed:
                self._is_subscribed = True
                self._consumer.subscribe(["orders"], on_assign=self._rebalanced, on_revoke=self._rebalanced)
            self._turns += 1
            self.clients.let_threads_poll()
            self._pause()
            self._commit_again()
            if self._style.way == "auto":
                if self._turns % _AGAIN_EVERY == 0:
                    self._send_unsent()
            elif not self._send_unsent():
                return  # what this program stores or commits must not pass the message
            messages = self._poll()
            while messages:
                message = messages.pop(0)
                if message.error() is None and not self._handle(message):
                    queue = message.topic(), message.partition()
                    messages = [each for each in messages if (each.topic(), each.partition()) != queue]
            if self._style.way == "commit" and not self._unsent:
                self._quietly(lambda: self._consumer.commit(asynchronous=False))

    def close(self) -> None:
        """End in order."""
        with self._makes.running(self.clients), suppress(_CallbackError):
            self._consumer.close()

    def died(self) -> None:
        """End what a dead process leaves behind."""
        self.clients.end_threads()

    def _poll(self) -> list[Any]:
        try:
            if self._style.batch:
                return list(self._consumer.consume(self._style.batch, _POLL_S))
            message = self._consumer.poll(_POLL_S)
        except _CallbackError:
            return []
        return [] if message is None else [message]

    def _pause(self) -> None:
        if not self._style.pauses:
            return
        if self._turns % _PAUSES_EVERY == 0:
            self._consumer.pause(self._consumer.assignment())
        elif self._turns % _PAUSES_EVERY == 2:
            self._consumer.resume(self._consumer.assignment())

    def _rebalanced(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        del consumer, partitions
        self._rebalances += 1
        if self._style.raises and self._rebalances % _RAISES_EVERY == 0:
            raise _CallbackError

    def _handle(self, message: Any) -> bool:
        """Handle a message; return False if the program has gone back to it, or its partition is another's."""
        world = self._world
        view = self._consumer._shim_view(message)  # noqa: SLF001 - what its public methods look at
        times = self._consumer.reconsume_times(message)
        commit_in_background(self.clients)
        end = world.delivery_began(self.name, view)
        if fails(int((message.value() or b"0").partition(b" ")[0]), times, world.dead_every):
            end("fail")
            return self._send_back(message)
        end("ok")
        self._finished(message)
        return True

    def _send_back(self, message: Any) -> bool:
        options: dict[str, Any] = ({}, {"level": 2}, {"delay": "700ms"})[(message.offset() or 0) % 3]
        try:
            self._consumer.reconsume_later(message, "the carrier is closed", **options)
        except StaleMessageError:
            return False
        except RocketshimError as error:
            self._world.note(self.name, "cannot send back", type(error).__name__)
            if self._style.seeks or (self._style.batch and self._style.way != "auto"):  # others of its batch follow it
                position = TopicPartition(message.topic(), message.partition(), message.offset())
                self._quietly(lambda: self._consumer.seek(position))
                return False
            self._unsent.append(message)
            return self._style.way == "auto"
        self._finished(message)
        return True

    def _send_unsent(self) -> bool:
        """Send back what could not be sent back before; return whether nothing is left."""
        waiting, self._unsent = self._unsent, []
        for message in waiting:
            self._send_back(message)
        return not self._unsent

    def _finished(self, message: Any) -> None:
        match self._style.way:
            case "store":
                self._quietly(lambda: self._consumer.store_offsets(message=message))
            case "message":
                queue = message.topic(), message.partition()
                self._uncommitted.pop(queue, None)
                if not self._quietly(lambda: self._consumer.commit(message=message, asynchronous=False)):
                    self._uncommitted[queue] = message.offset() + 1
            case _:
                pass

    def _commit_again(self) -> None:
        """Commit what was refused, of the partitions that the consumer still has."""
        before, self._uncommitted = self._uncommitted, {}
        for queue, offset in before.items():
            (position,) = self._consumer.position([TopicPartition(*queue)])
            again = [TopicPartition(*queue, offset)]
            if position.offset >= offset and not self._quietly(
                lambda again=again: self._consumer.commit(offsets=again, asynchronous=False)
            ):
                self._uncommitted[queue] = offset

    def _quietly(self, act: Any) -> bool:
        """Do something that fails if the partition is another member's by now, or the broker is away."""
        try:
            act()
        except KafkaException as error:
            self._world.note(self.name, "is refused", error.args[0].name())
            return False
        return True


class _CallbackError(Exception):
    """A callback of the program fails."""

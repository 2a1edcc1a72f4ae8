"""Sound histories: shapes by name, each for any seed."""

from collections.abc import Callable
from functools import partial
from typing import Any

from rocketshim_topics import Message

from .members import Broadcast, Fate, Members, Orderly
from .world import Files, Worker, World

UNTIL_S = 40.0
SENDS_S = 8.0


def fate_of(seed: int, *, fails: float = 0.3, dies: float = 0.2) -> Fate:
    """Some messages fail a few times, some always, some are dead when the listener says so."""

    def fate(uid: str, times: int) -> str:
        chance = (hash_of(uid) + seed * 31) % 100 / 100
        if chance < dies / 2:
            return "dead"
        if chance < dies:
            return "retry"
        if chance < dies + fails:
            return "retry" if times < 1 + hash_of(uid) % 2 else "ok"
        return "ok"

    return fate


def hash_of(text: str) -> int:
    return sum(byte * (place + 7) for place, byte in enumerate(text.encode()))


def sends(world: World, topic: str, count: int, *, delayed: float = 0.0, name: str = "sender-1") -> None:
    """A sender that sends a number of messages in eight seconds."""
    if name not in world.files:
        world.process(name, "sender")
    for number in range(count):
        delays: dict[str, Any] = {}
        if world.dice.random() < delayed:
            kind = world.dice.choice(["delay_level", "delay", "deliver_at"])
            delays[kind] = {
                "delay_level": world.dice.randint(1, 4),
                "delay": world.dice.randint(1, 4),
                "deliver_at": world.broker_ms + int(SENDS_S * 1_000) + world.dice.randint(0, 3_000),
            }[kind]
        message = Message(
            topic, f"{name} {topic} {number}".encode(), key=f"k{world.dice.randrange(4)}",
            properties=[("trace", b"t%d" % number), ("trace", None), ("USER.note", "ü")], **delays,
        )  # fmt: skip
        outcome = world.dice.choices(["ok", "info", "fail"], [30, 1, 1])[0]
        at_s = 0.1 + number * SENDS_S / count
        world.at(at_s, partial(world.send, name, message, outcome=outcome))


def concurrent(seed: int, *, drop_in: bool = False) -> World:
    world = World(seed)
    Worker(world, UNTIL_S)
    Members(world, "pay", ("orders",), fate_of(seed), UNTIL_S, drop_in=drop_in)
    Members(world, "mail", ("orders", "bills"), fate_of(seed, fails=0, dies=0), UNTIL_S)
    sends(world, "orders", 60, delayed=0.3)
    sends(world, "bills", 20)
    return world


def dropped_in(seed: int) -> World:
    return concurrent(seed + 100, drop_in=True)


def killed(seed: int, *, drop_in: bool = False) -> World:
    world = World(seed)
    worker = Worker(world, UNTIL_S)
    pay = Members(world, "pay", ("orders",), fate_of(seed), UNTIL_S, drop_in=drop_in)
    sends(world, "orders", 90, delayed=0.4)
    world.at(2.3, pay.kill)
    world.at(3.7, worker.kill)
    world.at(6.4, pay.kill)
    world.at(9.1, pay.rebalance)
    return world


def killed_dropped_in(seed: int) -> World:
    return killed(seed + 100, drop_in=True)


def delayed(seed: int) -> World:
    world = World(seed)
    Worker(world, UNTIL_S)
    Members(world, "pay", ("orders", "bills"), fate_of(seed, fails=0.1, dies=0), UNTIL_S)
    sends(world, "orders", 60, delayed=1.0)
    sends(world, "bills", 20, delayed=1.0, name="sender-2")
    return world


def exactly_once(seed: int) -> World:
    world = World(seed, exactly_once=True)
    worker = Worker(world, UNTIL_S)
    Members(world, "pay", ("orders",), fate_of(seed, fails=0.1), UNTIL_S)
    sends(world, "orders", 60, delayed=0.8)
    world.at(3.7, worker.kill)
    return world


def parked(seed: int) -> World:
    world = delayed(seed)
    sends(world, "secret", 8, delayed=1.0, name="sender-3")
    return world


def orderly(seed: int, *, by_key: bool = False) -> World:
    world = World(seed)
    Worker(world, UNTIL_S)
    Orderly(world, "bill", "orders", fate_of(seed), UNTIL_S, by_key=by_key)
    sends(world, "orders", 60)
    return world


def orderly_by_key(seed: int) -> World:
    return orderly(seed, by_key=True)


def orderly_lost(seed: int) -> World:
    world = World(seed)
    Worker(world, UNTIL_S)
    bill = Orderly(world, "bill", "orders", fate_of(seed), UNTIL_S)
    sends(world, "orders", 90)
    world.at(1.3, bill.kill)
    world.at(4.2, bill.freeze)
    return world


def broadcast(seed: int) -> World:
    world = World(seed)
    Worker(world, UNTIL_S)
    Broadcast(world, "screens", ("orders",), fate_of(seed))
    sends(world, "orders", 40, delayed=0.2)
    return world


def redriven(seed: int) -> World:
    world = World(seed)
    Worker(world, UNTIL_S)
    Members(world, "pay", ("orders",), lambda uid, _: "dead" if hash_of(uid) % 4 == 0 else "ok", 15.0)
    sends(world, "orders", 40)
    world.at(16.0, lambda: world.redrive("pay", "plan1"))
    return world


def named(seed: int, *, exactly_once: bool = False) -> World:
    """Messages that wait under four names, and are replaced, cancelled and delivered now."""
    world = World(seed, exactly_once=exactly_once)
    Worker(world, UNTIL_S)
    Members(world, "pay", ("orders",), fate_of(seed, fails=0.1, dies=0), UNTIL_S)
    sends(world, "orders", 20, delayed=0.3)
    world.process("sender-2", "sender")
    for number in range(60):
        name = f"n{world.dice.randrange(4)}"
        if number % 3 == 2:
            command = world.dice.choice(["CANCEL", "NOW"])
            send = partial(world.command, "sender-2", command, "orders", name)
        else:
            message = Message("orders", b"named %d" % number, timer=name, delay=world.dice.choice([0.3, 1, 2]))
            send = partial(world.send, "sender-2", message)
        world.at(0.2 + number * 0.5, send)
    return world


def named_exactly_once(seed: int) -> World:
    return named(seed, exactly_once=True)


SHAPES: dict[str, Callable[[int], World]] = {
    "concurrent": concurrent,
    "killed": killed,
    "drop-in": dropped_in,
    "drop-in killed": killed_dropped_in,
    "delayed": delayed,
    "exactly once": exactly_once,
    "parked": parked,
    "orderly": orderly,
    "orderly by key": orderly_by_key,
    "orderly, owners lost": orderly_lost,
    "broadcasting": broadcast,
    "redriven": redriven,
    "named": named,
    "named, exactly once": named_exactly_once,
}


def sound(shape: str, seed: int) -> Files:
    """The files of a sound history."""
    return SHAPES[shape](seed).run()

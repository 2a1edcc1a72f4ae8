"""The virtual clock for modules of the library that take the time from the machine, for the time of a run.

The ids of messages are the same in each run of a seed, too: that of a transaction decides its partition.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any

from rocketshim.kafka import clients, lanes, record_sender
from rocketshim.producer import arguments, producer
from rocketshim.testing import VirtualClock

__all__ = ["replaced", "time_of", "virtual_time"]


@contextmanager
def replaced(items: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Replace names of modules for the time of the block: module, name, value."""
    originals = [(module, name, getattr(module, name)) for module, name, _ in items]
    try:
        for module, name, value in items:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in originals:
            setattr(module, name, value)


def time_of(clock: VirtualClock) -> Any:
    """Return what stands for the module `time`."""
    return SimpleNamespace(monotonic=lambda: clock.monotonic_ns() / 1e9, sleep=clock.sleep)


@contextmanager
def virtual_time(clock: VirtualClock) -> Iterator[None]:
    """Let producers, and members that leave their group, wait in virtual time; number the producers."""
    time, original = time_of(clock), record_sender._Link  # noqa: SLF001 - how a thread is ended

    def link(client: Any, *others: Any) -> Any:
        client.link = original(client, *others)
        return client.link

    times = [(module, "time", time) for module in (clients, lanes, record_sender, producer)]
    numbers = count(1)
    ids = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"{next(numbers):020x}{0:012x}"))
    with replaced([*times, (record_sender, "_Link", link), (arguments, "uuid", ids)]):
        yield

"""The register of doctored histories: each has a name, a shape it is made from, and the kind that it must be named."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from proof.lines import Fault, Sample
from proof.violation import Kind

from .doctor import Doctor
from .world import BEGIN_NS, S

Change = Callable[[Doctor], None]


@dataclass(frozen=True)
class Anomaly:
    shape: str
    kind: Kind
    change: Change


ANOMALIES: dict[str, Anomaly] = {}


def anomaly(shape: str, kind: Kind) -> Callable[[Change], Change]:
    def add(change: Change) -> Change:
        ANOMALIES[f"{change.__name__.replace('_', ' ')} ({shape})"] = Anomaly(shape, kind, change)
        return change

    return add


def samples(doctor: Doctor, what: Any, of: str, values: list[int], every_s: int) -> None:
    for number, value in enumerate(values):
        doctor.add("faults", Sample(what=what, of=of, at_ns=BEGIN_NS + number * every_s * S, value=value))


def fault(doctor: Doctor, kind: str, target: str, begin_ns: int, end_ns: int) -> None:
    doctor.add("faults", Fault(kind=kind, target=target, begin_ns=begin_ns, end_ns=end_ns))

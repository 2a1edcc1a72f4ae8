"""The checker names each anomaly of a doctored history, and nothing else."""

import pytest

from proof.check import run

from .anomalies import ANOMALIES
from .anomaly import fault, samples
from .doctor import Doctor
from .world import BEGIN_NS, S, parsed


@pytest.mark.parametrize("name", ANOMALIES)
@pytest.mark.parametrize("seed", [1, 2])
def test_an_anomaly_is_named(name: str, seed: int) -> None:
    anomaly = ANOMALIES[name]
    doctor = Doctor(anomaly.shape, seed)
    anomaly.change(doctor)
    found = run(parsed(doctor.finish()))
    assert {violation.kind for violation in found} == {anomaly.kind}, found


@pytest.mark.parametrize(("slow_s", "kinds"), [(7, {"lag-does-not-fall"}), (8, set())])
def test_slow_answers_excuse_a_lag_if_they_fill_more_than_half_of_the_time(slow_s: int, kinds: set[str]) -> None:
    doctor = Doctor("concurrent", 1)
    fault(doctor, "broker-restart", "broker-1", BEGIN_NS + 10 * S, BEGIN_NS + 20 * S)
    samples(doctor, "lag", "pay", [0, 0, 50, 90, 100, 110, 120, 120, 120], 5)
    fault(doctor, "overload", "cluster", BEGIN_NS + 22 * S, BEGIN_NS + (22 + slow_s) * S)
    assert {violation.kind for violation in run(parsed(doctor.finish()))} == kinds

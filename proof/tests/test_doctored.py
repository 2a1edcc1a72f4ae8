"""The checker names each anomaly of a doctored history, and nothing else."""

import pytest

from proof.check import run

from .anomalies import ANOMALIES
from .doctor import Doctor
from .world import parsed


@pytest.mark.parametrize("name", ANOMALIES)
@pytest.mark.parametrize("seed", [1, 2])
def test_an_anomaly_is_named(name: str, seed: int) -> None:
    anomaly = ANOMALIES[name]
    doctor = Doctor(anomaly.shape, seed)
    anomaly.change(doctor)
    found = run(parsed(doctor.finish()))
    assert {violation.kind for violation in found} == {anomaly.kind}, found

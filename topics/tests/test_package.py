"""The package gives its public names without loading a Kafka client."""

import subprocess
import sys

import pytest

import rocketshim_topics


def run(code: str) -> str:
    return subprocess.run(  # noqa: S603  # our own code in our own interpreter
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_importing_the_package_loads_no_kafka_client() -> None:
    public = [name for name in rocketshim_topics.__all__ if name not in {"provision", "ensure_topics"}]
    code = f"import sys, rocketshim_topics as t; [getattr(t, name) for name in {public!r}]"
    assert run(f"{code}; print('confluent_kafka' in sys.modules)") == "False"


def test_provisioning_is_loaded_when_it_is_asked_for() -> None:
    code = "import sys; from rocketshim_topics import ensure_topics, provision; print('confluent_kafka' in sys.modules)"
    assert run(code) == "True"


@pytest.mark.parametrize("name", rocketshim_topics.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(rocketshim_topics, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rocketshim_topics.nothing

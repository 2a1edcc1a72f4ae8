import json
from pathlib import Path

import pytest

from rocketshim.cli.app import ERROR, FINDING, main


@pytest.fixture(autouse=True)
def _nothing_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETSHIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ROCKETSHIM_DOCKER", "off")
    monkeypatch.delenv("ROCKETSHIM_BOOTSTRAP", raising=False)


def test_without_jars_the_local_broker_is_a_finding_that_names_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["broker", "info"]) == FINDING
    out, err = capsys.readouterr()
    assert "not fetched" in out
    assert "rocketshim broker fetch" in err


def test_a_named_broker_needs_no_jars(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ROCKETSHIM_BOOTSTRAP", "kafka:9092")
    assert main(["broker", "info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["choice"] == "named: ROCKETSHIM_BOOTSTRAP names it"


@pytest.mark.parametrize("text", ["", "x", "=1", " =1"])
def test_a_property_that_is_no_pair_is_refused_with_an_example(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "run", "--property", text]) == ERROR
    assert f"--property {text!r}: write NAME=VALUE" in capsys.readouterr().err


def test_a_structural_property_is_refused_before_anything_is_fetched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["broker", "run", "--property", "node.id=4"]) == ERROR
    assert "node.id" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("words", [["--brokers", "0"], ["--brokers", "x"], ["--port", "-1"], ["extra"]])
def test_wrong_usage_is_an_error(words: list[str]) -> None:
    assert main(["broker", "run", *words]) == ERROR

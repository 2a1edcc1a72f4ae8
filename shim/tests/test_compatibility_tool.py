"""What `python -m tools.compat` says of versions that cannot be had."""

import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rocketshim_local.probe import reserve_port
from tools.compat import brokers
from tools.compat.__main__ import app
from tools.compat.environments import AwayError, with_spark


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["brokers", "newest"], "'newest' is not a version of Kafka"),
        (["pythons", "python3.99"], "'python3.99' is not here"),
        (["lowest", "--python", "python3.99"], "'python3.99' is not here"),
    ],
)
def test_what_is_no_version_is_named_before_anything_is_tried(words: list[str], named: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert named in done.output


@pytest.mark.parametrize(
    ("registry", "said"), [([], "does not answer"), (["iniconfig"], "cannot install pyspark==9.9.9")]
)
def test_a_pyspark_that_cannot_be_had_is_not_tried(
    registry: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in registry:
        with zipfile.ZipFile(tmp_path / f"{name}-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
            wheel.writestr(
                f"{name}-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{name}-1.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(AwayError, match=said):
        with_spark("9.9.9", tmp_path / "spark-9.9.9")
    assert not (tmp_path / "spark-9.9.9" / "whole").exists()


def test_a_broker_that_never_answers_is_named_with_its_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "_START_S", 0.0)
    with reserve_port() as unheard:
        port = unheard.getsockname()[1]
    with pytest.raises(TimeoutError, match=f"no broker answers at 127.0.0.1:{port} .* its logs are in {tmp_path}"):
        brokers._await(f"127.0.0.1:{port}", tmp_path)

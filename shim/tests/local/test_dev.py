"""`rocketshim dev`: what it refuses before it starts anything, and which files it watches."""

import json
import logging
import os
from pathlib import Path

import pytest

from rocketshim.cli.app import ERROR, main
from rocketshim_local.dev import ConsumerProcess, PartLogs, WorkerThread, _python_files


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["shop"], "write MODULE:NAME, for example shop.payments:consumer"),
        (["shop:"], "write MODULE:NAME"),
        (["no_such_shop:consumer"], "there is no module 'no_such_shop' here or on Python's path"),
        (["no_such_shop.payments:consumer"], "there is no module 'no_such_shop.payments'"),
        (["--keep", "--data", "x"], "give --keep or --data, not both"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_started(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROCKETSHIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert main(["dev", *words]) == ERROR
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_python_files_are_watched_but_not_those_of_environments(tmp_path: Path) -> None:
    for name in ("shop.py", "deep/er/shop.py", ".git/hook.py", "venv/lib/x.py", "node_modules/y.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "venv/pyvenv.cfg").write_text("")
    before = _python_files(tmp_path)
    assert sorted(Path(path).relative_to(tmp_path).as_posix() for path in before) == ["deep/er/shop.py", "shop.py"]
    os.utime(tmp_path / "shop.py", ns=(1, 1))
    assert _python_files(tmp_path) != before
    assert _python_files(None) == {}


def test_log_lines_of_the_worker_have_the_chosen_format_and_of_kafka_s_clients_only_errors_are_shown() -> None:
    shown: list[tuple[str, str]] = []
    for log_format in ("text", "json"):
        handler = PartLogs(lambda part, line: shown.append((part, line)), log_format)
        for name, level in (("rocketshim.worker", logging.DEBUG), ("kafka", logging.INFO), ("kafka", logging.ERROR)):
            handler.emit(logging.LogRecord(name, level, "", 0, "worker.parked", None, None))
    assert [part for part, _ in shown] == ["worker", "kafka"] * 2
    assert "DEBUG worker.parked" in shown[0][1]
    assert json.loads(shown[2][1])["event"] == "worker.parked"


def test_the_consumer_s_process_gets_the_log_options() -> None:
    shown: list[str] = []
    process = ConsumerProcess(
        "no_such_shop:consumer", "127.0.0.1:1", lambda _, line: shown.append(line), log_format="json", log_level="debug"
    )
    process.start()
    running = process._process
    assert running is not None
    assert running.args[-4:] == ["--log-format", "json", "--log-level", "debug"]  # type: ignore[index]
    assert running.wait(60) == ERROR, "the options are known, the module is not"
    process.stop()


class BrokenWorker:
    """A worker with a bug."""

    def __init__(self, _: object) -> None: ...

    def run(self) -> None:
        raise KeyError("lane")

    def stop(self) -> None: ...


def test_any_error_that_ends_the_worker_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketshim_local.dev.DelayWorker", BrokenWorker)
    worker = WorkerThread("127.0.0.1:1")
    worker.stop()
    assert repr(worker.error) == "KeyError('lane')"

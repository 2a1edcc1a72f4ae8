"""Invalid arguments are reported before Spark starts, in one line that says what to write instead."""

import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from typing import Any

import pytest
from py4j.java_gateway import GatewayClient  # type: ignore[import-untyped]
from py4j.protocol import ERROR_ON_RECEIVE, Py4JNetworkError  # type: ignore[import-untyped]

from rocketshim_spark.cli import _print_landing, main
from rocketshim_spark.cli_options import JavaErrors, SparkOptions, _interrupted_later, is_no_trace_of_py4j
from rocketshim_spark.errors import LakeError
from rocketshim_spark.lake import Gap
from rocketshim_spark.land import Landing
from rocketshim_topics import TopicNames
from rocketshim_topics.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ("failures", "--since", "yesterday"),
            "--since 'yesterday': write a duration before now (30m, 2h, 3d), or a time",
        ),
        (("failures", "--new-since", "20:00"), "--new-since '20:00': write a duration"),
        (
            ("failures", "--since", "2026-01-02T01:00:00+02:00", "--until", "2026-01-01T23:00:00Z"),
            "--until 2026-01-01T23:00:00Z is not later than --since 2026-01-02T01:00:00+02:00: no failure can match",
        ),
        (("delays", "--grace", "5x"), "5x"),
        (("delays", "--skew", "-1s"), "-1s"),
        (("dlq-trend", "--retention", "0s"), "--retention 0s: must be at least 1 ms"),
        (("dlq-trend", "--warn", "soon"), "soon"),
        (("audit", "--connector", "bogus"), "--connector 'bogus'"),
        (("audit", "--driver-memory", "1x"), "--driver-memory '1x'"),
        (("keys", "--min-failures", "0"), "--min-failures"),
        (("audit", "--version", "-1"), "--version"),
        (("replay", "plan", "--plan", "p", "--max-replays", "0"), "--max-replays"),
        (("replay", "plan", "--plan", "p-ends"), "--plan 'p-ends': a name may not end in -ends or -verified"),
        (("replay", "run", "--plan", "p-verified", "--bootstrap", "b"), "--plan 'p-verified': a name may not end in"),
        (("replay", "run", "--plan", "p", "--bootstrap", "b", "--rate", "0"), "--rate"),
        (("land", "orders", "--bootstrap", "b", "--java-client", "x"), "--java-client: write NAME=VALUE"),
        (("dlq-trend", "--client", "@/no/file"), "--client @/no/file: cannot read the file"),
    ],
)
def test_an_invalid_argument_is_reported_in_one_line(
    words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--lake", "/nowhere"]) == 1
    err = capsys.readouterr().err
    assert expected in err
    assert "Traceback" not in err


def started(text: str, then: str = "") -> "subprocess.Popen[bytes]":
    code = f"import os, sys; os.write(2, b{text!r}); sys.stdin.read(1); os.write(2, b{then!r})"
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)  # noqa: S603 our own code


def test_what_java_writes_while_it_starts_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    java = JavaErrors()
    with java.redirected():
        process = started("noise", "later")
    while not java._kept:
        time.sleep(0)
    java.show()
    process.communicate(b"x")
    seen = ""
    while "later" not in seen:
        seen += capfd.readouterr().err
    assert seen == "later"


def test_what_java_writes_is_shown_if_it_does_not_start(capfd: pytest.CaptureFixture[str]) -> None:
    def start() -> None:
        with JavaErrors().redirected():
            started("no heap").communicate(b"x")
            raise ConfigError("not started")

    with pytest.raises(ConfigError, match="not started"):
        start()
    assert capfd.readouterr().err == "no heap"


def test_ctrl_c_waits_until_java_has_started() -> None:
    passed = []

    def start() -> None:
        with _interrupted_later():
            os.kill(os.getpid(), signal.SIGINT)
            passed.append("started")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert passed == ["started"]


def test_if_java_has_ended_one_line_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def log_as_py4j() -> None:
        logging.getLogger("py4j.clientserver").error("Exception occurred while shutting down connection")
        logging.getLogger().error("KeyboardInterrupt while sending command.")

    class Gone:
        sparkContext = type("", (), {"setLogLevel": lambda *_: None})()  # noqa: N815 Spark's name

        def stop(self) -> None:
            raise ConnectionRefusedError("nobody listens")

    monkeypatch.setattr("rocketshim_spark.session.create", lambda _: Gone())
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    ended = pytest.raises(LakeError, match=r"^Spark failed: its Java process has ended; the same command can be run")
    with ended, SparkOptions(None, "auto", None).session():
        log_as_py4j()
        assert not caplog.records
        raise Py4JNetworkError("Answer from Java side is empty")
    log_as_py4j()
    assert len(caplog.records) == 2, "the program goes on, and logs what it wants"


def test_a_landing_prints_the_first_gaps_of_many(capsys: pytest.CaptureFixture[str]) -> None:
    gaps = tuple(Gap("orders", "id", partition, 0, 7, "expired") for partition in range(10_000))
    _print_landing(Landing(0, gaps, 1), "lake", 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[50] == "gap: retention deleted orders/49 offsets 0 to 6 before they were landed (expired)"
    assert lines[51:] == ["gap: 9950 more: use --json, or see the table lake/gaps"]


def test_a_landing_asks_for_the_worker_s_positions_although_the_cluster_does_not_list_its_group(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Cluster:
        def __init__(self, *_: Any) -> None: ...

        def topics(self) -> list[str]:
            return ["orders"]

        def groups(self) -> list[str]:
            return ["pay"]

    asked: list[list[str]] = []

    def land(*_: Any, groups: list[str], **__: Any) -> Landing:
        asked.append(groups)
        return Landing(0, (), None)

    monkeypatch.setattr(SparkOptions, "session", lambda _: nullcontext())
    monkeypatch.setattr("rocketshim_spark.sources.Cluster", Cluster)
    monkeypatch.setattr("rocketshim_spark.land.land", land)
    assert main(["land", "orders", "--bootstrap", "b", "--lake", "/nowhere"]) == 0
    assert asked == [["pay", TopicNames("").worker_group]]
    assert capsys.readouterr().err.startswith("note: found no shim topic")
    assert main(["land", "orders", "--bootstrap", "b", "--lake", "/nowhere", "--group", "typo"]) == 0
    assert capsys.readouterr().err.startswith("note: no group typo has a position or a member at b: check --group")


class Ended:
    """A connection to a Java process that ends while it is asked."""

    socket = None

    def send_command(self, _: str) -> str:
        raise Py4JNetworkError("Error while sending or receiving", when=ERROR_ON_RECEIVE)

    def close(self, *_: Any) -> None:
        """Nothing is open."""


def test_that_java_has_ended_is_said_by_the_command_and_not_by_py4j(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = GatewayClient()
    monkeypatch.setattr(client, "_get_connection", Ended)
    client.send_command("x", retry=False)
    assert [record.getMessage() for record in caplog.records] == ["Exception while sending command."]
    caplog.clear()
    monkeypatch.setattr(logging.getLogger(), "filters", [is_no_trace_of_py4j])
    client.send_command("x", retry=False)
    assert not caplog.records
    monkeypatch.setenv("ROCKETSHIM_DEBUG", "1")
    client.send_command("x", retry=False)
    assert caplog.records

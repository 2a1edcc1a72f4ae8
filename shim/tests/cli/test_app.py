import io
import json
import os
import subprocess
import sys
from typing import Any

import pytest
import typer

import rocketshim.cli.app as app_module
from rocketshim.cli.app import COMMANDS, ERROR, FINDING, build, main
from rocketshim.errors import ConfigError, GroupActiveError, LocalBrokerError


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """Add a command `probe` to the table; its module is this one."""
    monkeypatch.setitem(COMMANDS, "probe", (__name__, "Tests the command line."))
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__, app_module))
    monkeypatch.setattr(sys.modules[__name__], "app", app, raising=False)
    return app


app = typer.Typer()


@app.command()
def probe_command(*, outcome: str = "fine") -> None:
    match outcome:
        case "finding":
            raise typer.Exit(FINDING)
        case "typed":
            raise ConfigError("level 0: the first level is 1; write a positive number")
        case "two-lines":
            raise GroupActiveError("x\ndone: moved")
        case "log":
            raise LocalBrokerError("the last lines:\n\x1b[2Jline")
        case "interrupt":
            raise KeyboardInterrupt
        case "defect":
            raise ZeroDivisionError
        case "foreign":
            typer.echo("\u2192 tag\u00e9")
        case _:
            typer.echo("done")


@pytest.mark.usefixtures("probe")
class TestEnds:
    @pytest.mark.parametrize(
        ("outcome", "code"), [("fine", 0), ("finding", FINDING), ("typed", ERROR), ("interrupt", 130)]
    )
    def test_each_outcome_has_its_exit_code(self, outcome: str, code: int) -> None:
        assert main(["probe", "--outcome", outcome]) == code

    def test_a_typed_error_is_one_line_without_traceback(self, capsys: pytest.CaptureFixture[str]) -> None:
        main(["probe", "--outcome", "typed"])
        out, err = capsys.readouterr()
        assert out == ""
        assert err == "error: level 0: the first level is 1; write a positive number\n"

    @pytest.mark.parametrize(
        ("outcome", "shown"), [("two-lines", r"x\ndone: moved"), ("log", "the last lines:\n\\x1b[2Jline")]
    )
    def test_only_an_error_with_lines_of_a_log_has_several_lines(
        self, outcome: str, shown: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        main(["probe", "--outcome", outcome])
        assert capsys.readouterr().err == f"error: {shown}\n"

    def test_the_traceback_is_printed_on_request(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ROCKETSHIM_DEBUG", "1")
        assert main(["probe", "--outcome", "typed"]) == ERROR
        assert "Traceback" in capsys.readouterr().err

    def test_an_unexpected_exception_is_not_hidden(self) -> None:
        with pytest.raises(ZeroDivisionError):
            main(["probe", "--outcome", "defect"])

    @pytest.mark.parametrize("words", [["prob"], ["probe", "--wrong"], ["probe", "extra"], ["--wrong"]])
    def test_wrong_usage_is_an_error_and_not_a_finding(
        self, words: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(words) == ERROR
        assert "Usage: rocketshim" in capsys.readouterr().err

    def test_a_mistyped_command_suggests_the_right_one(self, capsys: pytest.CaptureFixture[str]) -> None:
        main(["prob"])
        assert "'probe'" in capsys.readouterr().err


def test_each_command_has_a_line_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    help_text = capsys.readouterr().out
    assert "Spark jobs" in help_text
    assert "From the package" not in help_text


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rocketshim 0.")


def test_every_command_of_the_table_is_in_the_help_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name, (_, line) in COMMANDS.items():
        assert f"{name} " in text
        assert line.split(";")[0].split(",")[0] in text


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_loads_and_its_help_ends_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.count("Example: ") == 1
    example = text.partition("Example: ")[2]
    assert example.startswith(f"rocketshim {name}")
    assert "╰" not in example, "the example is the last thing that a reader sees"


@pytest.mark.parametrize("name", ["run", "fetch", "info"])
def test_every_broker_command_ends_its_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", name, "--help"]) == 0
    assert f"Example: rocketshim broker {name}" in capsys.readouterr().out


LOADED = """
import json, sys
from rocketshim.cli import main
main(sys.argv[1:])
print(json.dumps([name for name in sys.modules if name.startswith(("rocketshim", "confluent_kafka", "jgo"))]))
"""


def modules_loaded_by(*words: str) -> list[str]:
    run = subprocess.run([sys.executable, "-c", LOADED, *words], capture_output=True, text=True, check=True)  # noqa: S603
    loaded: list[str] = json.loads(run.stdout.splitlines()[-1])
    return loaded


def test_the_help_imports_no_command_and_no_kafka_client() -> None:
    loaded = modules_loaded_by("--help")
    of_the_shell = {name for name in loaded if name.startswith("rocketshim.cli.")}
    assert of_the_shell == {"rocketshim.cli.app", "rocketshim.cli.config_file", "rocketshim.cli.options"}
    assert "confluent_kafka" not in loaded


def test_the_broker_command_imports_neither_consumer_nor_producer_nor_kafka_client() -> None:
    loaded = modules_loaded_by("broker", "info")
    assert not [name for name in loaded if name.startswith(("rocketshim.consumer", "rocketshim.producer"))]
    assert "confluent_kafka" not in loaded
    assert "jgo" not in loaded


def test_completion_knows_every_command() -> None:
    os.environ["_ROCKETSHIM_COMPLETE"] = "complete_bash"
    try:
        built = build([])
    finally:
        del os.environ["_ROCKETSHIM_COMPLETE"]
    commands: list[Any] = [*built.registered_groups, *built.registered_commands]
    assert {group.name for group in built.registered_groups} >= {"broker"}
    assert {one.name for one in commands} >= set(COMMANDS)


def test_no_colour_means_no_escape_sequences() -> None:
    environ = {**os.environ, "NO_COLOR": "1", "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    for words in (["--help"], ["broker", "--wrong"], ["broker", "run", "--property", "x"]):
        run = subprocess.run(  # noqa: S603
            [sys.executable, "-c", "import sys; from rocketshim.cli import main; sys.exit(main())", *words],
            capture_output=True,
            text=True,
            env=environ,
            check=False,
        )
        # Bold and dim are not colours (no-color.org); codes 3x and 4x are.
        assert "\x1b[3" not in run.stdout + run.stderr
        assert "\x1b[4" not in run.stdout + run.stderr


def test_a_character_that_standard_output_cannot_encode_is_escaped(
    probe: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    del probe
    with io.TextIOWrapper(io.BytesIO(), encoding="latin-1") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["probe", "--outcome", "foreign"]) == 0
        out.flush()
        assert out.buffer.getvalue().split() == [b"\\u2192", b"tag\xe9"]  # type: ignore[attr-defined]

"""Profiles: named clusters in a configuration file."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from rocketshim.cli.app import COMMANDS, Command, main
from rocketshim.cli.options import Connected, with_groups

FILE = """
profile = "local"

[profiles.local]
bootstrap = "localhost:9092"

[profiles.prod]
bootstrap = "kafka:9093"
namespace = "shop"
client = ["sasl.password=secret", "client.id=on-call"]

[profiles.only-space]
namespace = "space"
"""
seen: list[dict[str, object]] = []
app = typer.Typer()


@app.command(epilog="Example: rocketshim connect")
def connect(*, at: Connected) -> None:
    """Remember what was given."""
    seen.append({"bootstrap": at.bootstrap, "client": at.client, "namespace": at.namespace})


@pytest.fixture(autouse=True)
def command(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add a command `connect`, defined in this module."""
    import sys

    monkeypatch.setitem(sys.modules, "connect_command", sys.modules.get(__name__, sys))
    monkeypatch.setattr(sys.modules["connect_command"], "app", app, raising=False)
    monkeypatch.setitem(COMMANDS, "connect", ("connect_command", "Tests profiles."))
    yield
    seen.clear()


def connected(*words: str) -> dict[str, object]:
    assert main(["connect", *words]) == 0
    return seen.pop()


PROD = {
    "bootstrap": "kafka:9093",
    "client": {"sasl.password": "secret", "client.id": "on-call"},
    "namespace": "shop",
}
LOCAL = {"bootstrap": "localhost:9092", "client": {}, "namespace": ""}


def test_the_profile_of_the_file_is_used_if_none_is_named(config: Path) -> None:
    config.write_text(FILE)
    assert connected() == LOCAL


@pytest.mark.parametrize("words", [["--profile", "prod"], ["--profile=prod"], ["-p", "prod"], ["-pprod"]])
def test_a_profile_is_named_on_the_command_line(words: list[str], config: Path) -> None:
    config.write_text(FILE)
    assert connected(*words) == PROD


def test_a_profile_is_named_by_the_environment(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text(FILE)
    monkeypatch.setenv("ROCKETSHIM_PROFILE", "prod")
    assert connected() == PROD
    assert connected("--profile", "local") == LOCAL


def test_what_is_typed_wins_over_the_profile(config: Path) -> None:
    config.write_text(FILE)
    found = connected("--profile", "prod", "--namespace", "mine", "--client", "client.id=me")
    assert found == {**PROD, "namespace": "mine", "client": {"sasl.password": "secret", "client.id": "me"}}


@pytest.mark.parametrize("words", [["--bootstrap", "other:9092"], ["-b", "other:9092"], ["--bootstrap=other:9092"]])
def test_other_brokers_do_not_get_the_passwords_of_a_profile(
    words: list[str], config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(FILE)
    other = {"bootstrap": "other:9092", "client": {}, "namespace": ""}
    assert connected(*words) == other
    monkeypatch.setenv("ROCKETSHIM_PROFILE", "prod")
    assert connected(*words) == other
    monkeypatch.setenv("ROCKETSHIM_BOOTSTRAP", "other:9092")
    assert connected() == other
    assert main(["connect", "--profile", "prod", *words]) == 1


def test_a_profile_that_is_asked_for_wins_over_the_environment(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text(FILE)
    monkeypatch.setenv("ROCKETSHIM_BOOTSTRAP", "other:9092")
    monkeypatch.setenv("ROCKETSHIM_NAMESPACE", "other")
    assert connected("--profile", "prod") == PROD
    assert connected("--profile", "only-space") == {"bootstrap": "other:9092", "client": {}, "namespace": "space"}
    monkeypatch.setenv("ROCKETSHIM_PROFILE", "only-space")
    assert connected()["namespace"] == "other"


@pytest.mark.parametrize(
    ("content", "words", "told"),
    [
        (None, ["--profile", "prod"], "there is no file"),
        (FILE, ["--profile", "prodd"], "did you mean prod?"),
        (FILE, ["--profile", "xyz"], "it has local, only-space, prod; to add it, write [profiles.xyz]"),
        ("[profiles.a]\nboot = 'secret'", ["--profile", "a"], "profiles.a.boot is not a setting; did you mean bootstr"),
        ("profil = 'a'", [], "profil is not a setting; did you mean profile?"),
        ("[profiles.a]\nclient = 5", ["-p", "a"], "profiles.a.client: Input should be a valid tuple"),
        ("not toml", [], "cannot read"),
        ("profile = 'gone'", [], "has no such profile: it has none"),
    ],
)
def test_a_wrong_profile_is_an_error_with_the_way_out(
    content: str | None, words: list[str], told: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        config.write_text(content)
    assert main(["connect", *words]) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert told in error
    assert "secret" not in error
    assert not seen


def test_the_help_is_shown_with_a_broken_file(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("not toml")
    assert main(["connect", "--help"]) == 0
    assert "--profile" in capsys.readouterr().out


def test_only_commands_that_connect_take_a_profile() -> None:
    plain = typer.Typer(add_completion=False)

    @plain.command(cls=Command)
    def nothing() -> None:
        """Do nothing."""

    assert [each.name for each in typer.main.get_command(plain).params] == []


@pytest.mark.parametrize("behind", [["connect"], ["connect", "--namespace", "mine"]])
def test_an_option_may_stand_before_the_command_and_one_behind_it_wins(behind: list[str], config: Path) -> None:
    config.write_text(FILE)
    assert main(["--bootstrap=kafka:1", "-n", "shop", "-c", "client.id=me", *behind]) == 0
    namespace = "mine" if "mine" in behind else "shop"
    assert seen.pop() == {"bootstrap": "kafka:1", "client": {"client.id": "me"}, "namespace": namespace}
    assert main(["-p", "prod", *behind, "-c", "client.id=me"]) == 0
    client = {"sasl.password": "secret", "client.id": "me"}
    assert seen.pop() == {"bootstrap": "kafka:9093", "client": client, "namespace": namespace}
    assert main(["-p", "prod", "--bootstrap", "kafka:1", *behind]) == 1


def test_an_option_before_a_command_that_does_not_have_it_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--namespace", "shop", "dlq", "apply", __file__]) == 1
    assert "No such option: --namespace" in capsys.readouterr().err


def test_an_empty_value_is_a_value_before_the_command_and_in_a_profile(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text('[profiles.plain]\nbootstrap = "kafka:9093"\nnamespace = ""')
    monkeypatch.setenv("ROCKETSHIM_BOOTSTRAP", "kafka:9092")
    monkeypatch.setenv("ROCKETSHIM_NAMESPACE", "shop")
    assert main(["--namespace", "", "connect"]) == 0
    assert seen.pop()["namespace"] == ""
    assert connected("--profile", "plain")["namespace"] == ""
    assert main(["--bootstrap", "", "connect"]) == 1
    assert "bootstrap is empty" in capsys.readouterr().err


def test_a_command_is_wrapped_once_however_often_a_program_calls_it() -> None:
    wrapped = with_groups(connect)
    assert wrapped is not connect
    assert with_groups(wrapped) is wrapped

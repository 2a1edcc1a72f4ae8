"""Old spellings of options."""

from typing import Any

import pytest
import typer

from rocketshim.cli import main
from rocketshim.cli.app import build
from rocketshim.cli.renamed import RENAMED, current_words

RENAMES = {"--mend": "--fix", "--speed": "--rate", "--again NAME": "--again --plan NAME"}


def takes_value(option: str) -> bool:
    return option in {"--rate", "--key", "-k"}


@pytest.mark.parametrize(
    ("typed", "current"),
    [
        ("--mend --key x", "--fix --key x"),
        ("--speed 5", "--rate 5"),
        ("--speed=5", "--rate=5"),
        ("--again monday 0/3", "--again --plan monday 0/3"),
        ("--again=monday", "--again --plan monday"),
        ("--again 0/3", "--again 0/3"),
        ("--again --plan monday", "--again --plan monday"),
        ("--again", "--again"),
        ("--key --mend", "--key --mend"),
        ("-k --mend --mend", "-k --mend --fix"),
        ("--speed --mend", "--rate --mend"),
        ("-- --mend", "-- --mend"),
        ("--mended", "--mended"),
    ],
)
def test_old_options_are_translated_and_values_are_not(typed: str, current: str) -> None:
    words, used = current_words(typed.split(), RENAMES, takes_value)
    assert " ".join(words) == current
    assert bool(used) == (typed != current)


def command_of(path: str) -> Any:
    words = path.split()[1:]
    command: Any = typer.main.get_command(build(words))
    for word in words:
        command = command.commands[word]
    return command


@pytest.mark.parametrize("path", sorted(RENAMED))
def test_each_new_spelling_exists_and_no_old_one_does(path: str) -> None:
    known = {name for each in command_of(path).params for name in each.opts}
    for old, new in RENAMED[path].items():
        assert {word for word in new.split() if word.startswith("-")} <= known
        assert old not in known


def test_a_warning_names_the_new_spelling(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parked", "redrive", "nowhere", "--again", "monday", "--bootstrap", "127.0.0.1:1"]) == 1
    assert "warning: --again NAME is now written --again --plan NAME; the old" in capsys.readouterr().err


def test_sending_again_needs_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parked", "redrive", "0/1", "--again", "--bootstrap", "127.0.0.1:1"]) == 1
    assert "--again needs --plan NAME" in capsys.readouterr().err

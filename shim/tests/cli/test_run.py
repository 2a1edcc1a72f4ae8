"""`rocketshim run`: which consumers it finds, and its errors if it finds none."""

from pathlib import Path

import pytest

from rocketshim.cli import main
from rocketshim.cli.run import _compare_address, _load
from rocketshim.consumer.push.push_consumer import PushConsumer
from rocketshim.errors import ConfigError

MODULE = """
from rocketshim import PushConsumer

consumer = PushConsumer("localhost:1", group="g")
number = 3

class Holder:
    inside = PushConsumer("localhost:1", group="h")

def make():
    return PushConsumer("localhost:1", group="made")
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_consumers.py").write_text(MODULE)
    (tmp_path / "shop_exits.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "shop_made_by.py").write_text("import sys\ndef make():\n    sys.exit('no database')\n")
    (tmp_path / "shop_broken.py").write_text("import no_such_module_at_all\n")
    (tmp_path / "shop_misspelt.py").write_text("def charge(message)\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in __import__("sys").path if entry])


@pytest.mark.parametrize(("name", "group"), [("consumer", "g"), ("Holder.inside", "h"), ("make", "made")])
def test_a_consumer_is_found_by_name_in_the_current_folder_too(name: str, group: str) -> None:
    found = _load(f"shop_consumers:{name}")
    assert isinstance(found, PushConsumer)
    assert found.settings.group == group


@pytest.mark.parametrize(
    ("target", "error_text"),
    [
        ("shop_consumers", "MODULE:NAME"),
        ("shop_consumers:", "MODULE:NAME"),
        ("no_shop:consumer", "no module 'no_shop'"),
        ("shop_consumers:nobody", "has no nobody"),
        ("shop_consumers:number", "is a builtins.int"),
    ],
)
def test_an_invalid_target_is_an_error(target: str, error_text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=error_text):
        _load(target)
    assert main(["run", target]) == 1
    assert error_text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "error_text"),
    [
        ("shop_exits:consumer", "importing the module 'shop_exits' called sys.exit(0)"),
        ("shop_made_by:make", "make() called sys.exit('no database')"),
    ],
)
def test_user_code_that_exits_is_an_error_with_exit_code_1(
    target: str, error_text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", target]) == 1
    assert error_text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "frames", "error"),
    [("shop_broken", 1, "No module named 'no_such_module_at_all'"), ("shop_misspelt", 0, "SyntaxError")],
)
def test_a_module_that_cannot_be_imported_shows_its_own_error_from_its_own_lines_on(
    capsys: pytest.CaptureFixture[str], name: str, frames: int, error: str
) -> None:
    assert main(["run", f"{name}:consumer"]) == 1
    printed = capsys.readouterr().err
    assert error in printed
    assert printed.count(", in ") == frames
    assert f"{name}.py" in printed


def test_an_invalid_health_address_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "shop_consumers:consumer", "--health", "nowhere"]) == 1
    assert "PORT" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("used", "named", "is_other"),
    [
        ("localhost:9092", "127.0.0.1:31482", True),
        ("localhost:9092", "127.0.0.1:9092", False),
        ("kafka-1:9092, kafka-2:9092", "kafka-2:9092", False),
        ("localhost:9092", None, False),
        ("localhost:9092", "", False),
    ],
)
def test_an_address_of_the_program_that_is_not_the_variable_s_is_named(
    used: str, named: str | None, is_other: bool, caplog: pytest.LogCaptureFixture
) -> None:
    _compare_address(used, named)
    assert ("run.other-address" in caplog.text) == is_other
    if is_other:
        assert f"used={used} ROCKETSHIM_BOOTSTRAP={named}" in caplog.text
        assert "leave bootstrap out" in caplog.text

"""The behaviour of every command in a shell: example, completion, colours, prompts, a closed output."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from rich.text import Text

import rocketshim.cli
import rocketshim_local.cli
from rocketshim.cli.app import COMMANDS, build, main
from rocketshim.cli.options import seconds

EVERYTHING = "_ROCKETSHIM_COMPLETE"
ROOT = Path(__file__).parents[3]


def tree(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from tree(below, (*path, name))


def every_command() -> dict[str, Any]:
    """Return each command and group by its words, including those of other packages."""
    os.environ[EVERYTHING] = "complete_bash"
    try:
        root = typer.main.get_command(build([]))
    finally:
        del os.environ[EVERYTHING]
    return {" ".join(path): command for path, command in tree(root, ("rocketshim",))}


TREE = every_command()
LEAVES = sorted(words for words, command in TREE.items() if not getattr(command, "commands", {}))


def test_the_tree_contains_every_command() -> None:
    first = {words.split()[1] for words in LEAVES}
    assert first == {*COMMANDS, "spark"}
    assert {"rocketshim dlq plan", "rocketshim group lag", "rocketshim spark replay run"} <= set(LEAVES)


@pytest.mark.parametrize("words", TREE)
def test_each_help_ends_with_an_example_with_valid_options(words: str) -> None:
    command = TREE[words]
    assert command.help, "the help describes the command"
    example = (command.epilog or "").partition("Example: ")[2]
    assert example.startswith(words), "the example is of this command"
    for line in example.split("; then: "):
        typed = shlex.split(line.partition(" > ")[0])
        called = max((each for each in TREE if " ".join(typed).startswith(each)), key=len)
        known = {name for each in TREE[called].params for name in (*each.opts, *each.secondary_opts)}
        assert {word.partition("=")[0] for word in typed if word.startswith("-")} <= known


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^ *```\w*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
PROMPT = re.compile(r"\s*(\d:\d\d )?(\$ |ExecStart=\S+/)?(?=rocketshim )")


def typed_in(page: Path) -> list[str]:
    """Return the commands in the code blocks of a page, as a reader would type them."""
    blocks = FENCED.findall(page.read_text(encoding="utf-8"))
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line[found.end() :] for line in lines if (found := PROMPT.match(line))]


def parsed(command: Any, words: list[str], parent: Any = None) -> None:
    """Parse a command line without running it."""
    context = command.make_context(command.name, list(words), parent=parent)
    if getattr(command, "commands", {}):
        _, subcommand, arguments = command.resolve_command(context, [*context._protected_args, *context.args])
        parsed(subcommand, arguments, context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_command_in_the_documentation_parses(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROCKETSHIM_BOOTSTRAP", "localhost:9092")
    for file in ("plan.json", "gone.json"):
        Path(file).touch()
    for line in typed_in(page):
        words = shlex.split(line.replace("@/etc/rocketshim/client.properties", "client.id=shop"), comments=True)[1:]
        parsed(TREE["rocketshim"], [word for word in words if word != "…"])


@pytest.mark.parametrize("words", ["rocketshim worker", "rocketshim init"])
def test_the_pages_of_the_worker_and_of_operations_name_each_option(words: str) -> None:
    pages = "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("worker.md", "operations.md"))
    options = [each.opts[0] for each in TREE[words].params if not getattr(each, "hidden", False)]
    assert [option for option in options if option not in pages] == []


@pytest.mark.parametrize(
    "words", [words for words in LEAVES if re.match(r"\S+ (delayed|dlq|group|parked|retry|timers|tx) ", words)]
)
def test_every_reading_command_accepts_a_namespace(words: str) -> None:
    taken = {name for each in TREE[words].params for name in each.opts}
    assert {"--bootstrap", "--client"} <= taken
    assert "--namespace" in taken or words == "rocketshim dlq apply", "a plan names its own topics"


def test_the_commands_of_the_documentation_are_found() -> None:
    assert len([line for page in PAGES for line in typed_in(page)]) > 30


@pytest.mark.parametrize("words", LEAVES)
def test_no_command_prompts(words: str) -> None:
    for parameter in TREE[words].params:
        assert not getattr(parameter, "prompt", None)
        assert parameter.help, f"{parameter.name} has a help text"


def test_no_source_of_a_command_prompts() -> None:
    """Only `console --new-user` does, for a password."""
    folders = [Path(package.__file__ or "").parent for package in (rocketshim.cli, rocketshim_local.cli)]
    asking = re.compile(r"\b(confirm|prompt|input|getpass)\(")
    sources = [path for folder in folders for path in folder.glob("*.py")]
    assert [path.name for path in sources if asking.search(path.read_text(encoding="utf-8"))] == ["console.py"]


def shell(*words: str, **environ: str) -> str:
    """Return what the program writes for a shell, without a terminal."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", "import sys; from rocketshim.cli import main; sys.exit(main())", *words],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, env={**os.environ, **environ},
    )  # fmt: skip
    return done.stdout


COMPLETED = {
    "rocketshim do": "doctor",
    "rocketshim dlq pl": "plan",
    "rocketshim dlq plan --to": "--to-source",
    "rocketshim acls --role op": "operator",
    "rocketshim spark la": "land",
}
ASK_EACH = """
import json, os, sys
from contextlib import redirect_stdout
from io import StringIO
from rocketshim.cli import main
answers = []
for environ in json.loads(sys.argv.pop()):
    os.environ.update(environ)
    with redirect_stdout(StringIO()) as written:
        try:
            code = main()
        except SystemExit as end:
            code = end.code
    assert not code
    answers.append(written.getvalue())
print(json.dumps(answers))
"""


def asked_in(shell_name: str, lines: Iterable[str]) -> list[str]:
    """Return the completions at the end of each line, by the shell's protocol; one process answers all."""
    questions = []
    for line in lines:
        last = {
            "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)},
            "zsh": {"_TYPER_COMPLETE_ARGS": line},
            "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        }
        questions.append({EVERYTHING: f"complete_{shell_name}", **last[shell_name]})
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", ASK_EACH, json.dumps(questions)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
    )  # fmt: skip
    answers: list[str] = json.loads(done.stdout)
    return answers


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_commands_options_and_values_are_completed(shell_name: str) -> None:
    for found, offered in zip(asked_in(shell_name, COMPLETED), COMPLETED.values(), strict=True):
        assert offered in found
        assert "retry" not in found, "words with another prefix are not offered"


@pytest.mark.parametrize(
    ("shell_name", "file"),
    [
        ("bash", ".bash_completions/rocketshim.sh"),
        ("zsh", ".zfunc/_rocketshim"),
        ("fish", ".config/fish/completions/rocketshim.fish"),
    ],
)
def test_completion_is_shown_and_installed(shell_name: str, file: str, tmp_path: Path) -> None:
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path)}
    shown = shell("--show-completion", shell_name, **named)
    assert f"complete_{shell_name}" in shown
    shell("--install-completion", shell_name, **named)
    assert (tmp_path / file).read_text(encoding="utf-8").strip() == shown.strip()


def test_bash_itself_completes_with_the_shown_script() -> None:
    script = shell("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    program = f"rocketshim() {{ {sys.executable} -c 'import sys; from rocketshim.cli import main; sys.exit(main())'; }}"
    wanted = "COMP_WORDS=(rocketshim dlq dis) COMP_CWORD=2; _rocketshim_completion rocketshim; echo ${COMPREPLY[@]}"
    script = script.replace("$1", "rocketshim")
    lines = [program, "export -f rocketshim", script.replace("env ", "").replace("\\\n", " "), wanted]
    done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=True)  # noqa: S603, S607
    assert done.stdout.strip() == "discard"


def test_a_paragraph_of_a_help_breaks_only_where_the_terminal_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    assert main(["dev", "--help"]) == 0
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "MODULE:NAME gets this address" in each]
    assert "A second Ctrl-C, at least a second after the first, ends everything immediately." in line


@pytest.mark.parametrize("no_colour", [False, True])
def test_colours_are_used_on_terminals_unless_no_color_is_set(no_colour: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_colour:
        monkeypatch.setenv("NO_COLOR", "1")
    out = Console()
    with out.capture() as captured:
        out.print(Text("error", style="bold red"))
    assert ("\x1b[1;31m" in captured.get()) is not no_colour
    assert "\x1b[3" not in captured.get() or not no_colour


def test_no_escape_sequences_are_written_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    piped = Console(file=StringIO())
    assert not piped.is_terminal
    assert "\x1b" not in shell("--help")
    assert "\x1b" not in shell("acls", "--role", "worker")


def test_a_closed_output_ends_the_command_quietly() -> None:
    """As in `rocketshim acls … | head -1`: the reader closes the pipe before the command writes."""
    read, write = os.pipe()
    os.close(read)
    words = ["acls", "--role", "operator"]
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "rocketshim", *words], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    "words",
    [
        [], ["dlq"], ["dlq", "ls"], ["dlq", "plan", "--group", "g"], ["trace", "x"], ["doctor"], ["group", "lag", "g"],
        ["delayed", "ls"], ["parked", "plan", "0/0"], ["retry", "ls", "--group", "g"], ["send", "orders", "x"],
        ["init"], ["worker", "--allow", "orders"],
    ],
)  # fmt: skip
def test_a_missing_broker_address_is_a_usage_error(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROCKETSHIM_BOOTSTRAP", raising=False)
    code = main(words)
    out, err = capsys.readouterr()
    if len(words) < 2 and words not in (["doctor"], ["init"]):
        assert "Usage: rocketshim" in out + err
        return
    assert code == 1
    assert "--bootstrap" in err


@pytest.mark.parametrize(
    "words",
    [
        ["healthcheck", "http://127.0.0.1:1/ready", "--timeout"], ["worker", "--allow", "orders", "--stop-timeout"],
        ["send", "orders", "x", "--timeout"], ["exporter", "--every"], ["exporter", "--doctor-every"],
        ["top", "--every"],
    ],
)  # fmt: skip
def test_a_wait_that_no_clock_can_count_is_a_usage_error(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETSHIM_BOOTSTRAP", "127.0.0.1:1")
    assert main([*words, "inf"]) == 1
    assert f"Invalid value for '{words[-1]}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "found_s"), [("30s", 30.0), ("30", 30.0), ("1.5", 1.5), ("500ms", 0.5), ("2m", 120.0)]
)
def test_every_duration_has_the_same_spellings(text: str, found_s: float) -> None:
    assert seconds()(text) == found_s


@pytest.mark.parametrize("text", ["", "-1", "1e3", "soon", "nan", "2 s", "0.9", "2d"])
def test_what_is_not_a_duration_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"duration|seconds"):
        seconds(1)(text)


def test_a_listing_of_a_terminal_without_umlauts_escapes_them() -> None:
    """In the C locale Python's standard output is ASCII."""
    program = (
        "from rocketshim.cli.app import main; from rocketshim.cli.table import show_table; "
        "main(['--version']); show_table(['who'], [['M\\xfcller']])"
    )
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, env=os.environ | locale, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert b"M\\xfcller" in done.stdout


@pytest.mark.parametrize(
    ("words", "package", "told"),
    [
        (["console", "--help"], "starlette", None),
        (["console", "--bootstrap", "127.0.0.1:1"], "starlette", "pip install '.[console]' in a clone"),
        (["demo", "--keep"], "uvicorn", "pip install '.[console]' in a clone"),
    ],
)
def test_without_its_extra_a_command_says_how_to_get_it(words: list[str], package: str, told: str | None) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None; from rocketshim.cli.app import main; sys.exit(main({words!r}))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == (0 if told is None else 1), done.stderr
    assert "Traceback" not in done.stderr
    assert (told or "") in done.stderr

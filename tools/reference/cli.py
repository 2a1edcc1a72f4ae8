"""The page of the command line: every command with its arguments, options and environment variables."""

from collections.abc import Iterable, Iterator
from typing import Any

import typer

from rocketshim.cli.app import build
from tools.reference.tables import table

__all__ = ["page"]

_INTRODUCTION = """\
# Command line

`rocketshim COMMAND --help` prints the same. [Operating](../operations.md) describes exit codes, connections to a
cluster, and which commands to use when. No command asks questions. Colours appear on a terminal only, and not with
`NO_COLOR`.
"""


def page() -> str:
    """Return the page."""
    commands = {name: _command(name) for name in sorted(_command().commands)}
    lines = [_INTRODUCTION, "## Environment variables", "", _environment(commands.values())]
    for name, command in commands.items():
        lines += _sections(command, f"rocketshim {name}", 2)
    return "\n".join(lines)


def _command(*name: str) -> Any:
    """Return a command, loaded; without a name: the list of commands. typer does not export the type."""
    root: Any = typer.main.get_command(build(name))
    return root.commands[name[0]] if name else root


def _sections(command: Any, path: str, depth: int) -> Iterator[str]:
    """Yield the lines of a command and of its own commands."""
    yield f"{'#' * depth} {path}\n"
    yield f"{_text(command.help)}\n"
    if command.epilog:
        yield f"`{_line(command.epilog).removeprefix('Example: ')}`\n"
    if hasattr(command, "commands"):
        for name in sorted(command.commands):
            yield from _sections(command.commands[name], f"{path} {name}", depth + 1)
        return
    yield table(("argument or option", "meaning"), (_row(each) for each in command.params if not each.hidden))


def _row(parameter: Any) -> tuple[str, str]:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`", _text(parameter.help)
    value = "" if parameter.is_flag else f" {parameter.metavar or 'VALUE'}"
    meaning = _text(parameter.help)
    if parameter.required:
        meaning += " Required."
    elif isinstance(parameter.default, (int, float, str)) and not parameter.is_flag and parameter.default != "":
        meaning += f" Default: `{parameter.default}`."
    names = "/".join([*parameter.opts, *parameter.secondary_opts])
    return f"`{names}{value}`", meaning


def _text(text: str | None) -> str:
    """Return a help text as one line of Markdown, in which `<` and `*` stand for themselves."""
    return _line(text).replace("<", "&lt;").replace("*", "\\*")


def _line(text: str | None) -> str:
    return " ".join((text or "").replace("\b", "").split())


def _environment(commands: Iterable[Any]) -> str:
    """Return the table of the variables that options are read from."""
    variables: dict[str, str] = {}
    for leaf in (leaf for command in commands for leaf in _leaves(command)):
        for parameter in leaf.params:
            if parameter.envvar:
                names = parameter.envvar if isinstance(parameter.envvar, list) else [parameter.envvar]
                variables.update(dict.fromkeys(names, f"`{parameter.opts[0]}`: {_text(parameter.help)}"))
    variables["ROCKETSHIM_CONFIG"] = "The configuration file. Default: `~/.config/rocketshim/config.toml`."
    variables["ROCKETSHIM_DEBUG"] = "Set: an error is printed with its traceback."
    return table(("variable", "sets"), ((f"`{name}`", about) for name, about in sorted(variables.items())))


def _leaves(command: Any) -> Iterator[Any]:
    if not hasattr(command, "commands"):
        yield command
        return
    for each in command.commands.values():
        yield from _leaves(each)

"""The frame of the command line: which commands there are, how they are found, how they end.

*Adding a command*: write `rocketshim/cli/<name>.py` with a `typer.Typer` called `app` (one `@app.command()` makes a
plain command, several make a group) and add one line to `COMMANDS`. Another distribution adds one through the entry
point group `rocketshim.commands`, whose value names such an object.

*Lazy*: only the module of the command that is called is imported. `rocketshim --help` shows the table and imports none.

*Ends*: exit code 0: fine. 1: an error, of usage too; or who read our output has gone, as `| head` does, and nothing is
said. 2: a finding, something is not as it should be, said by `raise typer.Exit(FINDING)`. 130: Ctrl-C. An error of
rocketshim's own tree becomes a readable line on stderr, with its traceback only when `ROCKETSHIM_DEBUG` is set. Any
other exception is a defect of ours and shows its traceback always.

Colours: on a terminal only, and none with `NO_COLOR`, as rich does it.
"""

import importlib
import importlib.metadata
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from rocketshim.errors import RocketshimError

__all__ = ["COMMANDS", "ERROR", "FINDING", "build", "main"]

ERROR = 1
"""Exit code of a command that could not do its work, and of wrong usage."""

FINDING = 2
"""Exit code of a command that worked and found something that is not as it should be."""

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("rocketshim_local.cli.demo", "One day of real flights through delay, retry and dead letters."),
    "init": ("rocketshim.cli.init", "Create the topics the shim needs, or say what would be created."),
    "doctor": ("rocketshim.cli.doctor", "Is the set-up sound? What is wrong, what it costs, what mends it."),
    "send": ("rocketshim.cli.send", "Send one message, now or later."),
    "run": ("rocketshim.cli.run", "Run a push consumer of yours, in one process or several."),
    "worker": ("rocketshim.cli.worker", "Deliver delayed and retried messages when they are due."),
    "delayed": ("rocketshim.cli.delayed", "See what waits in the delay queues, and until when."),
    "parked": ("rocketshim.cli.parked", "See what the worker could not deliver, and send it again."),
    "dlq": ("rocketshim.cli.dlq", "Dead letters: what is dead and why, and sending it again."),
    "retry": ("rocketshim.cli.retry", "Retries: what came back to a group."),
    "trace": ("rocketshim.cli.trace", "One message through its whole life."),
    "group": ("rocketshim.cli.group", "A consumer group: how far it is, what its members subscribe to."),
    "acls": ("rocketshim.cli.acls", "The least rights that each role needs, as kafka-acls commands."),
    "broker": (
        "rocketshim_local.cli.broker",
        "A real Kafka on this machine; neither Docker nor an installed Java needed.",
    ),
}
"""Command name to (module, its line in `rocketshim --help`), in the order of the help."""

_CONTRIBUTED = {"spark": "What failed, is anything lost, what to send again: Spark jobs over days of topics."}
"""The lines in `rocketshim --help` of commands that come by entry points and that we know."""

ENTRY_POINT_GROUP = "rocketshim.commands"
_COMPLETION_VARIABLE = "_ROCKETSHIM_COMPLETE"  # set by the shell; then nobody knows yet which command it is about

# typer carries click inside and exports only this one of its errors; all of them share the base.
_UsageError: type[Exception] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line.

    Args:
        arguments: what follows the program's name; None: this process's.

    Returns:
        the exit code, see the module. The console script passes it to `sys.exit`.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        outcome = build(words)(args=words, prog_name="rocketshim", standalone_mode=False)
    except RocketshimError as error:
        if os.environ.get("ROCKETSHIM_DEBUG"):
            traceback.print_exc()
        else:
            from rocketshim.cli.escaping import plain_lines  # noqa: PLC0415 - what ends well does without

            typer.secho(f"error: {plain_lines(str(error))}", err=True)
        return ERROR
    except _UsageError as error:
        error.show()  # type: ignore[attr-defined]  # the base named above has it
        return ERROR
    except (KeyboardInterrupt, typer.Abort):
        return 130
    return outcome if isinstance(outcome, int) else 0


def build(arguments: Sequence[str]) -> typer.Typer:
    """Return the application for this command line: the called command in full, of the others name and line.

    Args:
        arguments: what follows the program's name.
    """
    app = typer.Typer(
        name="rocketshim",
        help="RocketMQ's consumption semantics on plain Apache Kafka: delay, retry, dead letters, order, filters. "
        "Exit codes: 0 fine, 1 it could not be done, 2 a finding, 130 Ctrl-C.",
        epilog="Example: rocketshim broker run --brokers 3",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    called = next((word for word in arguments if not word.startswith("-")), None)
    contributed = {
        point.name: point
        for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
        if point.name not in COMMANDS
    }
    everything = _COMPLETION_VARIABLE in os.environ
    for name, (module, line) in COMMANDS.items():
        if everything or name == called:
            _add(app, name, importlib.import_module(module).app)
        else:
            app.command(name, help=line)(_named_only)
    for name, point in contributed.items():
        if everything or name == called:
            _add(app, name, point.load())
        else:
            package = point.dist.name if point.dist else point.module
            app.command(name, help=_CONTRIBUTED.get(name, f"From the package {package}."))(_named_only)
    return app


def _add(app: typer.Typer, name: str, loaded: typer.Typer) -> None:
    """Add a command's module: its one command under that name, or several as a group."""
    if len(loaded.registered_commands) == 1 and not loaded.registered_groups and loaded.registered_callback is None:
        only = loaded.registered_commands[0]
        if only.callback is not None:
            app.command(name, help=only.help, epilog=only.epilog, no_args_is_help=only.no_args_is_help)(only.callback)
            return
    app.add_typer(loaded, name=name)


def _named_only() -> None:
    """Stand for a command that is listed and was not called."""
    raise LookupError("a command was called whose module was not loaded")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rocketshim {importlib.metadata.version('rocketshim')}")
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""

"""The command line itself: the list of commands, how a command is loaded, and the exit codes.

*Adding a command*: write `rocketshim/cli/<name>.py` with a `typer.Typer` called `app` (one `@app.command()` makes a
plain command, several make a group) and add one line to `COMMANDS`. Another distribution adds a command through the
entry point group `rocketshim.commands`, whose value names such an object.

*Lazy imports*: only the module of the called command is imported. `rocketshim --help` shows the table and imports no
command. Other distributions are searched for commands only if ours do not include the called one.

*Exit codes*: 0: success. 1: an error, wrong usage included; also, without a message, when the reader of our output has
closed it (as `| head` does). 2: a finding: something is not as it should be; a command reports it with
`raise typer.Exit(FINDING)`. 130: Ctrl-C. A `RocketshimError` is printed as a readable line on stderr, with a traceback
only if `ROCKETSHIM_DEBUG` is set. Any other exception is a bug in rocketshim and always shows its traceback.

*Before a command*: the options that stand before it and the values of the profile (`rocketshim.cli.profiles`) are put
in front of its own words (`Command`), so that what stands behind it wins.

*Colours*: on a terminal only, and none with `NO_COLOR` (rich decides).

*Characters*: a character that standard output cannot encode is printed as its escape.
"""

import importlib
import io
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from rocketshim.cli.config_file import PROFILE_VARIABLE, config_file
from rocketshim.cli.options import before_any_command, with_groups
from rocketshim.errors import ConfigError, LocalBrokerError, RocketshimError

__all__ = ["COMMANDS", "ERROR", "FINDING", "PANELS", "Command", "build", "main"]

if TYPE_CHECKING:
    from rocketshim.cli.profiles import Profile


class Command(TyperCommand):
    """A command that also takes the shared options from before its name, and from a profile if it has `--profile`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add the options before the command and the values of the profile, and parse."""
        root = ctx.find_root()
        typed = {name: value for name, value in root.params.items() if _is_typed(root, name)}
        words = [*_words(root.command.params, typed), *args]
        if ctx.resilient_parsing:  # the shell asks for completions: no error may disturb it
            with suppress(Exception):
                words = [*self._profile_words(ctx, words), *words]
        elif not {"--help", "-h"} & set(words):
            words = [*self._profile_words(ctx, words), *words]
        return super().parse_args(ctx, words)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error of the library that names its arguments names the command's options instead."""
        try:
            return super().invoke(ctx)
        except RocketshimError as error:
            if error.args and isinstance(error.args[0], str):
                error.args = (_with_options(error.args[0], self.params), *error.args[1:])
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help; a line end within a paragraph of a docstring is a space, as in its first one."""
        self.help = re.sub(r"(?<!\n)\n(?!\n)", " ", self.help or "")
        super().format_help(ctx, formatter)

    def _profile_words(self, ctx: Any, words: list[str]) -> list[str]:
        if not any(each.name == "profile" for each in self.params):
            return []
        typed, _, _ = self.make_parser(ctx).parse_args(args=list(words))
        asked, typed_brokers = typed.get("profile"), "bootstrap" in typed
        if asked is None and not os.environ.get(PROFILE_VARIABLE) and not config_file().exists():
            return []
        from rocketshim.cli.profiles import chosen_profile  # noqa: PLC0415 - it imports pydantic

        profile = chosen_profile(asked)
        if profile is None:
            return []
        if profile.bootstrap is not None and asked is not None and typed_brokers:
            raise ConfigError(f"--profile {asked} names the brokers, and so does --bootstrap: use one of them")
        by_variable = asked is None and bool(os.environ.get("ROCKETSHIM_BOOTSTRAP"))
        if profile.bootstrap is not None and (typed_brokers or by_variable):
            return []  # its passwords are not for other brokers
        return [*_words(self.params, self._defaults(profile, typed, is_asked=asked is not None))]

    def _defaults(self, profile: "Profile", typed: Mapping[str, Any], *, is_asked: bool) -> dict[str, Any]:
        """Return the values of the profile that nothing else sets; those of repeatable options are added to others."""
        found = {name: value for name, value in profile.model_dump().items() if value is not None}
        for each in self.params:
            is_set = each.name in typed and not getattr(each, "multiple", False)
            if is_set or (not is_asked and isinstance(each.envvar, str) and os.environ.get(each.envvar)):
                found.pop(str(each.name), None)
        return found


_SETTING = re.compile(r"[A-Z]\w+: ([a-z_]+)=")
_SUBJECTS = re.compile(r"[a-z_]+( and [a-z_]+)?(?= is | are |: )")
_ARGUMENT = re.compile(r"(?<![\w.'\"/=-])([a-z_]+)(=…?)?(?!\.?[\w'\"/(=-])")


def _with_options(text: str, parameters: list[Any]) -> str:
    """Return the text of an error with options where it has arguments: its subjects, `delay=`, and `delay_level`."""
    options = {each.name: max(each.opts, key=len) for each in parameters if each.param_type_name == "option"}

    def option(found: re.Match[str]) -> str:
        name, equals = found.groups()
        return str(options.get(name, found[0])) if equals or "_" in name else found[0]

    setting = _SETTING.match(text)
    if setting and setting[1] in options:
        return f"{options[setting[1]]} {text[setting.end() :]}"
    subjects = _SUBJECTS.match(text)
    end = subjects.end() if subjects else 0
    head = [str(options.get(word, word)) for word in text[:end].split(" ")]
    return " ".join(head) + _ARGUMENT.sub(option, text[end:])


def _is_typed(context: Any, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _words(parameters: list[Any], values: Mapping[str, Any]) -> Iterator[str]:
    """Yield values of options as they would be typed; leave out options that the command does not have."""
    for each in parameters:
        value = values.get(each.name)
        if value is True:
            yield each.opts[0]
        elif value is not None:
            yield from (f"{each.opts[0]}={text}" for text in ([value] if isinstance(value, str) else value))


if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


ERROR = 1
"""Exit code of a command that failed, and of wrong usage."""

FINDING = 2
"""Exit code of a command that worked and found something that is not as it should be."""

COMMANDS: dict[str, tuple[str, str]] = {
    "dev": ("rocketshim_local.cli.dev", "A real Kafka, the worker and your consumer in one terminal, to develop with."),
    "demo": ("rocketshim_local.cli.demo", "One day of real flights through delay, retry and dead letters."),
    "init": ("rocketshim.cli.init", "Create the topics that rocketshim needs, or show what would be created."),
    "status": ("rocketshim.cli.status", "Show what is wrong now, worst first, and the command that fixes it."),
    "doctor": ("rocketshim.cli.doctor", "Check the set-up: problems, their impact, and how to fix them."),
    "send": ("rocketshim.cli.send", "Send a message, or one for each line of standard input; now or later."),
    "run": ("rocketshim.cli.run", "Run your push consumer in one or more processes."),
    "worker": ("rocketshim.cli.worker", "Deliver delayed and retried messages when they are due."),
    "exporter": ("rocketshim.cli.exporter", "Serve metrics of delay queues, dead letters and groups for Prometheus."),
    "top": ("rocketshim.cli.top", "Watch delay queues, groups and dead letters in the terminal."),
    "healthcheck": ("rocketshim.cli.healthcheck", "Ask a process for its health."),
    "delayed": ("rocketshim.cli.delayed", "Show the messages in the delay queues and when they are due."),
    "timers": ("rocketshim.cli.timers", "Show messages with a name that wait, and what became of one; cancel."),
    "tx": ("rocketshim.cli.tx", "Show transactional messages that wait for their outcome; commit, roll back."),
    "parked": ("rocketshim.cli.parked", "Show messages that the worker could not deliver, and send them again."),
    "dlq": ("rocketshim.cli.dlq", "Show dead letters and why they failed, and send them again."),
    "retry": ("rocketshim.cli.kinds:retry", "Show the messages that a group receives as retries."),
    "trace": ("rocketshim.cli.trace", "Show the history of one message."),
    "group": (
        "rocketshim.cli.group",
        "List consumer groups; show a group's lag, subscriptions and locks; move its positions.",
    ),
    "topic": ("rocketshim.cli.kinds:topic", "Look into a topic, without consuming it."),
    "console": (
        "rocketshim.cli.console",
        "See what waits, fails and is dead in a browser, and send dead letters again.",
    ),
    "acls": ("rocketshim.cli.acls", "Print the minimum ACLs of each role as kafka-acls commands."),
    "broker": (
        "rocketshim_local.cli.broker",
        "Run a real Kafka on this machine, without Docker or an installed Java.",
    ),
}
"""Command name to (module, line in `rocketshim --help`), in the order of the help; `module:name` if not `app`."""

PANELS: dict[str, tuple[str, ...]] = {
    "Set up and check": ("init", "doctor", "acls"),
    "Send and run": ("send", "run", "worker", "exporter", "healthcheck"),
    "Find out what happened, and send again": (
        "status",
        "dlq",
        "retry",
        "delayed",
        "timers",
        "tx",
        "parked",
        "trace",
        "topic",
        "group",
        "console",
        "top",
        "spark",
    ),
    "Try on this machine": ("demo", "broker", "dev"),
}
"""Headline in `rocketshim --help` to the commands below it. Others stand under `Commands`."""

_CONTRIBUTED = {"spark": "Spark jobs over days of topics: failures, missing messages, what to send again."}
"""Help lines of known commands that other distributions add through the entry point group."""

ENTRY_POINT_GROUP = "rocketshim.commands"
_COMPLETION_VARIABLE = "_ROCKETSHIM_COMPLETE"  # set by the shell for completion: the command is not known yet

# typer bundles click and exports only this one of its errors; all of them share the base class.
_UsageError: type[Exception] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the words after the program's name (None: those of this process), and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in {"strict", "surrogateescape"}:
        sys.stdout.reconfigure(errors="backslashreplace")  # a character of a record must not end a listing
    try:
        outcome = build(words)(args=words, prog_name="rocketshim", standalone_mode=False)
    except RocketshimError as error:
        if os.environ.get("ROCKETSHIM_DEBUG"):
            traceback.print_exc()
        else:
            from rocketshim.core.user_values import one_line, printable_lines  # noqa: PLC0415 - only needed here

            has_lines = isinstance(error, LocalBrokerError)  # of a log
            escape = printable_lines if has_lines else one_line
            typer.secho(f"error: {escape(str(error))}", err=True)
        return ERROR
    except _UsageError as error:
        error.show()  # type: ignore[attr-defined]  # `ClickException` has it
        return ERROR
    except (KeyboardInterrupt, typer.Abort):
        return 130
    return outcome if isinstance(outcome, int) else 0


def build(arguments: Sequence[str]) -> typer.Typer:
    """Return the application for this command line; only the called command is loaded, the others have a help line."""
    app = typer.Typer(
        name="rocketshim",
        help="RocketMQ's consumption semantics on plain Apache Kafka: delay, retry, dead letters, order, filters. "
        "Exit codes: 0 success, 1 an error, 2 a finding, 130 Ctrl-C.",
        epilog="Example: rocketshim broker run --brokers 3",
        no_args_is_help=True,
        context_settings={"help_option_names": ["--help", "-h"]},
        pretty_exceptions_enable=False,
    )
    app.callback()(with_groups(_root))
    called, before = _called(app, list(arguments))
    everything = _COMPLETION_VARIABLE in os.environ
    is_ours = called in COMMANDS and not {"--help", "-h"} & set(before)  # else the help of all commands may be shown
    contributed = {} if is_ours and not everything else _contributed()
    for name, (module, line) in COMMANDS.items():
        if everything or name == called:
            _add(app, name, _loaded(module))
        else:
            app.command(name, help=line, rich_help_panel=_panel(name))(_named_only)
    for name, point in contributed.items():
        if everything or name == called:
            _add(app, name, point.load())
        else:
            package = point.dist.name if point.dist else point.module
            line = _CONTRIBUTED.get(name, f"From the package {package}.")
            app.command(name, help=line, rich_help_panel=_panel(name))(_named_only)
    return app


def _called(app: typer.Typer, words: list[str]) -> tuple[str | None, list[str]]:
    """Return the name of the command that is called, and the words before it."""
    root: Any = typer.main.get_command(app)
    with suppress(_UsageError):  # the real parse reports it
        context = root.make_context("rocketshim", [], resilient_parsing=True)
        _, rest, _ = root.make_parser(context).parse_args(args=list(words))
        return next(iter(rest), None), words[: len(words) - len(rest)]
    return None, words


def _loaded(target: str) -> typer.Typer:
    module, _, name = target.partition(":")
    loaded: typer.Typer = getattr(importlib.import_module(module), name or "app")
    return loaded


def _contributed() -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points  # noqa: PLC0415 - a third of the start, and most commands do without

    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name not in COMMANDS}


def _panel(name: str) -> str | None:
    return next((panel for panel, names in PANELS.items() if name in names), None)


def _add(app: typer.Typer, name: str, loaded: typer.Typer) -> None:
    """Add a command's application: a single command under that name, or several as a group."""
    _use_our_class(loaded)
    if len(loaded.registered_commands) == 1 and not loaded.registered_groups and loaded.registered_callback is None:
        only = loaded.registered_commands[0]
        if only.callback is not None:
            app.command(
                name,
                cls=only.cls,
                help=only.help,
                epilog=only.epilog,
                no_args_is_help=only.no_args_is_help,
                rich_help_panel=_panel(name),
            )(only.callback)
            return
    app.add_typer(loaded, name=name, rich_help_panel=_panel(name))


def _use_our_class(loaded: typer.Typer) -> None:
    """Let every command below accept groups of options, profiles, and options before the command."""
    for command in loaded.registered_commands:
        command.cls = Command
        if command.callback is not None:
            command.callback = with_groups(command.callback)
    for group in loaded.registered_groups:
        if group.typer_instance is not None:
            _use_our_class(group.typer_instance)


def _named_only() -> None:
    """Stand in for a command that is listed but not called."""
    raise LookupError("the module of the called command was not loaded")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version as version_of  # noqa: PLC0415 - likewise

        typer.echo(f"rocketshim {version_of('rocketshim')}")
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    shared: Annotated[None, before_any_command] = None,
) -> None:
    """Accept the options that stand before a command; `Command` passes them on to it."""
    del version, shared

"""Options that several commands share, each declared once as an annotated type: `def ls(at: Connected, as_json: Json)`.

*Groups of options*: `Annotated[T, make]` stands for all options of the function `make`, which returns the `T`. typer
sees the options (`with_groups`), and the command gets the `T`. A group may contain another one.

Most of them can also be set by an environment variable or a profile (`rocketshim.cli.profiles`); the command line wins.
"""

import functools
import inspect
import re
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

import typer

from rocketshim.cli.config_file import CONFIG_VARIABLE, PROFILE_VARIABLE
from rocketshim.errors import ConfigError, RocketshimError
from rocketshim.kafka.client_config import client_settings
from rocketshim_topics import DelayLevels, TopicNames, parse_duration_ms

if TYPE_CHECKING:
    from rocketshim.kafka.clients import Clients
    from rocketshim.kafka.topic_reader import TopicReader
    from rocketshim.observe.finding import Installation

__all__ = [
    "CONNECTION",
    "LONGEST_S",
    "OUTPUT",
    "SELECTION",
    "AtBrokers",
    "Bootstrap",
    "ClientSettings",
    "Connected",
    "ConnectedWithLevels",
    "Connection",
    "DelayLevelsText",
    "DryRun",
    "Json",
    "LogFormatOption",
    "LogLevelOption",
    "Namespace",
    "ProfileName",
    "Quiet",
    "Supervised",
    "WorkerUrls",
    "before_any_command",
    "checked_bootstrap",
    "client_settings",
    "seconds",
    "with_groups",
]

CONNECTION: Final = "Connection"
SELECTION: Final = "Selection"
OUTPUT: Final = "Output"
"""The groups of options in each `--help`."""

connection: Final = functools.partial(typer.Option, rich_help_panel=CONNECTION)
selection: Final = functools.partial(typer.Option, rich_help_panel=SELECTION)
output: Final = functools.partial(typer.Option, rich_help_panel=OUTPUT)
"""Declare an option of the group."""

LONGEST_S: Final = 86_400
"""Largest value of an option in seconds. Longer waits, such as `inf`, overflow the system's clocks."""

_BARE_NUMBER: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def seconds(least: float = 0.0) -> Callable[[str], float]:
    """Return the parser of a duration from `least` seconds to a day: `30s`, `500ms`, `2m`, or a number of seconds."""

    def parse(value: str) -> float:
        text = str(value)
        try:
            found_s = float(text) if _BARE_NUMBER.fullmatch(text) else parse_duration_ms(text) / 1_000
        except ConfigError as error:
            raise typer.BadParameter(
                f"{text!r:.80} is not a duration: write 30s, 500ms, 2m, or a number of seconds"
            ) from error
        if not least <= found_s <= LONGEST_S:
            raise typer.BadParameter(f"{text!r:.80} is not {least:g} to {LONGEST_S} seconds (a day)")
        return found_s

    return parse


LogFormatOption = Annotated[
    Literal["text", "json"],
    output("--log-format", help="Format of the log lines on standard error."),
]
LogLevelOption = Annotated[
    Literal["debug", "info", "warning", "error"],
    output("--log-level", help="The least level of a log line."),
]


def checked_bootstrap(context: typer.Context, text: str | None) -> str | None:
    """Refuse what was given as addresses, before anything is asked; the shell gets no error for its completions."""
    source = context.get_parameter_source("bootstrap")
    if text is None or context.resilient_parsing or source is None or source.name == "DEFAULT":
        return text
    from rocketshim.kafka.client_config import check_bootstrap  # noqa: PLC0415 - `--help` does without

    try:
        return check_bootstrap(text)
    except ConfigError as error:
        raise ConfigError(f"--bootstrap: {error}") from error


Bootstrap = Annotated[
    str,
    connection(
        "--bootstrap",
        "-b",
        envvar="ROCKETSHIM_BOOTSTRAP",
        metavar="HOST:PORT,…",
        callback=checked_bootstrap,
        help="Addresses of the Kafka brokers.",
    ),
]
"""No default: nobody should write to a cluster that they did not name."""

Namespace = Annotated[
    str,
    connection(
        "--namespace", "-n", envvar="ROCKETSHIM_NAMESPACE", help="Prefix of rocketshim's own topics; empty: no prefix."
    ),
]
"""Default `""`."""

DelayLevelsText = Annotated[
    str | None,
    connection(
        "--delay-levels",
        envvar="ROCKETSHIM_DELAY_LEVELS",
        metavar="'1s 5s …'",
        help="The delay-level table. Default: RocketMQ's table of 18 levels.",
    ),
]
"""Default None: RocketMQ's table. The text goes through `DelayLevels.parse`, whose error names what is wrong."""

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be changed, and change nothing.")]
"""Default False."""

Json = Annotated[bool, output("--json", "-j", help="Print JSON, for programs.")]
"""Default False."""

Quiet = Annotated[bool, output("--quiet", "-q", help="Print nothing if there is no finding.")]
"""Default False. For cron, which sends a mail if a command prints anything."""

Client = Annotated[
    list[str] | None,
    connection(
        "--client",
        "-c",
        envvar="ROCKETSHIM_CLIENT",
        metavar="NAME=VALUE|@FILE",
        help="A librdkafka setting (TLS, SASL …), or a file with one NAME=VALUE per line; repeatable.",
    ),
]
"""Default None. Put passwords into a file: every user of the machine can read command lines."""

AllowCode = Annotated[
    bool,
    connection(
        "--allow-code-settings",
        help="Accept client settings that run code or fetch a URL, such as those of OAuth. Only as a typed option.",
    ),
]
"""Default False. A profile or a variable cannot set it: others may be able to write those."""

Supervised = Annotated[bool, typer.Option("--supervised", hidden=True, help="Stop when standard input ends.")]
"""Default False. `rocketshim.cli.supervisor` starts processes with it."""

WorkerUrls = Annotated[
    list[str] | None,
    typer.Option(
        "--worker-url",
        envvar="ROCKETSHIM_WORKER_URLS",
        metavar="URL",
        help="Address of a worker's health server, for example http://worker-1:8080; repeatable.",
    ),
]
"""Default None: no worker is asked. Only these addresses are ever asked."""


def _offered_profiles(incomplete: str) -> list[str]:
    from rocketshim.cli.profiles import profile_names  # noqa: PLC0415 - it imports pydantic

    try:
        return [name for name in profile_names() if name.startswith(incomplete)]
    except RocketshimError:
        return []


ProfileName = Annotated[
    str | None,
    connection(
        "--profile",
        "-p",
        envvar=PROFILE_VARIABLE,
        metavar="NAME",
        help=f"Cluster from the configuration file (~/.config/rocketshim/config.toml, or {CONFIG_VARIABLE}).",
        autocompletion=_offered_profiles,
    ),
]
"""Default None: the environment or the file decides. `rocketshim.cli.app` adds its values to the command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The cluster that a command connects to, and what it calls its topics."""

    bootstrap: str
    client: dict[str, Any]
    namespace: str = ""
    levels: DelayLevels = field(default_factory=DelayLevels.default)
    clients: "Clients | None" = None

    @property
    def names(self) -> TopicNames:
        """The names of the namespace's topics."""
        return TopicNames(self.namespace)

    @property
    def installation(self) -> "Installation":
        """The installation, as commands name it."""
        from rocketshim.observe.finding import Installation  # noqa: PLC0415 - few commands need it
        from rocketshim_topics.layout import Layout  # noqa: PLC0415

        return Installation(self.bootstrap, Layout(self.names, self.levels))

    def reader(self) -> "TopicReader":
        """Open a reader of topics; use it as a context manager."""
        from rocketshim.kafka.topic_reader import TopicReader  # noqa: PLC0415 - `--help` does without

        return TopicReader(self.bootstrap, client=self.client, clients=self.clients)


def _client(*, client: Client = None, allow_code_settings: AllowCode = False) -> dict[str, Any]:
    return client_settings(client, allow_code_settings=allow_code_settings)


ClientSettings = Annotated[dict[str, Any], _client]


def _brokers(*, profile: ProfileName = None, bootstrap: Bootstrap, client: ClientSettings) -> Connection:
    del profile
    return Connection(bootstrap=bootstrap, client=client)


AtBrokers = Annotated[Connection, _brokers]
"""For a command whose topics have their names from elsewhere."""


def _connected(*, at: AtBrokers, namespace: Namespace = "") -> Connection:
    return replace(at, namespace=TopicNames(namespace).namespace)


Connected = Annotated[Connection, _connected]


def _connected_with_levels(*, at: Connected, delay_levels: DelayLevelsText = None) -> Connection:
    return at if delay_levels is None else replace(at, levels=DelayLevels.parse(delay_levels))


ConnectedWithLevels = Annotated[Connection, _connected_with_levels]


def _as_typed(annotation: Any) -> Any:
    """Return an option that only counts if it is typed: its variable and its check are the command's."""
    of_type, option = get_args(annotation)
    option = copy(option)
    option.envvar = option.callback = None
    return Annotated[of_type, option]


def before_any_command(**given: Any) -> None:
    """Accept the options that may stand before any command that has them."""
    del given


before_any_command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # `with_groups` reads it
    [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_as_typed(annotation))
        for name, annotation, default in (
            ("profile", ProfileName, None),
            ("bootstrap", Bootstrap, ""),
            ("client", Client, None),
            ("allow_code_settings", AllowCode, False),
            ("namespace", Namespace, ""),
            ("delay_levels", DelayLevelsText, None),
            ("as_json", Json, False),
        )
    ]
)


def with_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command as typer is to see it: with the options of each group in place of the group."""
    parameters: dict[str, inspect.Parameter] = {}
    groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for each in inspect.signature(command).parameters.values():
        group = next(filter(inspect.isfunction, getattr(each.annotation, "__metadata__", ())), None)
        make = None if group is None else with_groups(group)
        below = [each] if make is None else [*inspect.signature(make).parameters.values()]
        parameters |= {option.name: option for option in below}  # two groups may share an option
        if make is not None:
            groups[each.name] = (make, [option.name for option in below])
    if not groups:  # none, or the command was wrapped before: a program may call the command line often
        return command
    in_groups = {option for _, options in groups.values() for option in options}

    @functools.wraps(command)
    def called(**given: Any) -> Any:
        made = {name: make(**{option: given[option] for option in options}) for name, (make, options) in groups.items()}
        return command(**{name: value for name, value in given.items() if name not in in_groups}, **made)

    called.__signature__ = inspect.Signature([*parameters.values()])  # type: ignore[attr-defined]  # typer reads it
    called.__annotations__ = {name: each.annotation for name, each in parameters.items()}
    return called

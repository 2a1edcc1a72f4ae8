"""Options that several commands share, as annotated types: `def send(bootstrap: Bootstrap, namespace: Namespace = "")`.

Most of them can also be set by an environment variable or a profile (`rocketshim.cli.profiles`); the command line wins.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from rocketshim.errors import ConfigError
from rocketshim.kafka.client_config import client_settings
from rocketshim_topics import parse_duration_ms

__all__ = [
    "CONFIG_VARIABLE",
    "CONNECTION",
    "LONGEST_S",
    "OUTPUT",
    "PROFILE_VARIABLE",
    "SELECTION",
    "Bootstrap",
    "Client",
    "DelayLevelsText",
    "DryRun",
    "Json",
    "LogFormatOption",
    "LogLevelOption",
    "Namespace",
    "Quiet",
    "Supervised",
    "WorkerUrls",
    "checked_bootstrap",
    "client_settings",
    "config_file",
    "seconds",
]

CONNECTION: Final = "Connection"
SELECTION: Final = "Selection"
OUTPUT: Final = "Output"
"""The groups of options in each `--help`."""

LONGEST_S: Final = 86_400
"""Largest value of an option in seconds. Longer waits, such as `inf`, overflow the system's clocks."""

_BARE_NUMBER: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")

CONFIG_VARIABLE: Final = "ROCKETSHIM_CONFIG"
PROFILE_VARIABLE: Final = "ROCKETSHIM_PROFILE"


def seconds(least: float = 0.0) -> Callable[[str], float]:
    """Return the parser of an option that is a duration: `30s`, `500ms`, `2m`, or a bare number of seconds.

    Args:
        least: the least value, in seconds; the largest is a day (`LONGEST_S`).
    """

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
    typer.Option("--log-format", help="Format of the log lines on standard error.", rich_help_panel=OUTPUT),
]
LogLevelOption = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option("--log-level", help="The least level of a log line.", rich_help_panel=OUTPUT),
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
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="ROCKETSHIM_BOOTSTRAP",
        metavar="HOST:PORT,…",
        callback=checked_bootstrap,
        help="Addresses of the Kafka brokers.",
        rich_help_panel=CONNECTION,
    ),
]
"""No default: nobody should write to a cluster that they did not name."""

Namespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        "-n",
        envvar="ROCKETSHIM_NAMESPACE",
        help="Prefix of rocketshim's own topics; empty: no prefix.",
        rich_help_panel=CONNECTION,
    ),
]
"""Default `""`."""

DelayLevelsText = Annotated[
    str | None,
    typer.Option(
        "--delay-levels",
        envvar="ROCKETSHIM_DELAY_LEVELS",
        metavar="'1s 5s …'",
        help="The delay-level table. Default: RocketMQ's table of 18 levels.",
        rich_help_panel=CONNECTION,
    ),
]
"""Default None: RocketMQ's table. The text goes through `DelayLevels.parse`, whose error names what is wrong."""

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be changed, and change nothing.")]
"""Default False."""

Json = Annotated[bool, typer.Option("--json", "-j", help="Print JSON, for programs.", rich_help_panel=OUTPUT)]
"""Default False."""

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing if there is no finding.", rich_help_panel=OUTPUT)
]
"""Default False. For cron, which sends a mail if a command prints anything."""

Client = Annotated[
    list[str] | None,
    typer.Option(
        "--client",
        "-c",
        envvar="ROCKETSHIM_CLIENT",
        metavar="NAME=VALUE|@FILE",
        help="A librdkafka setting (TLS, SASL …), or a file with one NAME=VALUE per line; repeatable.",
        rich_help_panel=CONNECTION,
    ),
]
"""Default None. Put passwords into a file: every user of the machine can read command lines."""

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


def config_file() -> Path:
    """Return the path of the configuration file, which need not exist."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "rocketshim" / "config.toml"

"""Options that several commands share, as annotated types: `def send(bootstrap: Bootstrap, namespace: Namespace = "")`.

Each can be given by its environment variable, too; the command line wins.
"""

from typing import Annotated

import typer

__all__ = ["Bootstrap", "DelayLevelsText", "DryRun", "Json", "Namespace"]

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap", envvar="ROCKETSHIM_BOOTSTRAP", metavar="HOST:PORT,…", help="Addresses of the Kafka brokers."
    ),
]
"""Without default: nobody should write to a cluster they did not name."""

Namespace = Annotated[
    str,
    typer.Option("--namespace", envvar="ROCKETSHIM_NAMESPACE", help="Prefix of the shim's own topics; empty: none."),
]
"""Default `""`."""

DelayLevelsText = Annotated[
    str | None,
    typer.Option(
        "--delay-levels",
        envvar="ROCKETSHIM_DELAY_LEVELS",
        metavar="'1s 5s …'",
        help="The delay-level table; without it, RocketMQ's of 18 levels.",
    ),
]
"""Default None: RocketMQ's table. The text goes through `DelayLevels.parse`, whose error names what is wrong."""

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be changed and change nothing.")]
"""Default False."""

Json = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
"""Default False."""

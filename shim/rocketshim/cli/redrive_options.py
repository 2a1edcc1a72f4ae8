"""Options of every command that sends dead letters again: `dlq plan` and `apply`, `spark replay plan` and `run`.

One annotated type each, so that the same word means the same everywhere.
"""

from typing import Annotated

import typer

__all__ = ["MaxLetters", "MaxReplays", "Rate", "StopRatio", "ToSource"]

ToSource = Annotated[
    bool, typer.Option("--to-source", help="Send to the source topic, so that EVERY group gets them again.")
]
"""Default False: only the group that failed gets them."""

MaxReplays = Annotated[
    int,
    typer.Option(
        "--max-replays", min=1, max=2**31 - 1, help="Hold back dead letters that were sent again this many times."
    ),
]

Rate = Annotated[
    float | None, typer.Option("--rate", min=0.01, help="Maximum dead letters per second. Default: no limit.")
]

MaxLetters = Annotated[int | None, typer.Option("--max", min=1, help="Maximum number of dead letters to send.")]

StopRatio = Annotated[
    float,
    typer.Option("--stop-ratio", min=0, max=1, help="Stop if more than this share fails or is dead-lettered again."),
]

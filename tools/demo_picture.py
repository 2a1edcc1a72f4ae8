"""Run the demo on a real Kafka and draw its result as an SVG: docs/pictures/demo.svg.

    python tools/demo_picture.py

The picture shows the table that the demo printed in this run, and the lines below it. The run takes about 90 seconds.
"""

import re
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rocketshim_local.demo.scenario import play

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "demo.svg"
WIDTH = 90


class ResultConsole(Console):
    """A console that records what is printed from the table on."""

    has_begun = False

    def print(self, *objects: Any, **options: Any) -> None:
        """Print."""
        if not self.has_begun and any(isinstance(each, Table) for each in objects):
            self.has_begun = True
            self.export_text(clear=True)
        super().print(*objects, **options)


def main() -> int:
    """Run the demo and write the picture; return the exit code."""
    console = ResultConsole(record=True, width=WIDTH, force_terminal=False, force_interactive=False)
    if not play(console=console):
        return 1
    drawn = console.export_svg(title="rocketshim demo")
    fonts = re.compile(r"@font-face \{.*?\}\s*", flags=re.DOTALL)  # they would be loaded from another host
    PICTURE.write_text(fonts.sub("", drawn), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

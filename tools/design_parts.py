"""Compare the drawings of state machines in DESIGN.md with the tables in the code, or draw them again.

Run `python tools/design_parts.py` to compare (exit code 1: a drawing differs), and add `--write` to draw all of them
again.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rocketshim.locks import holder

ROOT: Final = Path(__file__).resolve().parent.parent
DESIGN: Final = ROOT / "DESIGN.md"
Arrow = tuple[str, str, str]
"""State, event, next state."""


def main() -> int:
    """Compare or write; return the exit code."""
    before = DESIGN.read_text(encoding="utf-8")
    after = made(before)
    if "--write" in sys.argv[1:]:
        DESIGN.write_text(after, encoding="utf-8")
    elif after != before:
        print("DESIGN.md differs from the code: python tools/design_parts.py --write")
        return 1
    return 0


def made(text: str) -> str:
    """Return a text whose drawings are those of the code."""
    for name, arrows in _machines().items():
        begin, end = f"<!-- states: {name} -->\n", "<!-- end of states -->"
        if begin not in text:
            raise ValueError(f"DESIGN.md has no part for the states of {name}: {begin}")
        before, _, rest = text.partition(begin)
        text = before + begin + diagram(arrows) + end + rest.partition(end)[2]
    return text


def diagram(arrows: Iterable[Arrow]) -> str:
    """Draw a state machine in Mermaid's notation; it begins in the state of the first arrow."""
    labels: dict[tuple[str, str], list[str]] = {}
    for state, event, following in arrows:
        labels.setdefault((state, following), []).append(event)
    lines = [f"    {state} --> {following}: {', '.join(events)}" for (state, following), events in labels.items()]
    first = next(iter(labels))[0]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {first}", *lines, "```", ""])


def _machines() -> dict[str, list[Arrow]]:
    locks = [(old.name, event.name, new.name) for (old, event), new in holder.TRANSITIONS.items()]
    return {"holder": locks}


if __name__ == "__main__":
    sys.exit(main())

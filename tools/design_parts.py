"""Compare the parts of DESIGN.md that are made from the code with the code, or write them again.

These are the drawings of state machines, from their tables, and the lists of modules, from the first lines of their
docstrings. Run `python tools/design_parts.py` to compare (exit code 1: a part differs), and add `--write` to write all
of them again.
"""

import ast
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rocketshim.core import orderly_assignment, queue_lock_states

ROOT: Final = Path(__file__).resolve().parent.parent
DESIGN: Final = ROOT / "DESIGN.md"
_LIST: Final = re.compile(r"<!-- modules: (?P<folder>\S+) -->\n.*?<!-- end of modules -->", re.DOTALL)
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
    """Return a text whose drawings and lists are those of the code."""
    for name, arrows in _machines().items():
        begin, end = f"<!-- states: {name} -->\n", "<!-- end of states -->"
        if begin not in text:
            raise ValueError(f"DESIGN.md has no part for the states of {name}: {begin}")
        before, _, rest = text.partition(begin)
        text = before + begin + diagram(arrows) + end + rest.partition(end)[2]
    return _LIST.sub(lambda found: module_list(found["folder"]), text)


def diagram(arrows: Iterable[Arrow]) -> str:
    """Draw a state machine in Mermaid's notation; it begins in the state of the first arrow."""
    labels: dict[tuple[str, str], list[str]] = {}
    for state, event, following in arrows:
        labels.setdefault((state, following), []).append(event)
    lines = [f"    {state} --> {following}: {', '.join(events)}" for (state, following), events in labels.items()]
    first = next(iter(labels))[0]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {first}", *lines, "```", ""])


def module_list(folder: str) -> str:
    """List the modules of a folder, of which each says in the first line of its docstring what it is for."""
    modules = [path for path in sorted((ROOT / folder).glob("*.py")) if path.name != "__init__.py"]
    if not modules:
        raise ValueError(f"DESIGN.md lists the modules of {folder}, which has none")
    lines = [f"* `{path.stem}`: {_first_line(path)}" for path in modules]
    return "\n".join([f"<!-- modules: {folder} -->", *lines, "<!-- end of modules -->"])


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if docstring is None:
        raise ValueError(f"{path.relative_to(ROOT)} has no docstring")
    return docstring.partition("\n")[0]


def _machines() -> dict[str, list[Arrow]]:
    locks = [(old.name, event.name, new.name) for (old, event), new in queue_lock_states.TRANSITIONS.items()]
    partitions = [
        (old.name, "/".join([event.name, *(action.name.lower() for action in actions)]), new.name)
        for (old, event), (new, actions) in orderly_assignment.TRANSITIONS.items()
    ]
    return {"queue_lock_states": locks, "orderly_assignment": partitions}


if __name__ == "__main__":
    sys.exit(main())

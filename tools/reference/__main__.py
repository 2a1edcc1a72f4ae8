"""Compare the reference pages that stand in the repository with the code, or write them again.

python -m tools.reference [--write]
"""

import sys
from pathlib import Path

from tools.reference import IN_REPOSITORY, PAGES

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


def main(arguments: list[str]) -> int:
    """Print a page, write those of the repository, or name those that are out of date; return the exit code."""
    if arguments and f"reference/{arguments[0]}.md" in PAGES:
        sys.stdout.write(PAGES[f"reference/{arguments[0]}.md"]())
        return 0
    wanted = {DOCS / path: PAGES[path]() for path in IN_REPOSITORY}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--write" in arguments:
        for path in stale:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
        return 0
    for path in stale:
        sys.stdout.write(f"docs/{path.relative_to(DOCS)} is out of date: python -m tools.reference --write\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

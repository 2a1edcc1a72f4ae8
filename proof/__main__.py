"""`python -m proof check FOLDER`: judge a history."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from proof.check import run
from proof.reader import HistoryError, read_folder
from proof.report import report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 nothing is wrong, 1 something is, 2 the history cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m proof", description="Judge histories of runs under faults.")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="judge the history in a folder")
    check.add_argument("folder", type=Path, help="folder of *.jsonl files, one a process")
    options = parser.parse_args(arguments)
    return _check(options.folder)


def _check(folder: Path) -> int:
    try:
        history = read_folder(folder)
    except (HistoryError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    violations = run(history)
    for line in report(history, violations):
        print(line)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())

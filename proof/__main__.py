"""`python -m proof check FOLDER` judges a history; `python -m proof chaos` makes one on a real broker."""

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
    chaos = commands.add_parser("chaos", help="run under faults on a real broker, and judge what comes of it")
    chaos.add_argument("--seed", type=int, default=1, help="chooses faults and targets (1)")
    chaos.add_argument("--minutes", type=float, default=1.0, help="how long faults are done (1)")
    chaos.add_argument("--exactly-once", action="store_true", help="run the workers with --exactly-once")
    chaos.add_argument("--folder", type=Path, help="where the history goes; default: reports/chaos-SEED")
    options = parser.parse_args(arguments)
    if options.command == "check":
        return _check(options.folder)
    return _chaos(options)


def _chaos(options: argparse.Namespace) -> int:
    from proof.chaos.run import chaos  # noqa: PLC0415 judging needs no broker

    folder = options.folder or Path("reports") / f"chaos-{options.seed}"
    if folder.exists():
        print(f"{folder} is there already; give another --folder, or remove it", file=sys.stderr)
        return 2
    chaos(folder.absolute(), options.seed, options.minutes, exactly_once=options.exactly_once, report=print)
    return _check(folder)


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

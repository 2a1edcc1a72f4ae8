"""`check` judges a history; `chaos` makes one on a real broker, `simulate` many without one; `soak` runs for hours.

`timers` sets, cancels and replaces named timers, kills their workers, and judges by the log. `transactions` kills
producers at each point of a transaction, and judges by their database.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proof.check import run
from proof.collection import paused_collection
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
    chaos.add_argument("--rate", type=float, default=300.0, help="messages a second that are sent in all (300)")
    chaos.add_argument("--no-clocks", action="store_true", help="do not set the brokers' clocks (setting needs a JDK)")
    chaos.add_argument("--only", help="kinds of faults, separated by commas; default: all")
    chaos.add_argument("--folder", type=Path, help="where the history goes; default: reports/chaos-SEED")
    simulate = commands.add_parser("simulate", help="run many seeds in memory and virtual time, and judge each")
    simulate.add_argument("--seeds", type=int, default=2_000, help="how many (2000)")
    simulate.add_argument("--first", type=int, default=0, help="the first seed (0)")
    simulate.add_argument("--seed", type=int, help="replay this seed alone; if it fails, shrink it and print its trace")
    soak = commands.add_parser("soak", help="run a mixed load for hours, and judge memory, threads and file handles")
    soak.add_argument("--minutes", type=float, default=120.0, help="how long (120)")
    soak.add_argument("--rate", type=float, default=150.0, help="messages a second that are sent in all (150)")
    soak.add_argument("--folder", type=Path, default=Path("reports/soak"), help="where it goes (reports/soak)")
    soak.add_argument("--judge", action="store_true", help="only judge what the folder has, of a run that may go on")
    timers = commands.add_parser("timers", help="set, cancel and replace named timers, and kill their worker")
    courses = timers.add_mutually_exclusive_group()
    courses.add_argument("--cron", action="store_true", help="instead: recurring messages, in memory and virtual time")
    courses.add_argument("--restart", action="store_true", help="instead: memory and new start with very many names")
    courses.add_argument("--lateness", action="store_true", help="instead: how late messages with names are")
    timers.add_argument("--seconds", type=float, default=120.0, help="of --lateness: how long messages are sent (120)")
    timers.add_argument("--delay", default="5s", help="of --lateness: delay of the messages (5s)")
    timers.add_argument("--schedules", type=int, default=100, help="of --cron: how many messages recur (100)")
    timers.add_argument("--days", type=float, default=7.0, help="of --cron: how many virtual days pass (7)")
    timers.add_argument("--seed", type=int, default=1, help="chooses names and moments (1)")
    timers.add_argument("--names", type=int, help="how many are set (200000; 1000000 with --restart)")
    timers.add_argument("--kills", type=int, default=5, help="how often a worker is killed (5)")
    timers.add_argument("--rate", type=float, help="names that are set in a second (1000; 500 with --lateness)")
    timers.add_argument("--workers", type=int, default=1, help="how many workers there are (1)")
    timers.add_argument("--at-least-once", action="store_true", help="how the workers deliver; default: exactly once")
    timers.add_argument("--folder", type=Path, help="where logs go; default: reports/timers-SEED")
    transactions = commands.add_parser("transactions", help="kill producers at each point of a transaction")
    transactions.add_argument("--times", type=int, default=200, help="how often at each of seven points (200)")
    transactions.add_argument("--kills", type=int, default=3, help="how often the worker is killed (3)")
    transactions.add_argument("--at-least-once", action="store_true", help="how the worker delivers")
    transactions.add_argument("--folder", type=Path, default=Path("reports/transactions"), help="where logs go")
    options = parser.parse_args(arguments)
    if options.command == "transactions":
        return _transactions(options)
    if options.command == "timers":
        return _timers(options)
    if options.command == "soak":
        return _soak(options)
    if options.command == "check":
        return _check(options.folder)
    return _simulate(options) if options.command == "simulate" else _chaos(options)


def _simulate(options: argparse.Namespace) -> int:
    from proof.simulate.command import replay, run_seeds  # noqa: PLC0415 judging needs no shell of the library

    if options.seed is not None:
        return 0 if replay(options.seed, print) else 1
    return 0 if run_seeds(options.first, options.seeds, print) else 1


def _soak(options: argparse.Namespace) -> int:
    from proof.soak.run import judged, soak  # noqa: PLC0415 judging histories needs no broker

    folder = options.folder.absolute()
    if not options.judge:
        if folder.exists():
            print(f"{folder} is there already; give another --folder, or remove it", file=sys.stderr)
            return 2
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))  # so that brokers and processes are ended
        soak(folder, options.minutes, options.rate, lambda text: print(text, flush=True))
    figures, found = judged(folder)
    print("\n".join([*figures, *found]))
    return 1 if found else 0


def _timers(options: argparse.Namespace) -> int:
    from proof.timers.lateness import Pace, lateness  # noqa: PLC0415 judging histories needs no broker
    from proof.timers.live import Names, live_names  # noqa: PLC0415 judging histories needs no broker
    from proof.timers.recurring import Recurring, recurring  # noqa: PLC0415 judging histories needs no shell
    from proof.timers.run import Course, timers  # noqa: PLC0415 judging histories needs no broker

    def say(text: str) -> None:
        print(text, flush=True)

    if options.cron:
        course = Recurring(options.seed, options.schedules, options.days, not options.at_least_once)
        return _said(recurring(course, say))
    folder = options.folder or Path("reports") / f"timers-{options.seed}"
    if folder.exists():
        print(f"{folder} is there already; give another --folder, or remove it", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))  # so that brokers and processes are ended
    folder, exactly_once = folder.absolute(), not options.at_least_once
    if options.restart:
        return _said(live_names(folder, Names(options.names or 1_000_000, exactly_once), say))
    if options.lateness:
        return _said(
            lateness(
                folder,
                Pace(options.rate or 500.0, options.seconds, delay=options.delay, exactly_once=exactly_once),
                say,
            )
        )
    names, rate = options.names or 200_000, options.rate or 1_000.0
    kills = Course(options.seed, names, options.kills, exactly_once, options.workers, rate=rate)
    return _said(timers(folder, kills, say))


def _transactions(options: argparse.Namespace) -> int:
    from proof.transactions.run import Course, transactions  # noqa: PLC0415 judging histories needs no broker

    if options.folder.exists():
        print(f"{options.folder} is there already; give another --folder, or remove it", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))  # so that brokers and processes are ended
    course = Course(options.times, options.kills, exactly_once=not options.at_least_once)
    return _said(transactions(options.folder.absolute(), course, lambda text: print(text, flush=True)))


def _said(found: Any) -> int:
    """Print what a run with named timers or transactions has found."""
    for line in (*found.lines(), *found.wrong):
        print(line)
    return 1 if found.wrong else 0


def _chaos(options: argparse.Namespace) -> int:
    from proof.chaos.run import KINDS, Course, chaos  # noqa: PLC0415 judging needs no broker

    folder = options.folder or Path("reports") / f"chaos-{options.seed}"
    if folder.exists():
        print(f"{folder} is there already; give another --folder, or remove it", file=sys.stderr)
        return 2
    only = frozenset(options.only.split(",")) if options.only else None
    if only is not None and (unknown := only - KINDS):
        print(f"no such kind: {', '.join(sorted(unknown))}; there are {', '.join(sorted(KINDS))}", file=sys.stderr)
        return 2
    course = Course(
        seed=options.seed, minutes=options.minutes, rate=options.rate, clocks=not options.no_clocks, only=only
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))  # so that brokers and processes are ended
    wrong = chaos(folder.absolute(), course, lambda text: print(text, flush=True))
    codes = [_check(lane) for lane in sorted(path.parent for path in folder.glob("*/dump.jsonl"))]
    for line in wrong:
        print(line)
    return 1 if wrong else max(codes)


def _check(folder: Path) -> int:
    with paused_collection():
        try:
            history = read_folder(folder)
        except (HistoryError, OSError) as error:
            print(error, file=sys.stderr)
            return 2
        violations = run(history)
        print(f"{folder}:")
        for line in report(history, violations):
            print(line)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())

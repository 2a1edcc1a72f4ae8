"""Instructions that the worker executes for a record, by callgrind: `python -m benchmarks.worker_instructions TREE …`.

On a busy machine CPU time differs by 10 % from run to run; the number of instructions by 0.2 %, whatever else runs. So
this compares two trees: pass the paths of their checkouts; the first is what the others are compared with.

Each tree relays the same records as in `benchmarks.worker`, once few and once many. The difference is divided by the
difference of the counts, so the start costs nothing. Under callgrind everything takes 50 times as long. So transactions
may last longer than 50 ms here: they would have few records otherwise.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks import table
from benchmarks import worker as relay
from rocketshim_local import any_broker
from rocketshim_topics import provision
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames

COUNTS = (10_000, 40_000)
SIDE = """
import sys
from benchmarks import worker
from rocketshim.worker import exactly_once
exactly_once._LONGEST_NS = 20_000_000_000
worker.tune = lambda: None
worker.worker(*sys.argv[1:4], int(sys.argv[4]), exactly_once=sys.argv[5] == "exactly once")
"""


def executed(tree: str, *arguments: object) -> int:
    """Return the instructions that a tree executes, of all its threads."""
    paths = [str(Path(tree) / part) for part in ("topics", "shim", "")]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", sys.executable, "-c", SIDE,
             *map(str, arguments)],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=900, cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"},
        )  # fmt: skip
        found = re.search(
            r"^(?:summary|totals): (\d+)", (Path(folder) / "out").read_text(errors="replace"), re.MULTILINE
        )
    assert found is not None, "callgrind wrote no total"
    return int(found.group(1))


def stage(bootstrap: str, count: int) -> tuple[str, str]:
    """Return a namespace with records, all due, and their target."""
    names = TopicNames(f"bench{uuid.uuid4().hex[:6]}")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    provision.ensure_topics(admin, Layout(names, DelayLevels.parse(relay.LEVELS)).shared())
    target = f"{names.namespace}.target"
    admin.create_topics([NewTopic(target, relay.PARTITIONS)])[target].result(30)
    relay.fill(bootstrap, names, target, count)
    return names.namespace, target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", default=[str(Path(__file__).parents[1])], metavar="TREE")
    parser.add_argument("--rounds", type=int, default=1)
    chosen = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("not measured: valgrind is not installed")
        return
    trees = [str(Path(tree).resolve()) for tree in chosen.trees]
    table.head()
    with any_broker() as broker:
        stages = {count: stage(broker.bootstrap, count) for count in COUNTS}
        for mode in ("exactly once", "at least once"):
            a_record: dict[str, list[float]] = {tree: [] for tree in trees}
            for _ in range(chosen.rounds):
                for tree in trees:
                    few, many = (executed(tree, broker.bootstrap, *stages[count], count, mode) for count in COUNTS)
                    a_record[tree].append((many - few) / (COUNTS[1] - COUNTS[0]))
            for tree in trees:
                ratios = [first / own for first, own in zip(a_record[trees[0]], a_record[tree], strict=True)]
                table.say(
                    f"instructions a record, {mode}, {Path(tree).name}",
                    "≥ 0.98 of the first tree" if tree != trees[0] else "–",
                    f"{table.spread(a_record[tree], ',.0f')}, ratio {table.spread(ratios, '.3f')}",
                )


if __name__ == "__main__":
    main()

"""Processes of a run end with the harness: real processes, because it depends on what the kernel does."""

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from proof.chaos.program import Job

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
STARTER = """
import pathlib, sys, threading
from proof.chaos.children import start_module
pids = []
words, log = ["proof.chaos.program", sys.argv[1]], pathlib.Path(sys.argv[2])
thread = threading.Thread(target=lambda: pids.append(start_module(words, log).pid))  # faults start processes in threads
thread.start()
thread.join()
print(pids[0], flush=True)
sys.stdin.read()
"""


def sender(run: Path) -> Job:
    """A sender without brokers: it waits for them until it is ended."""
    (run / "least").mkdir()
    return Job(
        role="sender", lane="least", place=0, name="sender.least.1", run=str(run), bootstrap="127.0.0.1:9",
        client={"log_level": "0"}, rate=1.0, port=0, kip_848=False, by_key=False,
    )  # fmt: skip


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_process_of_a_run_ends_when_the_harness_is_killed(tmp_path: Path, is_frozen: bool) -> None:
    job = sender(tmp_path)
    command = [sys.executable, "-c", STARTER, job.to_json(), str(tmp_path / "log")]
    with subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as harness:
        assert harness.stdout is not None
        pid = int(harness.stdout.readline())
        handle = os.pidfd_open(pid)
        try:
            await_history(tmp_path / "least" / "sender.least.1.jsonl", handle)
            if is_frozen:
                os.kill(pid, signal.SIGSTOP)
            harness.kill()
            assert select.select([handle], [], [], DEADLINE_S)[0], "the process outlived the harness"
        finally:
            with suppress(ProcessLookupError):  # it has ended, as it should
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)


def await_history(path: Path, handle: int) -> None:
    """Wait until the program runs: its guard does since before."""
    while not path.exists():
        assert not select.select([handle], [], [], 0.05)[0], "the program ended by itself"

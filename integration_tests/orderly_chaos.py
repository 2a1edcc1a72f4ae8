"""A group of processes that consume in order while things go wrong, and a sink that checks fencing tokens.

`Sink` takes what listeners write, in one order, and remembers the highest token of each queue: a write with a lower one
is refused. `Fleet` starts members as processes of their own, and kills, freezes and thaws them.
"""

import os
import random
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

MEMBER = """
import logging, random, socket, sys, threading, time
from rocketshim import ConsumeFromWhere, PushConsumer
from rocketshim.errors import BrokerUnavailableError

said = dict.fromkeys(("error", "why", "queue", "partitions"), "")
logging.basicConfig()
logging.root.handlers[0].setFormatter(
    logging.Formatter("%(asctime)s %(message)s %(error)s %(why)s %(queue)s %(partitions)s", defaults=said)
)
bootstrap, namespace, group, topic, port, name, pause_ms = sys.argv[1:]
local = threading.local()
consumer = PushConsumer(
    bootstrap, group=group, namespace=namespace, client_id=name, consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    consume_thread_min=4, lock_lease_ms=9_000, lock_hold_ms=3_000, lock_renew_ms=1_000,
    persist_consumer_offset_interval_ms=500, suspend_current_queue_time_ms=50,
)

@consumer.listener(topic, orderly=True)
def write(message, context):
    if not hasattr(local, "sink"):
        local.sink = socket.create_connection(("127.0.0.1", int(port))).makefile("rw")
    time.sleep(random.random() * 2 * float(pause_ms) / 1_000)   # so that a frozen member is frozen here
    local.sink.write(f"{message.queue_id} {message.queue_offset} {context.fencing_token} {name}\\n")
    local.sink.flush()
    if local.sink.readline() != "ok\\n":
        raise RuntimeError("the sink has seen a higher token")

while True:
    try:
        consumer.run()
        break
    except BrokerUnavailableError:  # a broker on a busy machine: nothing was started
        logging.exception("again")
"""


@dataclass
class Written:
    """What the sink took of one queue, in its order: (offset, token)."""

    accepted: list[tuple[int, int]] = field(default_factory=list)
    refused: list[tuple[int, int]] = field(default_factory=list)
    highest_token: int = -1

    def handovers(self) -> int:
        """How often another token took over."""
        tokens = [token for _, token in self.accepted]
        return sum(before != after for before, after in pairwise(tokens))

    def check(self, end: int) -> int:
        """Hold the writes against the promise; returns how many were repeats.

        First successes are in offset order without a gap; repeats happen only after a hand-over, where they run a
        suffix again; under one token the offsets follow each other; tokens never go back.
        """
        next_offset, last_token, last_offset = 0, -1, -1
        for offset, token in self.accepted:
            assert token >= last_token, f"token {token} was taken after {last_token}"
            if token == last_token:
                assert offset == last_offset + 1, f"{offset} after {last_offset} under one token"
            assert offset <= next_offset, f"{offset} came when {next_offset} was next: a gap"
            next_offset = max(next_offset, offset + 1)
            last_token, last_offset = token, offset
        assert next_offset == end, f"{next_offset} of {end} messages came"
        return len(self.accepted) - end


class Sink:
    """A server that takes lines `queue offset token member` and answers ok or refused."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.queues: dict[int, Written] = defaultdict(Written)
        self.count = 0
        sink = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for line in self.rfile:
                    queue, offset, token, _ = line.split()
                    self.wfile.write(b"ok\n" if sink.take(int(queue), int(offset), int(token)) else b"refused\n")

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A member was killed in mid-line."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, queue: int, offset: int, token: int) -> bool:
        with self.lock:
            written = self.queues[queue]
            if token < written.highest_token:
                written.refused.append((offset, token))
                return False
            written.highest_token = token
            written.accepted.append((offset, token))
            self.count += 1
            return True

    def reached(self, ends: dict[int, int]) -> bool:
        """Whether the last message of each queue was taken."""
        with self.lock:
            return all(max((o for o, _ in self.queues[q].accepted), default=-1) == e - 1 for q, e in ends.items())

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Fleet:
    """Members as processes."""

    def __init__(self, *arguments: str, sink: Sink, count: int, logs: Path, pause_ms: float = 10.0) -> None:
        self._arguments = arguments
        self.sink = sink
        self._logs = logs
        self._pause_ms = pause_ms
        self._number = 0
        self.members: list[subprocess.Popen[bytes]] = []
        self.frozen: dict[int, float] = {}
        self.kills = 0
        self.freezes = 0
        for _ in range(count):
            self.start()

    def start(self) -> None:
        self._number += 1
        name = f"member-{self._number}"
        command = [sys.executable, "-c", MEMBER, *self._arguments, str(self.sink.port), name, str(self._pause_ms)]
        with (self._logs / f"{name}.log").open("wb") as log:
            self.members.append(subprocess.Popen(command, stdout=log, stderr=log))

    def kill(self, member: subprocess.Popen[bytes]) -> None:
        member.kill()
        member.wait()
        self.members.remove(member)
        self.kills += 1
        self.start()

    def freeze(self, member: subprocess.Popen[bytes], seconds: float) -> None:
        os.kill(member.pid, signal.SIGSTOP)
        self.frozen[member.pid] = time.monotonic() + seconds
        self.freezes += 1

    def thaw(self, *, everybody: bool = False) -> None:
        for pid, until in list(self.frozen.items()):
            if everybody or time.monotonic() >= until:
                del self.frozen[pid]
                os.kill(pid, signal.SIGCONT)

    def any(self) -> subprocess.Popen[bytes] | None:
        """A member that is not frozen."""
        awake = [member for member in self.members if member.pid not in self.frozen]
        return random.choice(awake) if awake else None  # noqa: S311

    def replace_ended(self) -> int:
        """Members that ended by themselves; each is a finding, and is replaced."""
        ended = [member for member in self.members if member.poll() is not None]
        for member in ended:
            self.members.remove(member)
            self.start()
        return len(ended)

    def stop(self) -> None:
        self.thaw(everybody=True)
        for member in self.members:
            member.terminate()
        for member in self.members:
            try:
                member.wait(60)
            except subprocess.TimeoutExpired:
                member.kill()
                member.wait()

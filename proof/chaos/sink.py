"""The sink that orderly listeners write to: it refuses a token lower than the highest it has seen of a queue."""

import socketserver
import threading
from pathlib import Path
from typing import Any

from proof.index import queue_of
from proof.lines import Process, SinkWrite
from proof.writer import HistoryWriter

__all__ = ["Sink"]


class Sink:
    """A server on this machine: it takes lines `where token process` and answers `ok` or `refused`.

    Thread-safety: it runs in threads of its own; `close` from any thread.
    """

    def __init__(self, folder: Path, group: str) -> None:
        self._history = HistoryWriter(folder, Process(name="sink", role="sink"))
        self._group = group
        self._lock = threading.Lock()
        self._highest: dict[str, int] = {}
        sink = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for line in self.rfile:
                    if line.endswith(b"\n"):  # else its writer was killed in the middle of it
                        where, token, name = line.decode().split()
                        self.wfile.write(b"ok\n" if sink.take(where, int(token), name) else b"refused\n")

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A writer was killed: its connection is gone, and nobody waits for the answer."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, where: str, token: int, by: str) -> bool:
        """Take a write, or refuse it; one after the other."""
        queue = queue_of(where)
        with self._lock:
            accepted = token >= self._highest.get(queue, -1)
            if accepted:
                self._highest[queue] = token
            write = SinkWrite(
                at_ns=self._history.clock_ns(), group=self._group, where=where, token=token, by=by, accepted=accepted
            )
            self._history.write(write)
        return accepted

    def close(self) -> None:
        """Take nothing more."""
        self._server.shutdown()
        self._server.server_close()
        self._history.close()

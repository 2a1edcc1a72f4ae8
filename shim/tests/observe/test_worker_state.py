"""Workers are asked over HTTP: what a real one answers, and whatever else may listen there."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rocketshim.clock import SystemClock
from rocketshim.errors import ConfigError
from rocketshim.health import HealthServer
from rocketshim.observe.snapshot import WorkerSnapshot
from rocketshim.observe.worker_state import ask_workers, checked_urls
from rocketshim.worker.state import QueueState, WorkerCounts, WorkerState

Answer = Callable[[BaseHTTPRequestHandler], None]


def state() -> WorkerState:
    queues = tuple(QueueState(number, 1_000, 5, 5, 2, held=2, next_due_in_ms=-7 * number) for number in (0, 1))
    return WorkerState(
        SystemClock().monotonic_ns(), "exactly-once", "g", "SCHEDULE_TOPIC_XXXX", is_member=True,
        commits_fail_since_ns=None, avoided={"orders": "it stores nothing"}, queues=queues,
        counts=WorkerCounts(delivered=9, parked={"bad-number": 1}, alarms={"worker.parked": 1}),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketshim.observe.worker_state._TIMEOUT_S", 60.0)


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def bodied(body: bytes) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def redirecting(handler: BaseHTTPRequestHandler) -> None:
    assert handler.path == "/state", "the target of the redirect was asked"
    handler.send_response(302)
    handler.send_header("Location", "/elsewhere")
    handler.end_headers()


def test_a_worker_tells_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # a proxy must not learn of it
    server = HealthServer("127.0.0.1", 0, state, SystemClock())
    server.start()
    try:
        url = f"http://127.0.0.1:{server.port}/"
        assert ask_workers([url]) == (
            WorkerSnapshot(
                url, None, "exactly-once", is_ready=True, queues=2, held=4, late_ms=7,
                avoided={"orders": "it stores nothing"}, delivered=9, parked={"bad-number": 1},
                alarms={"worker.parked": 1},
            ),
        )  # fmt: skip
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (bodied(b"{}"), "not a worker's state: 6 fields"),
        (bodied(b"<html>"), "not a worker's state"),
        (bodied(b"\xff" * 70_000), "not a worker's state"),
        (bodied(b" " * 1_100_000), "longer than 1 MiB"),
        (redirecting, "it answered 302 Found"),
        (lambda handler: handler.send_error(503), "it answered 503 Service Unavailable"),
        (lambda handler: handler.connection.close(), ""),
    ],
)
def test_what_is_no_worker_has_an_error_and_does_not_hide_the_others(answer: Answer, error: str) -> None:
    server = HealthServer("127.0.0.1", 0, state, SystemClock())
    server.start()
    try:
        with answering(answer) as wrong:
            found, good = ask_workers([wrong, f"http://127.0.0.1:{server.port}"])
    finally:
        server.stop()
    assert error in (found.error or "")
    assert found.trouble
    assert good.is_ready


def test_an_address_where_nothing_listens_has_an_error() -> None:
    with answering(redirecting) as url:
        pass
    (found,) = ask_workers([url])
    assert "refused" in found.trouble


@pytest.mark.parametrize(
    "url", ["worker-1:8080", "file:///etc/passwd", "http://", "http://a/?x=1", "http://u:p@a:1", "http://u:p@[::1"]
)
def test_what_is_no_address_is_refused_without_a_password_in_the_error(url: str) -> None:
    with pytest.raises(ConfigError, match="worker") as raised:
        checked_urls([url])
    assert "u:p" not in str(raised.value)

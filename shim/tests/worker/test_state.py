"""The worker's state, health and metrics."""

import asyncio
import contextlib
import json
import re
import select
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from rocketshim.clock import SystemClock
from rocketshim.health import HealthServer, _response
from rocketshim.metrics import metrics_text
from rocketshim.worker import log_format
from rocketshim.worker.allow_list import AllowList
from rocketshim.worker.log_format import ALARM_EVENTS, EVENTS
from rocketshim.worker.state import PARK_REASONS
from rocketshim_topics.names import TopicNames
from rocketshim_topics.partitioner import TIMER_PARTITIONS


def get(server: HealthServer, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_state_and_metrics_report_waiting_and_finished_records(sim: Any) -> None:
    worker = sim.worker()
    sim.schedule()
    sim.schedule(topic="__payments")
    sim.schedule(level=4)
    sim.run(worker, 2_100)
    state = worker.state
    assert state is not None
    queue = next(queue for queue in state.queues if queue.partition == 3)
    assert (queue.delay_ms, queue.held) == (10_000, 1)
    assert 6_000 < (queue.next_due_in_ms or 0) <= 10_000
    assert queue.backlog is not None
    assert queue.backlog >= 1
    assert state.oldest_due_ms == 0
    families = {family.name: family for family in text_string_to_metric_families(metrics_text(state.metrics()))}
    assert families["rocketshim_worker_delivered"].samples[0].value == 1
    parked = families["rocketshim_worker_parked"].samples[0]
    assert (parked.labels, parked.value) == ({"reason": "forbidden-target"}, 1)
    lateness = families["rocketshim_worker_lateness_seconds"]
    assert next(s.value for s in lateness.samples if s.name.endswith("_count")) == 1


def test_the_oldest_due_record_counts_while_it_is_in_flight_or_waits_for_another_try(sim: Any) -> None:
    sim.clock.advance(10 * 86_400_000)  # the machine's uptime
    worker = sim.worker()
    sim.run(worker, 500)
    sim.kafka.deny("rmq.parked", read=False)
    sim.schedule(topic="__nobody")
    seen: list[int] = []
    for _ in range(100):
        sim.run(worker, 100)
        seen.append(worker.state.oldest_due_ms)
    assert 7_000 < max(seen) == seen[-1] <= 9_100
    sim.kafka.allow("rmq.parked")
    sim.until(worker, lambda: len(sim.parked()) == 1, 10_000)
    sim.run(worker, 2_000)
    assert worker.state.oldest_due_ms == 0


def test_an_error_of_a_client_that_repeats_is_counted_each_time_and_logged_with_its_way_out_once(
    sim: Any, caplog: pytest.LogCaptureFixture
) -> None:
    worker = sim.worker(client={"session.timeout.ms": 9_000})
    refused = KafkaError(KafkaError.INVALID_SESSION_TIMEOUT)
    for _ in range(100):
        worker._clients.errors.append(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        worker._fetcher._client_error(Message(topic="s", error=refused))
        sim.run(worker, 1_000)
    assert worker.counts.alarms == {"worker.client-error": 200}
    lines = [vars(record) for record in caplog.records if getattr(record, "event", "") == "worker.client-error"]
    by_cause = [[line for line in lines if code in line["error"]] for code in ("_ALL_BROKERS_DOWN", refused.name())]
    assert [[line.get("count", 1) for line in same] for same in by_cause] == [[1, 60], [1, 60]]
    assert "session.timeout.ms=9000" in by_cause[1][0]["hint"]


def test_a_request_that_fails_again_and_again_is_counted_each_time_and_logged_now_and_then(
    sim: Any, caplog: pytest.LogCaptureFixture
) -> None:
    worker = sim.worker()
    sim.run(worker, 100)
    sim.kafka.fail_produce(KafkaError(KafkaError.NOT_ENOUGH_REPLICAS), topic="SCHEDULE_TOPIC_XXXX", count=100)
    sim.schedule(level=4)
    sim.run(worker, 50_000)
    assert worker.counts.alarms["worker.probe-failed"] >= 8
    assert [getattr(record, "event", "") for record in caplog.records].count("worker.probe-failed") == 1


def test_a_series_exists_before_its_first_event_and_every_alarm_has_one(sim: Any) -> None:
    """`increase()` does not see the first event of a series that begins with it."""
    worker = sim.worker()
    sim.run(worker, 1_500)
    families = {family.name: family for family in text_string_to_metric_families(metrics_text(worker.state.metrics()))}
    alarms = {sample.labels["event"]: sample.value for sample in families["rocketshim_worker_alarms"].samples}
    assert alarms == dict.fromkeys((name for name, about in EVENTS.items() if about.startswith("alarm:")), 0)
    parked = {sample.labels["reason"]: sample.value for sample in families["rocketshim_worker_parked"].samples}
    assert parked == dict.fromkeys(PARK_REASONS, 0)


@pytest.mark.parametrize("name", ["%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX", "__x", "a?", "payments"])
def test_the_reason_of_each_refused_target_is_counted_from_zero_on(name: str) -> None:
    reason = AllowList(TopicNames(""), ["orders"]).refusal(name, None)
    assert reason is not None
    assert reason.split(":")[0] in PARK_REASONS


def test_metrics_of_a_namespace_name_it_and_others_have_no_such_label(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 1_500)
    text = metrics_text(replace(worker.state, namespace="shop").metrics())
    assert 'rocketshim_worker_delivered_total{namespace="shop"} 0.0' in text
    assert 'rocketshim_worker_alarms_total{event="worker.parked",namespace="shop"} 0.0' in text
    assert "namespace" not in metrics_text(worker.state.metrics())


def test_every_alarm_that_the_worker_raises_is_named_an_alarm() -> None:
    sources = "".join(path.read_text() for path in Path(log_format.__file__).parent.glob("*.py"))
    raised = set(re.findall(r'_alarm\(\s*"([a-z.-]+)"', sources)) | {"worker.not-allowed", "worker.re-appended"}
    assert len(raised) > 10
    assert raised <= set(ALARM_EVENTS)


def test_the_server_answers_and_reports_a_blocked_loop(sim: Any) -> None:
    worker = sim.worker()
    server = HealthServer("127.0.0.1", 0, lambda: worker.state, sim.clock)
    server.start()
    try:
        assert get(server, "/ready")[0] == 503
        assert get(server, "/state")[0] == 503
        sim.run(worker, 1_500)
        assert get(server, "/live") == (200, b"yes\n")
        assert get(server, "/ready")[0] == 200
        shown = json.loads(get(server, "/state")[1])
        assert (shown["ready"], len(shown["queues"])) == (True, 32)
        assert get(server, "/metrics")[1].startswith(b"# HELP")
        assert b"rocketshim_build_info{" in get(server, "/metrics")[1]
        assert get(server, "/etc/passwd")[0] == 404
        sim.clock.advance(31_000)
        assert get(server, "/live")[0] == 503
        assert get(server, "/ready")[0] == 503
    finally:
        server.stop()
        server.stop()


@pytest.mark.only("at-least-once")
def test_positions_that_cannot_be_committed_make_it_unready(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 500)
    sim.kafka.fail_commits(KafkaError(KafkaError.NOT_COORDINATOR), count=10_000)
    sim.schedule()
    sim.run(worker, 5_000)
    state = worker.state
    assert state is not None
    assert state.is_ready(sim.clock.monotonic_ns())
    assert (state.queues[0].position or 0) > 0
    assert state.queues[0].committed == sim.position() == 0
    sim.run(worker, 60_000)
    assert not worker.state.is_ready(sim.clock.monotonic_ns())
    assert worker.state.is_live(sim.clock.monotonic_ns())


@pytest.mark.only("exactly-once")
@pytest.mark.parametrize("call", ["init_transactions", "commit_transaction"])
def test_transactions_that_cannot_be_committed_make_it_unready_until_one_can_be(
    sim: Any, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = sim.worker()
    away = KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE, "away", txn_requires_abort=True)
    if call == "init_transactions":
        monkeypatch.setattr(type(sim.kafka.producer({})), call, lambda *_: (_ for _ in ()).throw(KafkaException(away)))
    else:
        sim.kafka.fail_transaction(away, count=10_000)
    sim.schedule()
    sim.run(worker, 5_000)
    assert worker.state.is_ready(sim.clock.monotonic_ns())
    while sim.clock.monotonic_ns() < 70e9:
        sim.run(worker, 10)
        sim.clock.advance(500)
    assert not worker.state.is_ready(sim.clock.monotonic_ns())
    monkeypatch.undo()
    sim.kafka._broker.faults.calls.clear()
    sim.until(worker, lambda: len(sim.delivered()) == 1, 10_000)
    sim.run(worker, 1_100)
    assert worker.state.is_ready(sim.clock.monotonic_ns())


@pytest.mark.only("exactly-once")
def test_a_transaction_with_an_uncertain_outcome_counts_as_a_failed_commit_until_the_next_one(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 500)
    sim.kafka.fail_transaction(KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True))
    sim.schedule()
    while not worker.counts.recycled:
        worker.step()
    assert worker._assignment.commits_fail_since_ns() is not None
    sim.until(worker, lambda: len(sim.delivered()) == 1, 5_000)
    assert worker._assignment._commits_fail_since_ns is None, "whatever is due"


@pytest.mark.only("exactly-once")
def test_a_transaction_that_turns_out_to_be_committed_leaves_the_worker_ready_without_another_one(sim: Any) -> None:
    worker = sim.worker()
    sim.schedule()
    sim.run(worker, 5_000)
    sim.kafka.fail_transaction(KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True), applied=True)
    sim.schedule()
    sim.run(worker, 70_000)
    assert (len(sim.delivered()), worker.counts.recycled) == (2, 1)
    assert worker.state.is_ready(sim.clock.monotonic_ns())
    assert worker.state.queues[0].committed == sim.position(0)


@pytest.mark.only("at-least-once")
def test_a_commit_that_is_refused_for_its_partition_alone_has_failed(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 500)
    delivery, assigned = worker._delivery, worker._assignment.held[sim.key(0)]
    delivery._consumer = SimpleNamespace(commit=lambda offsets, **_: list(map(sim.denied_position, offsets)))
    assigned.skipped_to = 7
    delivery.commit([assigned], asynchronous=False)
    delivery._consumer = worker._consumer
    assert worker.counts.alarms["worker.commit-failed"] == 1
    assert assigned.stored < 7
    assert worker._assignment.commits_fail_since_ns() is not None
    delivery.commit([assigned], asynchronous=False)
    assert assigned.stored == 7
    assert worker._assignment.commits_fail_since_ns() is None


@pytest.mark.only("at-least-once")
def test_a_failed_commit_of_a_partition_that_was_revoked_does_not_make_it_unready(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 500)
    sim.kafka.fail_commits(KafkaError(KafkaError.REBALANCE_IN_PROGRESS), count=1)
    sim.schedule(partition=31, relative=False, headers=[("DELAY_MS", b"0")])
    sim.until(worker, lambda: worker.counts.alarms.get("worker.commit-failed", 0) == 1)
    worker._assignment.on_revoke(worker._consumer, [TopicPartition("SCHEDULE_TOPIC_XXXX", 31)])
    sim.run(worker, 70_000)
    assert worker.state.is_ready(sim.clock.monotonic_ns())


def test_a_worker_without_partitions_is_ready_and_one_that_was_put_out_of_its_group_is_not(sim: Any) -> None:
    workers = [sim.worker() for _ in range(32 + TIMER_PARTITIONS + 1)]
    for _ in range(300):
        for worker in workers:
            worker.step(0)
        sim.clock.advance(10)
    assert [len(worker._assignment.held) for worker in workers].count(0) == 1
    assert all(worker.state.is_ready(sim.clock.monotonic_ns()) for worker in workers)
    worker = next(worker for worker in workers if worker._assignment.held)
    held = [TopicPartition(*key) for key in worker._assignment.held]
    worker._assignment.on_lost(worker._consumer, held)
    sim.clock.advance(1_100)
    worker.step(0)
    assert not worker.state.is_ready(sim.clock.monotonic_ns())


def test_a_request_that_fails_is_logged_and_the_next_one_is_answered(
    sim: Any, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    def state() -> None:
        asked.append("")
        if len(asked) == 1:
            raise OSError

    caplog.set_level("DEBUG", "rocketshim.health")
    server = HealthServer("127.0.0.1", 0, state, sim.clock)
    server.start()
    try:
        with pytest.raises(ConnectionError):
            get(server, "/live")
        assert get(server, "/live")[0] == 503
    finally:
        server.stop()
    said = [record for record in caplog.records if record.name == "rocketshim.health"]
    assert [record.__dict__["event"] for record in said] == ["health.request-failed"]
    assert capsys.readouterr().err == ""


def _connect(server: HealthServer, sent: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    client.sendall(sent)
    return client


def _is_ended(client: socket.socket) -> bool:
    """Wait until the server ends the connection without an answer."""
    with contextlib.suppress(ConnectionError):
        return client.recv(1) == b""
    return True


@pytest.fixture
def serving() -> Iterator[HealthServer]:
    server = HealthServer("127.0.0.1", 0, lambda: None, SystemClock())
    server.start()
    yield server
    server.stop()


def test_a_server_that_is_stopped_when_it_has_just_started_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    is_called, start_server = threading.Event(), asyncio.start_server

    class Loop(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(self, *args: Any, **named: Any) -> Any:  # type: ignore[override]
            handle = super().call_soon_threadsafe(*args, **named)
            is_called.set()
            return handle

    async def until_stop_is_called(*args: Any, **named: Any) -> asyncio.Server:
        started = await start_server(*args, **named)
        is_called.wait(60)
        return started

    monkeypatch.setattr(asyncio, "SelectorEventLoop", Loop)
    monkeypatch.setattr(asyncio, "start_server", until_stop_is_called)
    server = HealthServer("127.0.0.1", 0, lambda: None, SystemClock())
    server.start()
    stopping = threading.Thread(target=server.stop, daemon=True)
    stopping.start()
    stopping.join(60)
    assert not stopping.is_alive()


def test_hundreds_of_slow_clients_take_few_handles_and_no_thread_and_a_check_is_answered(
    serving: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketshim.health._EXCHANGE_S", 3_600.0)
    threads = threading.active_count()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(_connect(serving, b"GET /live HTTP/1.1\r\nX: ")) for _ in range(600)]
        assert get(serving, "/live")[0] == 503
        assert all(_is_ended(client) for client in clients[: 600 - 256 + 1])
        assert threading.active_count() == threads
        for client in clients[-250:]:
            client.sendall(b"y\r\n\r\n")
            assert client.recv(9) == b"HTTP/1.1 "


@pytest.mark.parametrize("count", [64, 100, 128])
def test_a_request_that_was_sent_before_a_burst_of_silent_clients_is_answered(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr("rocketshim.health._MOST_OPEN", 64)  # fewer than may wait to be accepted
    is_asked, may_answer = threading.Event(), threading.Event()

    def state() -> None:
        is_asked.set()
        may_answer.wait(60)

    server = HealthServer("127.0.0.1", 0, state, SystemClock())
    server.start()
    request = b"GET /live HTTP/1.1\r\n\r\n"
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        stack.callback(may_answer.set)
        stack.enter_context(_connect(server, request))
        assert is_asked.wait(60)  # so that all that follow are accepted together
        check = stack.enter_context(_connect(server, request))
        silent = [stack.enter_context(_connect(server, b"")) for _ in range(count - 1)]
        may_answer.set()
        assert check.recv(9) == b"HTTP/1.1 "
        assert all(_is_ended(client) for client in silent[: max(0, len(silent) - 64)])


def test_a_client_that_sends_a_byte_now_and_then_is_ended_all_the_same(
    serving: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketshim.health._EXCHANGE_S", 0.05)
    with _connect(serving, b"GET /") as client, contextlib.suppress(ConnectionError):
        while not select.select([client], [], [], 0.001)[0]:
            client.sendall(b"x")
        assert client.recv(1) == b""


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /ready HTTP/1.0\r\n\r\n", b"503"),
        (b"POST /ready HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b"501"),
        (b"GET /ready\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x00\r\n\r\n", b"400"),
        (b"GET " + b"/" * 20_000, b""),
    ],
)
def test_each_request_has_one_answer_and_an_endless_one_none(serving: HealthServer, sent: bytes, status: bytes) -> None:
    with _connect(serving, sent) as client:
        answer = b""
        with contextlib.suppress(ConnectionError):
            while more := client.recv(4_096):
                answer += more
    assert answer[9:12] == status


@pytest.mark.parametrize(
    ("hosts", "code"),
    [
        *(((host,), b"503") for host in ("localhost", "LOCALHOST:8080", "127.0.0.1:8080", "127.8.9.1", "[::1]:1")),
        *(((host,), b"421") for host in ("evil.example", "evil.example:80", "localhost.evil.example", "10.0.0.7", "")),
        ((), b"503"),
        (("localhost", "evil.example"), b"421"),
    ],
)
def test_a_server_of_this_machine_answers_under_the_names_of_this_machine_only(
    serving: HealthServer, hosts: tuple[str, ...], code: bytes
) -> None:
    fields = "".join(f"hOsT: {host}\r\n" for host in hosts)
    with _connect(serving, f"GET /live HTTP/1.1\r\n{fields}\r\n".encode()) as client:
        assert client.makefile("rb").read().split(b" ")[1] == code


def test_a_server_for_other_machines_is_asked_under_any_name() -> None:
    head = b"GET /live HTTP/1.1\r\nHost: pod-7.example:8080\r\n\r\n"
    assert b"HTTP/1.1 200 OK" in _response(head, lambda _: (200, "text/plain", b""), local_only=False)

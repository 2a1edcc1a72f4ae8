"""What a consumer shows of itself: its queues, how messages ended, how long a call has lasted."""

import json
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rocketshim.client_metrics import MetricsCollector
from rocketshim.consumer.poll_loop import PollLoop
from rocketshim.consumer.push.push_consumer import PushConsumer
from rocketshim.consumer_metrics import ConsumerState, FailureCounts
from rocketshim.core.listener_answers import ConsumeReturnType, ConsumeStatus, return_type_of
from rocketshim.core.next_hop import HopKind
from rocketshim.errors import ConfigError
from rocketshim.health import HealthServer, address
from rocketshim.metrics import Metric, metrics_text
from rocketshim.testing import InMemoryKafka

Make = Callable[..., Any]


def shown(b: Any) -> ConsumerState:
    b.clock.advance(1_000)
    b.turn()
    state: ConsumerState = b.loop.state
    return state


def mixed(message: Any) -> Any:
    match message.queue_offset:
        case 0:
            raise OSError
        case 1:
            return ConsumeStatus.RECONSUME_LATER
        case 2:
            return "nonsense"
        case _:
            return None


def test_messages_are_counted_by_result(kafka: InMemoryKafka, bench: Make) -> None:
    for _ in range(6):
        kafka.append("orders", b"")
    b = bench(mixed)
    b.run()
    state = shown(b)
    assert state.messages == {"SUCCESS": 3, "EXCEPTION": 1, "FAILED": 1, "RETURNNULL": 1, "TIME_OUT": 0}
    assert state.send_back.retried == 3
    assert (state.is_member, state.suspended, state.in_flight) == (True, False, 0)
    (queue,) = [queue for queue in state.queues if queue.topic == "orders"]
    assert (queue.position, queue.lag, queue.msg_count, queue.paused) == (6, 0, 0, "")


def test_a_long_call_is_visible_and_logged_when_it_is_too_long(kafka: InMemoryKafka, bench: Make) -> None:
    kafka.append("orders", b"12345")
    b = bench(mixed, settings={"consume_timeout_ms": 10_000})
    b.turn(3)
    stuck = b.pool.tasks.popleft()
    stuck.in_work = next(stuck.todo)
    for _ in range(5):
        state = shown(b)
    (queue,) = [queue for queue in state.queues if queue.topic == "orders"]
    assert 3_000 <= queue.oldest_in_work_ms == state.oldest_in_work_ms <= 5_000
    assert (queue.position, queue.msg_count, queue.msg_bytes) == (None, 1, 5)
    for _ in range(8):
        state = shown(b)
    assert state.messages["TIME_OUT"] == 1


def test_a_differing_subscription_is_reported_until_the_commits_agree(kafka: InMemoryKafka, bench: Make) -> None:
    kafka.append("orders", b"")
    other = bench(mixed, digest="other")
    other.run()
    other.commit_now()
    other.loop.close()
    b = bench(mixed)
    state = shown(b)
    assert state.subscription_conflicts == {"orders": "orders=other"}
    assert 'rocketshim_consumer_subscription_conflicts{group="g",topic="orders"} 1' in metrics_text(state.metrics())
    kafka.append("orders", b"")
    b.run()
    b.commit_now()
    b.clock.advance(20_000)
    assert shown(b).subscription_conflicts == {}


def test_durations_age_retries_and_dead_letters_are_counted(kafka: InMemoryKafka, bench: Make) -> None:
    """Also before the first: a series that begins with its first event hides that event from `increase`."""
    b = bench(mixed)
    state = shown(b)
    text = metrics_text(state.metrics())
    for sample in (
        'messages_total{group="g",result="EXCEPTION"} 0.0',
        'messages_total{group="g",result="TIME_OUT"} 0.0',
        'retries_total{attempt="1",group="g"} 0.0',
        'retries_total{attempt="more",group="g"} 0.0',
        'dead_letters_total{cause="other",group="g"} 0.0',
        'listener_duration_seconds_count{group="g"} 0.0',
        'latency_seconds_count{group="g"} 0.0',
    ):
        assert f"rocketshim_consumer_{sample}" in text
    kafka.append("orders", b"")
    b.run()
    state = shown(b)
    assert sum(state.listener_times.counts) == sum(state.latencies.counts) == 1
    assert (state.failures.retries["1"], sum(state.failures.dead.values())) == (1, 0)
    assert state.latencies.total < 10


def test_causes_of_dead_letters_are_bounded_in_number() -> None:
    counts = FailureCounts()
    for number in range(60):
        counts.add(HopKind.DEAD_LETTER, 1, f"Error{number}")
    assert (len(counts.dead), counts.dead["Error0"], counts.dead["other"]) == (51, 1, 10)
    for attempt in (1, 16, 17, 40):
        counts.add(HopKind.RETRY, attempt, "E")
    assert (counts.retries["1"], counts.retries["16"], counts.retries["more"]) == (1, 1, 2)


def test_a_consumer_that_the_group_has_put_out_is_not_ready_until_it_is_back(bench: Make) -> None:
    b = bench(mixed)
    assert shown(b).is_ready(b.clock.monotonic_ns())
    b.loop.reader._on_lost(b.consumer, b.consumer.assignment())
    b.clock.advance(1_000)
    b.turn()
    assert not b.loop.state.is_ready(b.clock.monotonic_ns())
    b.loop.reader._on_assign(b.consumer, [])
    assert shown(b).is_ready(b.clock.monotonic_ns())


def test_a_consumer_that_has_stopped_shows_all_that_it_has_done_and_no_queue(kafka: InMemoryKafka, bench: Make) -> None:
    for _ in range(4):
        kafka.append("orders", b"")
    b = bench(mixed)
    assert shown(b).queues
    b.run(1)
    b.pool.work_all()
    b.loop.close()
    assert (b.loop.state.queues, b.loop.state.is_member, b.loop.state.messages["SUCCESS"]) == ((), False, 1)


def test_ready_while_it_is_a_member_and_commits_and_live_while_it_runs(kafka: InMemoryKafka, bench: Make) -> None:
    from confluent_kafka import KafkaError

    b = bench(mixed)
    state = shown(b)
    now_ns = b.clock.monotonic_ns()
    assert state.is_live(now_ns)
    assert state.is_ready(now_ns)
    assert not state.is_live(now_ns + 31_000_000_000)
    kafka.fail_commits(KafkaError(KafkaError.NOT_COORDINATOR), count=10_000)
    kafka.append("orders", b"")
    b.run()
    b.commit_now()
    for _ in range(70):
        b.run(1)
        state = shown(b)
    assert state.is_live(b.clock.monotonic_ns())
    assert not state.is_ready(b.clock.monotonic_ns())
    assert state.commits_failed > 0


def test_the_state_of_a_suspended_consumer_has_the_reason(bench: Make) -> None:
    b = bench(mixed)
    b.loop.ask(PollLoop.suspend)
    b.turn()
    state = shown(b)
    assert state.suspended
    assert {queue.paused for queue in state.queues} == {"SUSPENDED"}
    assert state.is_ready(b.clock.monotonic_ns())


def test_the_state_is_json_and_the_metrics_are_prometheus(kafka: InMemoryKafka, bench: Make) -> None:
    kafka.append("orders", b"")
    b = bench(mixed)
    b.run()
    state = shown(b)
    server = HealthServer("127.0.0.1", 0, lambda: state, b.clock)
    assert json.loads(server._answer("/state")[2])["ready"] is True
    families = {family.name: family for family in text_string_to_metric_families(metrics_text(state.metrics()))}
    (failed,) = [s for s in families["rocketshim_consumer_messages"].samples if s.labels["result"] == "EXCEPTION"]
    assert (failed.value, failed.labels["group"]) == (1, "g")
    assert families["rocketshim_consumer_lag_messages"].samples

    class Consumer:
        state: Any = None

        def metrics(self) -> Iterable[Metric]:
            return PushConsumer.metrics(cast("Any", self))

    consumer = Consumer()
    registry = CollectorRegistry()
    registry.register(MetricsCollector(consumer))
    assert generate_latest(registry) == b""
    consumer.state = state
    collected = {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}
    assert set(collected) == set(families)
    for name, family in families.items():
        mine = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in family.samples}
        theirs = {(s.name, tuple(sorted(s.labels.items()))): s.value for s in collected[name].samples}
        assert mine == theirs


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ReconsumeLater", "FAILED"),
        ("ReturnedNoStatus", "RETURNNULL"),
        ("ConsumeTimeout", "TIME_OUT"),
        ("X", "EXCEPTION"),
    ],
)
def test_the_label_of_a_failure(name: str, expected: str) -> None:
    assert return_type_of(name) is ConsumeReturnType(expected)


@pytest.mark.parametrize("text", ["", "host", "host:", "1.2.3.4:99999", "x:-1", "9" * 5_000])
def test_an_address_without_a_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="PORT"):
        address(text)
    assert address("8080") == ("127.0.0.1", 8080)
    assert address("[::1]:80") == ("::1", 80)

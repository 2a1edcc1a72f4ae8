"""Batches of at-least-once delivery, on a producer whose reports the test controls."""

from types import SimpleNamespace as Of
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from rocketshim.clock import SystemClock
from rocketshim.core.send_pace import SendPace
from rocketshim.kafka.client_errors import ErrorLines
from rocketshim.worker.at_least_once import AtLeastOnce
from rocketshim.worker.hop_writer import Action, Flight, HopBatch, HopGroup
from rocketshim.worker.refusals import Refusals
from rocketshim.worker.state import Alarms, WorkerCounts
from rocketshim.worker.targets import TargetHealth

STORED = Message(topic="t", partition=0, offset=7)


class Producer:
    """Keeps the produced records and makes no report by itself."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, Any]] = []

    def produce(
        self, topic: str, value: bytes, key: None, partition: int, *, on_delivery: Any, timestamp: int, headers: object
    ) -> None:
        del topic, key, partition, timestamp, headers
        self.sent.append((value, on_delivery))

    def poll(self, timeout: float = 0) -> int:
        del timeout
        return 0

    def purge(self) -> None: ...

    def flush(self, timeout: float = 0) -> int:
        del timeout
        return 0

    def close(self) -> bool:
        return True

    def __len__(self) -> int:
        return 0


def delivery(made: list[Producer], *, patience_ns: int = 10**12) -> tuple[AtLeastOnce, Flight, list[object]]:
    """Return a delivery with a flight of three records, and the confirmed runs."""

    pace = SendPace(patience_ns=patience_ns, longest_ns=10**15, most=10**9)

    def make(config: object) -> Producer:
        del config
        made.append(Producer())
        return made[-1]

    def route(due: Any, assigned: Any, now_ns: int, indexes: Any, **_: Any) -> list[HopGroup]:
        del assigned, now_ns
        group = HopGroup(Action.DELIVER, "t", 0)
        group.records += [(index, due.records[index].value, None, [], 0) for index in indexes]
        return [group]

    out = AtLeastOnce(
        Of(max_in_flight_count=9, max_in_flight_bytes=9, buffer_bytes=99),  # type: ignore[arg-type]
        Of(make_producer=make, producer_config=lambda _: {}, pace=lambda: pace),  # type: ignore[arg-type]
        router=Of(route=route, targets=Of(set_producers=lambda *_: None), refusals=Refusals(Of(), print)),  # type: ignore[arg-type]
        prober=Of(use=lambda *_: None, confirmed_ns=0),  # type: ignore[arg-type]
        assignment=None,  # type: ignore[arg-type]
        alarm=Alarms(WorkerCounts(), SystemClock(), ErrorLines("g", {})),
        clock=SystemClock(),
        point=lambda _: None,
    )
    out.start(None)  # type: ignore[arg-type]
    records = [
        Of(value=value, offset=lambda: 0, topic=lambda: "s", partition=lambda: 0) for value in (b"a", b"b", b"c")
    ]
    due: Any = Of(records=records, clock_ms=lambda _: 0, seen_ns=[0, 0, 0], run=Of(first_offset=0), size_bytes=0)
    confirmed: list[object] = []
    flight = Flight(Of(gone=False, queue=Of(confirmed=confirmed.append)), due)  # type: ignore[arg-type]
    return out, flight, confirmed


def test_the_outgoing_records_are_not_kept_until_their_reports() -> None:
    out, flight, _ = delivery([])
    producer = Producer()
    group = HopGroup(Action.DELIVER, "t", 0, first=(0, b"a", None, [], 0))
    (batch,) = out._writer.write(producer, flight, group, 0)  # type: ignore[arg-type]
    assert [value for value, _ in producer.sent] == [b"a"]
    assert batch.indexes == [0]
    assert not batch.group.records


def test_after_a_time_out_the_whole_batch_is_produced_again() -> None:
    made: list[Producer] = []
    out, flight, confirmed = delivery(made)
    batch = out._writer.batch(flight, HopGroup(Action.DELIVER, "t", 0), 0)
    batch.indexes, batch.dues_ms = [0, 1, 2], [0, 0, 0]
    out._register(batch)
    batch.reported(KafkaError(KafkaError._MSG_TIMED_OUT), None)  # type: ignore[arg-type]  # c, which was still queued
    batch.reported(None, STORED)  # a
    out._writer.failure = KafkaError(KafkaError._FATAL)
    out.resolve_outcomes(1)
    again = made[-1].sent
    assert [value for value, _ in again] == [b"a", b"b", b"c"], "nobody knows which of them was stored"
    for _, report in again:
        report(None, STORED)
    out.resolve_outcomes(2)
    assert len(confirmed) == 1


def test_a_record_that_is_sent_again_has_the_whole_patience_again() -> None:
    made: list[Producer] = []
    out, flight, confirmed = delivery(made, patience_ns=10)
    batch = out._writer.batch(flight, HopGroup(Action.DELIVER, "t", 0), 0)
    batch.indexes, batch.dues_ms = [0, 1, 2], [0, 0, 0]
    out._register(batch)
    out._in_flight.confirmed_ns = 50  # other records were stored meanwhile
    out._writer.failure = KafkaError(KafkaError._FATAL)
    out.resolve_outcomes(100)
    again = made[-1].sent
    assert [value for value, _ in again] == [b"a", b"b", b"c"], "none of it is taken for silence of the target"
    for _, report in again:
        report(None, STORED)
    out.resolve_outcomes(105)
    assert len(confirmed) == 1


def test_if_every_target_is_slow_no_target_is_avoided() -> None:
    """A stored record that was sent shortly after a batch shows that the broker is only slow."""
    made: list[Producer] = []
    out, flight, _ = delivery(made, patience_ns=10)
    slow, soon_after, later, much_later = batches = [
        out._writer.batch(flight, HopGroup(Action.DELIVER, "t", 0), at) for at in (0, 5, 90, 400)
    ]
    for index, batch in enumerate(batches):
        batch.indexes, batch.dues_ms = [index % 3], [0]
        out._register(batch)
    flight.pending = len(batches)
    out._in_flight._prober.outstanding = 1
    replaced: list[HopBatch] = []
    out._replace = lambda batch, _: replaced.append(batch)  # type: ignore[assignment]
    soon_after.reported(None, STORED)
    out.resolve_outcomes(100)
    later.reported(None, STORED)
    out.resolve_outcomes(170)
    assert not replaced, "others take 95 ns at the moment, which is more than the patience"
    much_later.reported(None, STORED)
    out.resolve_outcomes(401)
    assert replaced == [slow]


def test_a_producer_that_refuses_a_record_each_time_does_not_block_the_loop() -> None:
    made: list[Producer] = []
    out, flight, confirmed = delivery(made)
    out._refusals = Of(must_wait=lambda *_, **__: False)  # type: ignore[assignment]
    refused: list[bytes] = []
    accept = made[0].produce

    def refuse(topic: str, value: bytes, *arguments: Any, **named: Any) -> None:
        if len(refused) >= 300:
            accept(topic, value, *arguments, **named)
            return
        refused.append(value)
        raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))

    made[0].produce = refuse  # type: ignore[method-assign]
    out._send(flight, [0, 1, 2], 0)
    for turn in range(2, 5):
        out.resolve_outcomes(turn)
        assert len(refused) == 3 * turn, "a turn of the loop tries each record once"
        assert out.wait_ns(turn) is not None, "the next turn is soon"
    assert confirmed == []
    assert out._in_flight.count == 3


def test_a_target_that_fails_right_after_a_success_is_avoided_again() -> None:
    target = TargetHealth("t")
    assert target.failed(0, "first")
    assert not target.failed(1, "same"), "records that were in flight at the same time tell nothing new"
    target.record_success()
    assert target.failed(2, "second")
    assert not target.may_try(3)


def test_records_that_waited_for_other_topics_are_written_to_a_target_that_has_failed_and_recovered_meanwhile() -> None:
    made: list[Producer] = []
    out, flight, _ = delivery(made)
    target, routed = TargetHealth("t"), [0]

    def route(due: Any, assigned: Any, now_ns: int, indexes: list[int], **_: Any) -> list[HopGroup]:
        del assigned, now_ns
        routed[0] += len(indexes)
        assert routed[0] < 100, "it is routed again and again"
        return [
            HopGroup(Action.DELIVER, "t", index, target=target, first=(index, due.records[index].value, None, [], 0))
            for index in indexes
        ]

    out._router = Of(route=route)  # type: ignore[assignment]
    out._in_flight.most_topics = 0
    out._send(flight, [0, 1, 2], 1)
    target.failed(5, "refused")
    target.record_success()
    out._in_flight.most_topics = 200
    out._produce_backlog(6)
    assert [value for value, _ in made[0].sent] == [b"a", b"b", b"c"]
    assert routed == [6]

"""Lag and memory of a run, measured every two seconds.

Brokers that take longer than a second for the few look-ups of a lane count as a fault of both lanes, `OVERLOAD`: a
worker that gets no answer for two seconds writes a record again, as documented.
"""

import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import psutil
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from proof.chaos.plan import LANES, Lane
from proof.chaos.stage import HARNESS, Stage
from proof.lines import OVERLOAD, Fault, Process, Sample
from proof.writer import HistoryWriter

__all__ = ["Lags", "sample"]

_EVERY_S: Final = 2.0
_ANSWER_S: Final = 10.0
_SLOW_NS: Final = 1_000_000_000


class Lags:
    """How far groups are behind. Consumers are asked: the admin client may crash while brokers are away.

    Args:
        stage: whose brokers.

    Thread-safety: one thread.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._clients: dict[str, Consumer] = {}

    def of(self, lane: Lane) -> dict[str, int]:
        """How many offsets each group of a lane, and its workers, are behind.

        Raises:
            KafkaException: brokers do not answer.
        """
        names = lane.names
        topics: dict[str, list[str]] = {
            group.name: [*group.topics, names.retry(group.name)]
            for group in lane.groups
            if group.mode != "broadcasting"
        }
        topics[names.worker_group] = [names.schedule, names.timers]
        return {group: self._behind(group, read) for group, read in topics.items()}

    def _behind(self, group: str, topics: list[str]) -> int:
        client = self._clients.get(group)
        if client is None:
            config = {"group.id": group, "client.id": HARNESS, "log_level": 0, "enable.auto.commit": False}
            client = self._clients[group] = Consumer({**self._stage.cluster.client_config(), **config})
        known = client.list_topics(timeout=_ANSWER_S).topics
        asked = [TopicPartition(topic, number) for topic in topics for number in known[topic].partitions]
        behind = 0
        for position in client.committed(asked, timeout=_ANSWER_S):
            marks = client.get_watermark_offsets(position, timeout=_ANSWER_S)
            if marks is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - it has no other name
            behind += max(marks[1] - max(position.offset, 0), 0)
        return behind

    def close(self) -> None:
        """Close the clients."""
        for client in self._clients.values():
            client.close()


def sample(run: Path, stage: Stage, ended: threading.Event) -> None:
    """Measure until the end."""
    with ExitStack() as stack:
        writers = {
            lane.name: stack.enter_context(HistoryWriter(run / lane.name, Process(name="samples", role="harness")))
            for lane in LANES
        }
        lags = stack.enter_context(closing(Lags(stage)))
        while not ended.wait(_EVERY_S):
            for lane in LANES:
                _sample(stage, lane, lags, writers)


def _sample(stage: Stage, lane: Lane, lags: Lags, writers: dict[str, HistoryWriter]) -> None:
    history = writers[lane.name]
    begin_ns = history.clock_ns()
    try:
        found = lags.of(lane)
    except KafkaException:  # brokers are away
        found = {}
    end_ns = history.clock_ns()
    if end_ns - begin_ns > _SLOW_NS:
        for each in writers.values():
            each.write(Fault(kind=OVERLOAD, target="cluster", begin_ns=begin_ns, end_ns=end_ns))
    for group, lag in found.items():
        if group != lane.names.worker_group:
            history.write(Sample(what="lag", of=group, at_ns=history.clock_ns(), value=lag))
    for running in stage.of(lane):
        try:
            resident = psutil.Process(running.popen.pid).memory_info().rss
        except psutil.Error:  # it was killed meanwhile
            continue
        history.write(Sample(what="rss_bytes", of=running.name, at_ns=history.clock_ns(), value=resident))

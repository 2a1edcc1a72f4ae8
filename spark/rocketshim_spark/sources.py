"""Read Kafka topics with fixed bounds: every action on one frame sees the same rows.

Spark's batch source resolves `latest` in each task, on the executor. Then a count and a write of one frame are two
different reads, and a retried task may see more records than its first try, so counts over topics would not add up.
Therefore the driver resolves the bounds of every partition once and passes them to Spark as numbers:

* The end is the last *stable* offset (`read_committed`). Records of an open transaction, and all records after them,
  are left to a later read; aborted records are never read.
* The start is the caller's, or the earliest offset.
* Every partition is named (`assign`), so a partition that is added meanwhile changes nothing.

Offsets are positions, not counts: control records and compaction leave holes. No code here subtracts offsets to count
records.

If retention deletes records between resolving and reading, the job fails (`failOnDataLoss`). It skips them only for
a caller that looks for them itself (`may_lose_records`).

A topic of delay queues is skewed: most retries wait in a few partitions. `max_records_per_task` splits long partitions
by offsets, and `min_tasks` sets a minimum number of tasks. No Python code runs in the executors.
"""

import datetime as dt
import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]
from pyspark.sql import DataFrame, SparkSession

from rocketshim.kafka.client_config import merge
from rocketshim.kafka.clients import confluent_admin, confluent_clients
from rocketshim.kafka.positions import answer_of, group_positions, listed_groups, visible_partitions
from rocketshim_topics import provision
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.errors import (
    BrokerUnavailableError,
    ClusterError,
    ConfigError,
    NotAuthorizedError,
    TopicMissingError,
)
from rocketshim_topics.kafka_codes import DENIED, MISSING, NO_LOGIN
from rocketshim_topics.layout import is_compacted

__all__ = ["Cluster", "PartitionBounds", "offsets_json", "read_batch", "since"]

_TIMEOUT_S: Final = 30.0
_QUIET: Final = {"log_level": 0}
# Spark's reader waits while it fetches, and fetches nothing while it writes, so larger fetches mean fewer waits. They
# reduced the wall time for 2 M records written as Parquet by 16 % (benchmarks/NOTES.md).
_FETCH_SETTINGS: Final[Mapping[str, str]] = {"max.poll.records": "5000", "max.partition.fetch.bytes": str(4 * 2**20)}


@dataclass(frozen=True, slots=True, order=True)
class PartitionBounds:
    """The bounds of one partition at one moment.

    Attributes:
        topic: physical name of the topic.
        partition: from 0.
        topic_id: Kafka's id of the topic; it changes when the topic is deleted and created again.
        earliest: first offset that retention has left.
        start: first offset to read.
        end: last stable offset; reading stops before it. Not less than `start`.
    """

    topic: str
    partition: int
    topic_id: str
    earliest: int
    start: int
    end: int


class Cluster:
    """The driver's queries to the cluster, before Spark reads.

    Args:
        bootstrap: addresses of the brokers.
        config: further librdkafka settings, for example for security; None: none.

    Raises:
        ConfigError: a setting runs code, or librdkafka refuses it.

    Thread-safety: any thread.
    """

    def __init__(self, bootstrap: str, config: Mapping[str, Any] | None = None) -> None:
        self._bootstrap = bootstrap
        self._config = config or {}
        self._required = {"bootstrap.servers": bootstrap}
        self._admin = confluent_admin(merge(self._config, defaults=_QUIET, required=self._required))

    def topics(self) -> list[str]:
        """Return the names of all visible topics without Kafka's internal ones, sorted.

        Raises:
            BrokerUnavailableError: no broker answered within 30 s.
        """
        try:
            found = self._admin.list_topics(timeout=_TIMEOUT_S).topics
        except KafkaException as error:
            raise self._to_cluster_error(error, "the topics") from error
        return sorted(name for name in found if not name.startswith("__"))

    def retention_ms(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the retention of each of these topics in ms; -1: unlimited.

        A topic that does not exist is left out, and one whose settings the client may not read (DescribeConfigs).

        Raises:
            BrokerUnavailableError, NotAuthorizedError: as `bounds`.
        """
        found = provision.read_topics(self._admin, topics, timeout_s=_TIMEOUT_S)
        return {topic: int(state.config["retention.ms"]) for topic, state in found.items() if state.config}

    def is_compacted(self, topic: str) -> bool:
        """Return whether a topic is compacted; False also if it does not exist, or its settings may not be read.

        Raises:
            BrokerUnavailableError, NotAuthorizedError: as `bounds`.
        """
        state = provision.read_topics(self._admin, [topic], timeout_s=_TIMEOUT_S).get(topic)
        return state is not None and is_compacted(state.config)

    def bounds(self, topics: Iterable[str]) -> list[PartitionBounds]:
        """Resolve the bounds of every partition of these topics, from the earliest to the last stable offset.

        The end offsets are read topic by topic, in the given order. A caller that needs a consistent cut passes the
        topics in the order in which messages travel: source topics before retry and dead-letter topics.

        Raises:
            TopicMissingError: one of them does not exist.
            BrokerUnavailableError: a broker did not answer within 30 s.
            NotAuthorizedError: the client lacks a permission (Describe on the topic).
        """
        resolved: list[PartitionBounds] = []
        for topic in dict.fromkeys(topics):
            try:
                found = self._admin.describe_topics(TopicCollection([topic]), request_timeout=_TIMEOUT_S)[topic]
                description = answer_of(found, _TIMEOUT_S)
                partitions = [TopicPartition(topic, each.id) for each in description.partitions]
                earliest = self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
                ends = self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
            except KafkaException as error:
                raise self._to_cluster_error(error, topic) from error
            topic_id = str(description.topic_id)
            resolved += [
                PartitionBounds(*key, topic_id, earliest[key], earliest[key], end) for key, end in sorted(ends.items())
            ]
        return resolved

    def groups(self) -> list[str]:
        """Return the names of all visible consumer groups, sorted.

        Raises:
            BrokerUnavailableError, NotAuthorizedError: as `bounds`.
        """
        try:
            return listed_groups(self._admin, _TIMEOUT_S)
        except KafkaException as error:
            raise self._to_cluster_error(error, "the consumer groups") from error

    def committed(self, group: str, topics: Collection[str]) -> dict[TopicPartitionKey, int]:
        """Return the committed positions of a group on these topics: (topic, partition) to the next offset to read.

        Partitions without a commit, and topics that do not exist, are left out.

        Raises:
            BrokerUnavailableError, NotAuthorizedError: as `bounds`.
        """
        required = {**self._required, "group.id": group, "enable.auto.commit": False}
        consumer = confluent_clients().consumer(merge(self._config, defaults=_QUIET, required=required))
        try:
            found = group_positions(consumer, visible_partitions(consumer, _TIMEOUT_S, topics), _TIMEOUT_S)
        except KafkaException as error:
            raise self._to_cluster_error(error, f"the group {group}") from error
        finally:
            consumer.close()
        return {TopicPartitionKey.of(each): each.offset for each in found}

    def ends(self, partitions: Iterable[TopicPartitionKey], isolation: IsolationLevel) -> dict[TopicPartitionKey, int]:
        """Return the current end of each partition: the last stable offset, or for `READ_UNCOMMITTED` the very last.

        Raises:
            TopicMissingError, BrokerUnavailableError, NotAuthorizedError: as `bounds`.
        """
        requested = [TopicPartition(topic, partition) for topic, partition in partitions]
        try:
            return self._offsets(requested, OffsetSpec.latest(), isolation)  # type: ignore[no-untyped-call]
        except KafkaException as error:
            raise self._to_cluster_error(error, "the ends of topics") from error

    def newest(self, partitions: Iterable[TopicPartitionKey]) -> dict[str, dt.datetime]:
        """Return the time of the newest record of each topic; absent: it has none, or Kafka is older than 3.0."""
        spec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
        asked = dict.fromkeys(itertools.starmap(TopicPartition, partitions), spec)
        newest_ms: dict[str, int] = {}
        for key, answer in self._admin.list_offsets(asked, request_timeout=_TIMEOUT_S).items():
            with suppress(KafkaException):  # it is no reason to land nothing
                newest_ms[key.topic] = max(newest_ms.get(key.topic, -1), answer_of(answer, _TIMEOUT_S).timestamp)
        return {topic: dt.datetime.fromtimestamp(at / 1_000, dt.UTC) for topic, at in newest_ms.items() if at >= 0}

    def _offsets(
        self,
        partitions: Sequence[TopicPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartitionKey, int]:
        answers = self._admin.list_offsets(
            dict.fromkeys(partitions, spec), isolation_level=isolation, request_timeout=_TIMEOUT_S
        )
        return {TopicPartitionKey.of(key): answer_of(answer, _TIMEOUT_S).offset for key, answer in answers.items()}

    def _to_cluster_error(self, error: KafkaException, what: str) -> ClusterError:
        cause: KafkaError = error.args[0]
        if cause.code() in MISSING:
            return TopicMissingError(f"no such topic at {self._bootstrap}: {what}")
        if cause.code() in DENIED | NO_LOGIN:
            return NotAuthorizedError(
                f"no permission for {what} at {self._bootstrap}: {cause.str()}; the jobs need Describe and Read"
            )
        return BrokerUnavailableError(f"{self._bootstrap} did not answer a request for {what}: {cause.str()}")


def read_batch(
    spark: SparkSession,
    bootstrap: str,
    bounds: Sequence[PartitionBounds],
    *,
    kafka: Mapping[str, str] | None = None,
    min_tasks: int | None = None,
    max_records_per_task: int | None = 500_000,
    may_lose_records: bool = False,
) -> DataFrame:
    """Return a frame of exactly these offsets, so that every action on it sees the same rows.

    Args:
        spark: a session with the Kafka connector.
        bootstrap: addresses of the brokers.
        bounds: every partition with its start and end, as `Cluster.bounds` resolves them; at least one.
        kafka: settings of Spark's Kafka client (Java), for example `{"security.protocol": "SASL_SSL"}`; None: none.
        min_tasks: approximate minimum number of tasks; None: one task for each partition or piece of one.
        max_records_per_task: largest number of offsets for one task; None: no limit.
        may_lose_records: whether Spark skips what retention deletes while it reads; else the job fails.

    Returns:
        Spark's columns: key, value, topic, partition, offset, timestamp, timestampType, headers.

    Raises:
        ConfigError: there are no bounds, or a start is not between the earliest offset and the end; or `kafka` sets the
            group, the isolation level or the brokers, which the jobs decide: Spark's reader is in no group, and reads
            committed records only.

    Thread-safety: as the session. Nothing is read before an action.
    """
    if not bounds:
        raise ConfigError("no partitions to read: name at least one topic")
    wrong = next((each for each in bounds if not each.earliest <= each.start <= each.end), None)
    if wrong is not None:
        raise ConfigError(
            f"{wrong.topic}/{wrong.partition} cannot be read from {wrong.start} to {wrong.end}: "
            f"its first offset is {wrong.earliest}"
        )
    options = _options(bootstrap, kafka)
    options["assign"] = offsets_json({TopicPartitionKey.of(each): each.partition for each in bounds}, as_list=True)
    options["startingOffsets"] = offsets_json({TopicPartitionKey.of(each): each.start for each in bounds})
    options["endingOffsets"] = offsets_json({TopicPartitionKey.of(each): each.end for each in bounds})
    options["failOnDataLoss"] = str(not may_lose_records).lower()
    if min_tasks is not None:
        options["minPartitions"] = str(min_tasks)
    if max_records_per_task is not None:
        options["maxRecordsPerPartition"] = str(max_records_per_task)
    return spark.read.format("kafka").options(**options).load()


def _options(bootstrap: str, kafka: Mapping[str, str] | None) -> dict[str, str]:
    """Return the options of Spark's Kafka source that every read needs.

    The user's settings override ours of 5,000 records a poll (Kafka: 500), and 4 MiB a partition and fetch (Kafka: 1).
    """
    given = dict(kafka or {})
    for name in ("group.id", "isolation.level", "bootstrap.servers"):
        if name in given:
            raise ConfigError(f"{name} cannot be set for Spark's Kafka client: the job sets it")
    return {
        **{f"kafka.{name}": value for name, value in {**_FETCH_SETTINGS, **given}.items()},
        "kafka.bootstrap.servers": bootstrap,
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
    }


def since(bounds: Sequence[PartitionBounds], starts: Mapping[TopicPartitionKey, int]) -> list[PartitionBounds]:
    """Return the bounds with other starts; a partition that `starts` does not name keeps its own.

    A start before the earliest offset is moved to the earliest offset, and a start after the end to the end.
    """
    return [
        replace(each, start=min(each.end, max(each.earliest, starts.get(TopicPartitionKey.of(each), each.start))))
        for each in bounds
    ]


def offsets_json(values: Mapping[TopicPartitionKey, int], *, as_list: bool = False) -> str:
    """Format one number for each partition as JSON for Spark's Kafka options.

    Args:
        values: (topic, partition) to number.
        as_list: whether to list the numbers without the partitions, as the option `assign` needs them.
    """
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), value in values.items():
        nested.setdefault(topic, {})[str(partition)] = value
    return json.dumps({topic: list(found.values()) for topic, found in nested.items()} if as_list else nested)

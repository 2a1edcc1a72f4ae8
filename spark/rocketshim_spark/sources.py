"""Reading topics of Kafka: the same rows for every action on one frame.

Spark's batch source resolves `latest` in each task, on the executor. A count and a write of one frame are then two
different reads, a task that is tried again may see more than the first try, and no arithmetic over topics can hold. So
here the bounds of every partition are resolved once, on the driver, and given to Spark in numbers:

* the end is the last *stable* offset (`read_committed`): records of an open transaction, and all behind them, belong to
  a later read; aborted ones to none;
* the start is what the caller says, or the earliest offset there is;
* every partition is named (`assign`), so that one added meanwhile changes nothing.

Offsets are places, not counts: control records and compaction leave holes. Nothing here subtracts one from another to
tell how many records there are.

What retention deletes between resolving and reading fails the job (`failOnDataLoss`), it is never skipped.

A topic of delay queues is skewed by nature: most retries wait in a few partitions. `max_records_per_task` splits the
long ones by offsets, `min_tasks` asks for so many pieces over all. Nothing of ours runs in the executors.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from pyspark.sql import DataFrame, SparkSession

from rocketshim.kafka.positions import group_positions
from rocketshim_topics import provision
from rocketshim_topics.errors import (
    BrokerUnavailableError,
    ClusterError,
    ConfigError,
    NotAuthorizedError,
    TopicMissingError,
)
from rocketshim_topics.kafka_codes import DENIED, MISSING, NO_LOGIN

__all__ = ["Cluster", "PartitionBounds", "offsets_json", "read_batch", "since", "spark_options"]

_TIMEOUT_S: Final = 30.0
# Spark's reader waits while it fetches and fetches nothing while it writes: bigger answers, fewer waits. Of 2 M records
# written as Parquet the wall time fell by 16 % (docs/performance.md).
_FETCH_SETTINGS: Final[Mapping[str, str]] = {"max.poll.records": "5000", "max.partition.fetch.bytes": str(4 * 2**20)}


@dataclass(frozen=True, slots=True, order=True)
class PartitionBounds:
    """One partition as it was at one moment.

    Attributes:
        topic: physical name.
        partition: from 0.
        topic_id: Kafka's id of the topic; another one under the same name is another topic.
        earliest: first offset that retention has left.
        start: first offset to read.
        end: offset behind the last stable one: reading ends before it. Not less than `start`.
    """

    topic: str
    partition: int
    topic_id: str
    earliest: int
    start: int
    end: int


class Cluster:
    """What the driver asks the cluster before Spark reads.

    Args:
        bootstrap: addresses of the brokers.
        config: further librdkafka settings, for example of security; None: none.

    Raises:
        ConfigError: librdkafka refuses a setting.

    Thread-safety: any thread.
    """

    def __init__(self, bootstrap: str, config: Mapping[str, Any] | None = None) -> None:
        self._bootstrap = bootstrap
        self._config = {"log_level": 0, **(config or {}), "bootstrap.servers": bootstrap}
        try:
            self._admin = AdminClient(self._config)
        except KafkaException as error:
            raise ConfigError(f"the driver's Kafka client refuses its settings: {error.args[0].str()}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to do: librdkafka's client ends with the object."""

    def topics(self) -> list[str]:
        """The names of all topics that may be seen, Kafka's internal ones left out, sorted.

        Raises:
            BrokerUnavailableError: no broker answered within 30 s.
        """
        try:
            found = self._admin.list_topics(timeout=_TIMEOUT_S).topics
        except KafkaException as error:
            raise self._translated(error, "the topics") from error
        return sorted(name for name in found if not name.startswith("__"))

    def retention_ms(self, topics: Iterable[str]) -> dict[str, int]:
        """How long each of these topics keeps records, in ms; -1: for ever.

        A topic that does not exist, or whose settings may not be read (DescribeConfigs), is absent.

        Raises:
            BrokerUnavailableError, NotAuthorizedError: as `bounds`.
        """
        found = provision.read_topics(self._admin, topics, timeout_s=_TIMEOUT_S)
        return {topic: int(state.config["retention.ms"]) for topic, state in found.items() if state.config}

    def bounds(self, topics: Iterable[str]) -> list[PartitionBounds]:
        """Resolve the bounds of every partition of these topics, all of it from earliest to the last stable offset.

        Ends are asked for topic by topic in the order given: who needs a cut across topics (the source before what its
        messages become) gives them in the order in which messages travel.

        Raises:
            TopicMissingError: one of them does not exist.
            BrokerUnavailableError: a broker did not answer within 30 s.
            NotAuthorizedError: a right is missing (Describe on the topic).
        """
        resolved: list[PartitionBounds] = []
        for topic in dict.fromkeys(topics):
            try:
                found = self._admin.describe_topics(TopicCollection([topic]), request_timeout=_TIMEOUT_S)[topic]
                description = found.result(_TIMEOUT_S)
                partitions = [TopicPartition(topic, each.id) for each in description.partitions]
                earliest = self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
                ends = self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
            except KafkaException as error:
                raise self._translated(error, topic) from error
            topic_id = str(description.topic_id)
            resolved += [
                PartitionBounds(topic, number, topic_id, earliest[topic, number], earliest[topic, number], end)
                for (_, number), end in sorted(ends.items())
            ]
        return resolved

    def groups(self) -> list[str]:
        """The names of all consumer groups that may be seen, sorted.

        Raises:
            BrokerUnavailableError, NotAuthorizedError: as `bounds`.
        """
        try:
            found = self._admin.list_consumer_groups(request_timeout=_TIMEOUT_S).result(_TIMEOUT_S)
        except KafkaException as error:
            raise self._translated(error, "the consumer groups") from error
        if found.errors:  # of the groups of one broker; without their positions much would look open
            raise self._translated(found.errors[0], "the consumer groups")
        return sorted(each.group_id for each in found.valid)

    def committed(self, group: str, topics: Collection[str]) -> dict[tuple[str, int], int]:
        """The committed positions of a group on these topics: (topic, partition) to the next offset it will read.

        Partitions without a commit, and topics that do not exist, are absent.

        Raises:
            BrokerUnavailableError, NotAuthorizedError: as `bounds`.
        """
        consumer = Consumer({**self._config, "group.id": group, "enable.auto.commit": False})
        try:
            found = group_positions(consumer, _TIMEOUT_S, topics)
        except KafkaException as error:
            raise self._translated(error, f"the group {group}") from error
        finally:
            consumer.close()
        return {(each.topic, each.partition): each.offset for each in found}

    def ends(self, partitions: Iterable[tuple[str, int]], isolation: IsolationLevel) -> dict[tuple[str, int], int]:
        """The end of each partition now: `READ_COMMITTED` behind the last stable offset, else behind the last of all.

        Raises:
            TopicMissingError, BrokerUnavailableError, NotAuthorizedError: as `bounds`.
        """
        requested = [TopicPartition(topic, partition) for topic, partition in partitions]
        try:
            return self._offsets(requested, OffsetSpec.latest(), isolation)  # type: ignore[no-untyped-call]
        except KafkaException as error:
            raise self._translated(error, "the ends of topics") from error

    def _offsets(
        self,
        partitions: Sequence[TopicPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[tuple[str, int], int]:
        answers = self._admin.list_offsets(
            dict.fromkeys(partitions, spec), isolation_level=isolation, request_timeout=_TIMEOUT_S
        )
        return {(key.topic, key.partition): answer.result(_TIMEOUT_S).offset for key, answer in answers.items()}

    def _translated(self, error: KafkaException, what: str) -> ClusterError:
        cause: KafkaError = error.args[0]
        if cause.code() in MISSING:
            return TopicMissingError(f"there is no topic {what} at {self._bootstrap}")
        if cause.code() in DENIED | NO_LOGIN:
            return NotAuthorizedError(f"{what} at {self._bootstrap}: {cause.str()}; the jobs need Describe and Read")
        return BrokerUnavailableError(f"{self._bootstrap} did not answer about {what}: {cause.str()}")


def spark_options(bootstrap: str, kafka: Mapping[str, str] | None = None) -> dict[str, str]:
    """The options that every read of ours has.

    Args:
        bootstrap: addresses of the brokers.
        kafka: settings of the Java client, for example `{"security.protocol": "SASL_SSL"}`; None: none. Where they do
            not say otherwise, up to 5,000 records a poll (Kafka: 500) and 4 MiB a fetch of a partition (Kafka: 1 MiB).

    Raises:
        ConfigError: `kafka` names a group or an isolation level: Spark's readers are in no group, and read what is
            committed.
    """
    given = dict(kafka or {})
    for name in ("group.id", "isolation.level", "bootstrap.servers"):
        if name in given:
            raise ConfigError(f"{name} cannot be set for Spark's reader: it is decided by the job")
    return {
        **{f"kafka.{name}": value for name, value in {**_FETCH_SETTINGS, **given}.items()},
        "kafka.bootstrap.servers": bootstrap,
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
        "failOnDataLoss": "true",
    }


def read_batch(
    spark: SparkSession,
    bootstrap: str,
    bounds: Sequence[PartitionBounds],
    *,
    kafka: Mapping[str, str] | None = None,
    min_tasks: int | None = None,
    max_records_per_task: int | None = 500_000,
) -> DataFrame:
    """A frame over exactly these offsets: any number of actions on it see the same rows.

    Args:
        spark: a session with the Kafka connector.
        bootstrap: addresses of the brokers.
        bounds: every partition with its start and end, as `Cluster.bounds` resolves them; at least one.
        kafka: settings of the Java client; None: none.
        min_tasks: split into at least about so many tasks; None: one task for each partition and piece of it.
        max_records_per_task: most offsets that one task reads; None: no limit.

    Returns:
        Spark's columns: key, value, topic, partition, offset, timestamp, timestampType, headers.

    Raises:
        ConfigError: no bounds, or a start that is behind its end.

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
    options = spark_options(bootstrap, kafka)
    options["assign"] = offsets_json({(each.topic, each.partition): each.partition for each in bounds}, as_list=True)
    options["startingOffsets"] = offsets_json({(each.topic, each.partition): each.start for each in bounds})
    options["endingOffsets"] = offsets_json({(each.topic, each.partition): each.end for each in bounds})
    if min_tasks is not None:
        options["minPartitions"] = str(min_tasks)
    if max_records_per_task is not None:
        options["maxRecordsPerPartition"] = str(max_records_per_task)
    return spark.read.format("kafka").options(**options).load()


def since(bounds: Sequence[PartitionBounds], starts: Mapping[tuple[str, int], int]) -> list[PartitionBounds]:
    """The same ends with later starts; a partition that `starts` does not name keeps its own.

    A start that retention has overtaken is moved to the earliest offset, one behind the end to the end.
    """
    return [
        replace(each, start=min(each.end, max(each.earliest, starts.get((each.topic, each.partition), each.start))))
        for each in bounds
    ]


def offsets_json(values: Mapping[tuple[str, int], int], *, as_list: bool = False) -> str:
    """Numbers of partitions as Spark's Kafka options want them.

    Args:
        values: (topic, partition) to number.
        as_list: the values alone, as the option `assign` wants them.
    """
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), value in values.items():
        nested.setdefault(topic, {})[str(partition)] = value
    return json.dumps({topic: list(found.values()) for topic, found in nested.items()} if as_list else nested)

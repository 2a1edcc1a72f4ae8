"""Settings of the worker."""

from typing import Self

from pydantic import Field, model_validator

from rocketshim.settings import DAY_MS, MIB, ConnectionSettings
from rocketshim_topics.names import TopicNames

__all__ = ["WorkerSettings"]

_WORKER_BYTES = 192 * MIB  # a worker without records: the program, and what its consumer has fetched


class WorkerSettings(ConnectionSettings):
    """Settings of the delay-redelivery worker.

    Attributes:
        allow: logical topic names that the worker may deliver to, or prefixes with one trailing `*`. `%RETRY%g` needs
            no entry. There is no default: `*` lets the worker write to every topic.
        group: consumer group. None: `rmq.sched` of the namespace. Another name delivers everything again and needs
            `replay_everything`.
        replay_everything: confirms that another group name is intended.
        create_topics: create the schedule topics and the parking topic if they are missing.
        commit_interval_ms: how often confirmed offsets are committed, in ms. Default 200.
        max_delay_ms: a record whose due time is further away than this is parked, in ms. Default 40 days.
        memory_bytes: memory that the process stays below, in bytes, at least 256 MiB. Default 448 MiB. All queues share
            what the program and its Kafka clients leave (`buffer_bytes`); if that is used up, only a queue without a
            record fetches on. With more than 100 queues of large messages it needs more, see docs/capacity.md.
        prefetch_count: waiting records that are buffered per partition. A twentieth of it while the next record is due
            in more than 2 s. Default 5,000.
        prefetch_bytes: bytes of waiting records that are buffered per partition. Also the maximum number of bytes taken
            from one partition at a time. Default 8 MiB.
        drain_count: maximum number of records taken from one partition at a time. Default 1,000.
        max_in_flight_count: maximum number of records sent and not yet confirmed. Default 20,000. Not used with
            `exactly_once`: a transaction has 5,000 records at most.
        max_in_flight_bytes: maximum bytes of records sent and not yet confirmed. Default 64 MiB; at most a third of
            `buffer_bytes`, which is 42 MiB by default. Not used with
            `exactly_once`.
        target_patience_ms: how long a target may take to accept a record before the record is re-appended, in ms. It
            takes longer while the brokers are slow, and while they throttle the worker. Default 2 s.
        target_tries: how many times a record is re-appended before it is parked. Default 5.
        hop_timeout_ms: how long librdkafka tries to store a hop, in ms. Default 30 s.
        exactly_once: consume and produce in Kafka transactions. Default: at least once.
        instance: part of the `transactional.id` that distinguishes the workers of one group. With a stable name, a
            restarted worker immediately aborts the transaction that it left open. None: host name and a random part.
            Used with `exactly_once` only.
        transaction_timeout_ms: the broker aborts a transaction after this time, in ms. Each transactional call may take
            two thirds of it, so it must be longer than a broker takes to fence a dead broker (9 s by default). Default
            15 s.
        stop_timeout_ms: how long a stop waits for hops in flight, in ms. Default 10 s.
    """

    allow: tuple[str, ...] = Field(min_length=1)
    group: str | None = None
    replay_everything: bool = False
    create_topics: bool = True
    commit_interval_ms: int = Field(default=200, ge=1)
    max_delay_ms: int = Field(default=40 * DAY_MS, ge=1)
    memory_bytes: int = Field(default=448 * MIB, ge=256 * MIB)
    prefetch_count: int = Field(default=5_000, ge=1)
    prefetch_bytes: int = Field(default=8 * MIB, ge=1)
    drain_count: int = Field(default=1_000, ge=1)
    max_in_flight_count: int = Field(default=20_000, ge=1)
    max_in_flight_bytes: int = Field(default=64 * MIB, ge=1)
    target_patience_ms: int = Field(default=2_000, ge=1)
    target_tries: int = Field(default=5, ge=0)
    hop_timeout_ms: int = Field(default=30_000, ge=100)
    exactly_once: bool = False
    instance: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,120}$")
    transaction_timeout_ms: int = Field(default=15_000, ge=1_000)
    stop_timeout_ms: int = Field(default=10_000, ge=0)

    @property
    def buffer_bytes(self) -> int:
        """How many bytes of records all queues may hold together: a record in flight is there a second time."""
        return (self.memory_bytes - _WORKER_BYTES) // 2

    @model_validator(mode="after")
    def _check_group(self) -> Self:
        if self.group not in {None, TopicNames(self.namespace).worker_group} and not self.replay_everything:
            raise ValueError(
                f"group {self.group!r} is not the worker group of the namespace, so it would deliver everything in the "
                "schedule topic again; leave group out, or set replay_everything if you intend that"
            )
        return self

"""Settings of the shells: frozen, checked when made, unknown names refused.

Durations end in `_ms`, sizes in `_bytes`, counts in nothing or `_count`. Names are RocketMQ's in snake case where
RocketMQ has the setting. Every object can be printed: secrets in `client` are hidden.
"""

from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from rocketshim.client_config import mask
from rocketshim.errors import ConfigError
from rocketshim_topics.levels import DelayLevels

__all__ = ["ConnectionSettings", "ProducerSettings", "Settings", "WorkerSettings"]

_DAY_MS = 86_400_000


class Settings(BaseModel):
    """What all settings objects share: frozen, unknown names are errors, errors are `ConfigError`."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, validate_default=True)

    @classmethod
    def make(cls, **values: Any) -> Self:
        """A settings object from keyword arguments.

        Raises:
            ConfigError: a name that is no setting, or a value out of its range; it names all of them.
        """
        try:
            return cls(**values)
        except ValidationError as error:
            found = "; ".join(
                f"{'.'.join(map(str, item['loc'])) or 'settings'}={_shown(item)}: {item['msg']}"
                for item in error.errors(include_url=False)
            )
            raise ConfigError(f"{cls.__name__}: {found}") from error


def _shown(item: Any) -> str:
    name = str(item["loc"][-1]) if item["loc"] else ""
    return str(mask({name: item.get("input")})[name]) if name else "…"


def _levels(value: Any) -> Any:
    return DelayLevels.parse(value) if isinstance(value, str) else value


Levels = Annotated[DelayLevels, BeforeValidator(_levels)]


class ConnectionSettings(Settings):
    """How a shell reaches the cluster.

    Attributes:
        bootstrap: `host:port` of at least one broker, comma separated.
        namespace: prefix of every shim topic, `""` for none.
        delay_levels: the level table; text as RocketMQ writes it.
        client: further librdkafka settings (TLS, SASL, …), passed through and checked.
        allow_code_settings: let settings through that run code; see `rocketshim.client_config`.
    """

    bootstrap: str = Field(min_length=1)
    namespace: str = ""
    delay_levels: Levels = Field(default_factory=DelayLevels.default)
    client: dict[str, Any] = Field(default_factory=dict)
    allow_code_settings: bool = False

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in type(self).model_fields}
        values["client"] = mask(self.client)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    __str__ = __repr__


class ProducerSettings(ConnectionSettings):
    """Settings of a `Producer`.

    Attributes:
        max_delay_ms: longest delay of a message, in ms. Default 40 days.
        max_message_bytes: largest record that may be sent, headers included, in bytes. Default 4 MiB (RocketMQ's
            limit of a body). Room for the shim's headers of later hops is kept inside it.
        delivery_timeout_ms: how long librdkafka tries before it reports failure, in ms. Default 30 s.
        linger_ms: how long a batch waits for more, in ms. Default 5.
    """

    max_delay_ms: int = Field(default=40 * _DAY_MS, ge=1)
    max_message_bytes: int = Field(default=4_194_304, ge=1_024)
    delivery_timeout_ms: int = Field(default=30_000, ge=100)
    linger_ms: float = Field(default=5.0, ge=0)


class WorkerSettings(ConnectionSettings):
    """Settings of the delay-redelivery worker.

    Attributes:
        allow: logical topic names the worker may deliver to, or prefixes with one trailing `*`. `%RETRY%g` needs no
            entry. There is no default: a worker that may write anywhere must be told so with `*`.
        group: consumer group; None: `rmq.sched` of the namespace. Any other name delivers everything again and needs
            `replay_everything`.
        replay_everything: that another group name is meant.
        create_topics: create the schedule and parking topics where they are missing.
        commit_interval_ms: how often confirmed positions are committed, in ms. Default 200.
        probe_interval_ms: how often each leader's clock is probed, in ms. Default 5 s.
        prefetch_count: records held per partition that wait. Default 1,000.
        prefetch_bytes: bytes of bodies held per partition that wait. Default 1 MiB.
        drain_count: most records taken from one partition in one go. Default 1,000.
        max_in_flight_count: most records sent and not confirmed. Default 20,000.
        target_patience_ms: how long a target may take to accept a record before the record is re-appended, in ms.
            Default 2 s.
        target_tries: how many times a record is re-appended before it is parked. Default 5.
        hop_timeout_ms: how long librdkafka tries to store a hop, in ms. Default 30 s.
        stop_timeout_ms: how long a stop waits for hops in flight, in ms. Default 10 s.
    """

    allow: tuple[str, ...] = Field(min_length=1)
    group: str | None = None
    replay_everything: bool = False
    create_topics: bool = True
    commit_interval_ms: int = Field(default=200, ge=1)
    probe_interval_ms: int = Field(default=5_000, ge=10)
    prefetch_count: int = Field(default=1_000, ge=1)
    prefetch_bytes: int = Field(default=1_048_576, ge=1)
    drain_count: int = Field(default=1_000, ge=1)
    max_in_flight_count: int = Field(default=20_000, ge=1)
    target_patience_ms: int = Field(default=2_000, ge=1)
    target_tries: int = Field(default=5, ge=0)
    hop_timeout_ms: int = Field(default=30_000, ge=100)
    stop_timeout_ms: int = Field(default=10_000, ge=0)

    @model_validator(mode="after")
    def _check_group(self) -> Self:
        if self.group is not None and not self.replay_everything:
            raise ValueError(
                f"another worker group than the namespace's own ({self.group!r}) delivers everything in the schedule "
                "topic again; leave it out, or say replay_everything if that is meant"
            )
        return self

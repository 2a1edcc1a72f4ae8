"""What all settings have in common: frozen, checked when they are made, unknown names refused.

The modules in this package have the settings of producers, consumers and the worker; none loads another one.

Names of durations end in `_ms` and names of sizes in `_bytes`. Names of counts have no suffix or end in `_count`. Where
RocketMQ has the setting, the name is RocketMQ's in snake case. Every object can be printed: secrets in `client` are
hidden.

**An option that does not exist** is refused, with what to write instead. Every part that takes options by name asks
`advice`: settings, listeners, messages, profiles of the command line. A typo gets the option that it resembles. A name
that belongs elsewhere (to another class, or to Kafka) gets its place.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from rocketshim.errors import ConfigError
from rocketshim.kafka.client_config import check_bootstrap, client_settings, kafka_hint, mask, merge
from rocketshim_topics.levels import DelayLevels

__all__ = [
    "BOOTSTRAP_VARIABLE",
    "DAY_MS",
    "MIB",
    "ConnectionSettings",
    "Levels",
    "Settings",
    "advice",
    "check_options",
    "place_of",
    "with_environment",
]

DAY_MS: Final = 86_400_000
MIB: Final = 1_048_576

_TYPO: Final = 0.85
"""From this similarity on, a name is a typo, and not the name of something else."""

_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])[A-Z]")


class Settings(BaseModel):
    """Base of all settings: they are frozen, an unknown name is an error, and every error is a `ConfigError`."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, validate_default=True, hide_input_in_errors=True
    )

    if not TYPE_CHECKING:  # type checkers see the constructor that pydantic describes to them

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                found = "; ".join(_error_text(item, type(self)) for item in error.errors(include_url=False))
                raise ConfigError(f"{type(self).__name__}: {found}") from None  # it has all that pydantic says

    @classmethod
    def make(cls, **values: Any) -> Self:
        """Make a settings object from keyword arguments whose names a type checker does not know.

        Raises:
            ConfigError: a name is not a setting, or a value is out of its range. The message lists all of them.
        """
        return cls(**values)

    @field_validator("*", mode="before")
    @classmethod
    def _check_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and cls.model_fields[info.field_name or ""].annotation in {int, float, int | None}:
            raise ValueError("give a number")
        return value

    @classmethod
    def shown(cls, field: str) -> str:
        """Return the name by which users know a field."""
        return field

    @classmethod
    def place_of(cls, name: str) -> str:
        """Return where a name belongs that is not a setting of this class; `""` if it is known nowhere."""
        return place_of(name)


_WAYS_OUT: Final[Mapping[str, str]] = {
    "bootstrap": ": give host:port of a broker, or set ROCKETSHIM_BOOTSTRAP (profiles count for commands only)"
}


def _error_text(item: Any, settings: type[Settings]) -> str:
    """Describe one pydantic error in our own words: the setting, its value, the rule."""
    field = ".".join(map(str, item["loc"]))
    name = settings.shown(field) if field else ""
    match item["type"]:
        case "missing":
            return f"{name} is required{_WAYS_OUT.get(field, '')}"
        case "extra_forbidden":
            hint = advice(field, settings.model_fields, settings.place_of, settings.shown)
            return f"{name}={_safe_value(item)}: there is no such setting{hint and f'; {hint}'}"
        case "string_too_short" if not item["input"]:
            return f"{name} is empty; it is required"
        case "value_error":
            why = str(item["ctx"]["error"])
            return f"{name}={_safe_value(item)}: {why}" if name else why
        case _:
            return f"{name}={_safe_value(item)}: {item['msg']}"


def _safe_value(item: Any) -> str:
    """Return the refused value as text, with secrets hidden."""
    name = str(item["loc"][-1]) if item["loc"] else ""
    if not {"client", "producer"}.isdisjoint(item["loc"]):
        return "…"  # they may contain passwords
    return str(mask({name: item.get("input")})[name]) if name else "…"


def _levels(value: Any) -> Any:
    return DelayLevels.parse(value) if isinstance(value, str) else value


Levels = Annotated[DelayLevels, BeforeValidator(_levels)]


BOOTSTRAP_VARIABLE: Final = "ROCKETSHIM_BOOTSTRAP"
_CLIENT_VARIABLE: Final = "ROCKETSHIM_CLIENT"
_SHARED_VARIABLES: Final[Mapping[str, str]] = {
    "namespace": "ROCKETSHIM_NAMESPACE",
    "delay_levels": "ROCKETSHIM_DELAY_LEVELS",
}


def with_environment(values: Mapping[str, Any], *, names: Collection[str]) -> dict[str, Any]:
    """Return settings with those that are not given from the environment variables that the commands read, too.

    An empty variable counts as not set. `ROCKETSHIM_CLIENT` counts only if the brokers are those of
    `ROCKETSHIM_BOOTSTRAP`: other brokers must not get its passwords. `names` are the settings that may be missing.

    Raises:
        ConfigError: `ROCKETSHIM_CLIENT` is neither a list of pairs nor of readable files.
    """
    found = dict(values)
    for name, variable in _SHARED_VARIABLES.items():
        if name in names and name not in found and (value := os.environ.get(variable)):
            found[name] = value
    bootstrap = os.environ.get(BOOTSTRAP_VARIABLE)
    if not bootstrap or "bootstrap" not in names:
        return found
    found.setdefault("bootstrap", bootstrap)
    if "client" not in found and found["bootstrap"] == bootstrap and (client := os.environ.get(_CLIENT_VARIABLE)):
        found["client"] = client_settings(client.split(), _CLIENT_VARIABLE)
    return found


class ConnectionSettings(Settings):
    """How a producer, consumer or worker connects to the cluster.

    What is not given comes from the environment variables of the commands: `ROCKETSHIM_BOOTSTRAP`,
    `ROCKETSHIM_NAMESPACE`, `ROCKETSHIM_DELAY_LEVELS`, and, with the brokers of the first, `ROCKETSHIM_CLIENT`.

    Attributes:
        bootstrap: `host:port` of at least one broker, separated by commas.
        namespace: prefix of every topic that rocketshim creates; `""` for none.
        delay_levels: the table of delay levels, or text in RocketMQ's notation.
        client: further librdkafka settings (TLS, SASL, …). They are checked and passed on.
        allow_code_settings: accept settings that run code; see `rocketshim.kafka.client_config`.
    """

    bootstrap: str = Field(min_length=1)
    namespace: str = ""
    delay_levels: Levels = Field(default_factory=DelayLevels.default)
    client: dict[str, Any] = Field(default_factory=dict)
    allow_code_settings: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_environment(cls, values: Any) -> Any:
        return with_environment(values, names=cls.model_fields) if isinstance(values, Mapping) else values

    @field_validator("bootstrap")
    @classmethod
    def _check_bootstrap(cls, value: str) -> str:
        return check_bootstrap(value)

    @classmethod
    def given(cls, settings: object, values: Mapping[str, Any], **connection: str | None) -> Self:
        """Return the settings of a client, which are given as one object or as arguments.

        Raises:
            ConfigError: both are given, or an object of another class, or see `make`.
        """
        owner = cls.__name__.removesuffix("Settings")
        if any(isinstance(value, Settings) for value in connection.values()):
            raise ConfigError(f"{owner}: give the settings object by name: settings=...")
        if settings is None:
            return cls.make(**{name: value for name, value in connection.items() if value is not None}, **values)
        if values or any(value is not None for value in connection.values()):
            raise ConfigError(f"{owner} takes settings=, or its fields as arguments, not both")
        if not isinstance(settings, cls):
            raise ConfigError(f"{owner} takes {cls.__name__} as settings=, not {type(settings).__name__}")
        return settings

    def client_config(self, required: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the settings of a Kafka client: the defaults, then the user's, then what is required here.

        It is a consumer if `required` names its group.

        Raises:
            ConfigError: a setting of the user runs code, or has another value than is required.
        """
        return merge(
            self.client,
            defaults=defaults or {},
            required={"bootstrap.servers": self.bootstrap, **required},
            allow_code_settings=self.allow_code_settings,
        )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield what `repr`, `str` and rich print, with secrets hidden."""
        for name, value in super().__repr_args__():
            yield name, mask(value) if name == "client" else value


_PLACES: Final = (
    ("is a setting of the consumer: PushConsumer(…, {}=…)", "rocketshim.settings.consumer:PushConsumerSettings"),
    ("is an option of a listener: @consumer.listener(topic, {}=…)", "rocketshim.settings.consumer:ListenerOptions"),
    ("is a setting of the producer: Producer(…, {}=…)", "rocketshim.settings.producer:ProducerSettings"),
    ("is a setting of LitePullConsumer(…, {}=…)", "rocketshim.settings.consumer:LitePullConsumerSettings"),
    ("is a setting of PullConsumer(…, {}=…)", "rocketshim.settings.consumer:PullConsumerSettings"),
    ("is an option of a message: send(topic, body, {}=…)", "rocketshim.producer.arguments:MessageOptions"),
    ("is a setting of the worker: WorkerSettings(…, {}=…)", "rocketshim.settings.worker:WorkerSettings"),
)
"""Where each option belongs, as the name of the class that has it; of an option with several places, the first one."""


def place_of(name: str) -> str:
    """Return where an option or setting belongs, for one that was given elsewhere; `""` if it is known nowhere."""
    for place, owner in _PLACES:  # a class is loaded only when there is an error to explain
        kind = resolve_name(owner)
        if name in getattr(kind, "model_fields", kind.__annotations__):
            return f"{name} {place.format(name)}"
    return kafka_hint(name)


def advice(
    name: str,
    known: Collection[str],
    elsewhere: Callable[[str], str] | None = None,
    shown: Callable[[str], str] = str,
) -> str:
    """Return what to write instead of a name that does not exist; `""` if nothing is like it.

    A name in camel case is read as snake case. `elsewhere` returns where a name belongs, or `""`; it is asked unless
    the name is a typo of a known one. `shown` returns the form in which users write a known name.

    Decides: What does the error for an option that does not exist propose? Where a name belongs: `settings.place_of`,
        and for Kafka's own `kafka.client_config.kafka_hint`.
    """
    snake = _CAPITAL.sub(lambda upper: f"_{upper[0].lower()}", name)
    typo = get_close_matches(snake, known, 1, _TYPO)
    place = elsewhere(snake) if elsewhere is not None and not typo else ""
    near = typo or get_close_matches(snake, known, 1)
    return place or (f"did you mean {shown(near[0])}?" if near else "")


def check_options(
    owner: str, given: Iterable[str], known: Collection[str], elsewhere: Callable[[str], str] | None = None
) -> None:
    """Raise a `ConfigError`, with `owner` as its subject, if one of the given options does not exist."""
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        hint = advice(unknown, known, elsewhere) or f"the options are {', '.join(sorted(known))}"
        raise ConfigError(f"{owner} has no option {unknown}: {hint}")

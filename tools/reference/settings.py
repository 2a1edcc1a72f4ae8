"""The page of settings: types, defaults and ranges from the pydantic models, meanings from their docstrings."""

import inspect
from typing import Any

import annotated_types
import griffe
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rocketshim import (
    DelayLevels,
    LitePullConsumerSettings,
    ProducerSettings,
    PullConsumerSettings,
    PushConsumerSettings,
    WorkerSettings,
)
from rocketshim.dropin.settings import ConsumerDropinSettings, ProducerDropinSettings
from rocketshim.settings import ConnectionSettings
from tools.reference.tables import table

__all__ = ["page"]

_INTRODUCTION = """\
# Settings

Settings are keyword arguments: `Producer("localhost:9092", linger_ms=20)`. You can also pass an object:
`PushConsumer(settings=PushConsumerSettings(bootstrap="localhost:9092", group="payments"))`. Settings are checked when
they are made. An unknown name or a value out of its range is a `ConfigError`, which lists everything that is wrong.

Durations end in `_ms`, sizes in `_bytes`. Where RocketMQ has the setting, the name is RocketMQ's in snake case.
"""

_MODELS: tuple[tuple[str, type[BaseModel], str], ...] = (
    ("Connection", ConnectionSettings, "Common to `Producer`, all consumers and the worker."),
    ("Producer", ProducerSettings, "`Producer`."),
    ("Push consumer", PushConsumerSettings, "`PushConsumer`, concurrent and orderly."),
    ("Lite pull consumer", LitePullConsumerSettings, "`LitePullConsumer`."),
    ("Pull consumer", PullConsumerSettings, "`PullConsumer`."),
    ("Worker", WorkerSettings, "`DelayWorker`; `rocketshim worker` sets them from its [options](../worker.md)."),
    ("Drop-in consumer", ConsumerDropinSettings, "`rocketshim.dropin.Consumer`: keys of its configuration."),
    ("Drop-in producer", ProducerDropinSettings, "`rocketshim.dropin.Producer`: keys of its configuration."),
)


def page() -> str:
    """Return the page."""
    parts = [_INTRODUCTION]
    for heading, model, about in _MODELS:
        inherited = ConnectionSettings.model_fields if ConnectionSettings in model.__mro__[1:] else {}
        meanings = _meanings(model)
        rows = [
            (*_named(name, meanings.get(name, "")), _default(field), _range(field))
            for name, field in model.model_fields.items()
            if name not in inherited
        ]
        parts += [f"## {heading}", about, table(("setting", "meaning", "default", "range"), rows)]
    return "\n\n".join(parts) + "\n"


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return the `Attributes:` section of a model's docstring."""
    docstring = griffe.Docstring(inspect.getdoc(model) or "", parser="google")
    return {
        attribute.name: attribute.description
        for section in docstring.parse(warnings=False)
        if isinstance(section, griffe.DocstringSectionAttributes)
        for attribute in section.value
    }


def _named(name: str, meaning: str) -> tuple[str, str]:
    """Return what a user writes, and the meaning. Where that is not the field's name, the meaning begins with it."""
    key, separator, rest = meaning.partition("`: ")
    return (f"{key}`", rest) if separator and key.startswith("`rocketshim.") else (f"`{name}`", meaning)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return ""
    if isinstance(value, DelayLevels):
        return "RocketMQ's table"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"`{value!r}`" if isinstance(value, str) else f"`{getattr(value, 'name', value)}`"


def _range(field: FieldInfo) -> str:
    bounds = []
    for rule in field.metadata:
        match rule:
            case annotated_types.Ge(ge=low):
                bounds.append(f"≥ {low:,}")
            case annotated_types.Le(le=high):
                bounds.append(f"≤ {high:,}")
            case _:
                pass
    return ", ".join(bounds)

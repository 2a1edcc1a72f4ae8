"""The page of the Python API: one directive of mkdocstrings for each public name, in groups."""

import ast
from pathlib import Path

from rocketshim._exports import HOMES
from tools.reference.files import ROOT

__all__ = ["page"]


_INTRODUCTION = """\
# Python API

Import all of these names from `rocketshim`. [Settings](settings.md) and [errors](errors.md) have their own pages."""

_GROUPS = {
    "Sending": ("Producer", "Message", "SendResult", "SendStatus"),
    "Consuming": (
        "PushConsumer", "MessageView", "Origin", "ConsumeStatus", "ConsumeOrderlyStatus", "RetryLater", "DeadLetter",
        "ConsumeConcurrentlyContext", "ConsumeOrderlyContext", "ConsumeFromWhere", "MessageModel", "MessageSelector",
    ),
    "Polling": ("LitePullConsumer", "PullConsumer", "PullResult", "PullStatus", "MessageQueue"),
    "Time until the next attempt": (
        "RetryPolicy", "LevelTableRetryPolicy", "ExponentialRetryPolicy", "AtLevel", "AfterDelay", "DelayLevels",
    ),
    "Hooks and metrics": (
        "ConsumeMessageHook", "ConsumeMessageContext", "ConsumeReturnType", "FilterMessageHook", "MetricsCollector",
    ),
}  # fmt: skip
"""Heading to names. Names that are in no group follow under "Further names", and settings have a page of their own."""

_TESTING = ("InMemoryKafka", "VirtualClock")


def page() -> str:
    """Return the page."""
    modules = HOMES
    grouped = {name for names in _GROUPS.values() for name in names}
    rest = tuple(name for name in modules if name not in grouped and not name.endswith("Settings"))
    parts = [_INTRODUCTION]
    for heading, names in {**_GROUPS, "Further names": rest}.items():
        parts += [f"## {heading}", *(f"::: {modules[name]}.{name}" for name in names)]
    parts += ["## Testing", "`Harness` is in `rocketshim.harness`, the others are in `rocketshim.testing`."]
    parts += ["::: rocketshim.harness.Harness"]
    parts += [
        "## asyncio and typed bodies",
        "`AsyncProducer` is in `rocketshim.aio`, codecs in `rocketshim.codecs`.",
    ]
    parts += ["::: rocketshim.aio.AsyncProducer", "::: rocketshim.codecs"]
    parts += ["## Outcomes of named timers", "These two are in `rocketshim.timers`.", "::: rocketshim.timers"]
    testing = _imports(ROOT / "shim" / "rocketshim" / "testing" / "__init__.py")
    parts += [f"::: {testing[name]}.{name}" for name in _TESTING if name in testing]
    return "\n\n".join(parts) + "\n"


def _imports(path: Path) -> dict[str, str]:
    """Return each name that a module imports, and from where. The source is read and not imported."""
    statements = ast.parse(path.read_text(encoding="utf-8")).body
    statements_from = [each for each in statements if isinstance(each, ast.ImportFrom)]
    return {alias.name: str(each.module) for each in statements_from for alias in each.names}

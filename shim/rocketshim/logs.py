"""Loggers whose calls never raise, so that no filter or handler of the user's can stop what is being logged.

A filter, a `LogRecord` factory, or a handler with its own way of failing raises out of the log call. Such an error must
not end a thread or skip the line behind the call. It is printed as `logging` prints errors of handlers, and dropped.
"""

import logging
import traceback
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

__all__ = ["SafeLogger", "safe_logger"]


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose calls never raise; only what ends a process (`SystemExit`, `KeyboardInterrupt`) passes."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Keep the `extra` of the call."""
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log as `Logger.log` does; what it raises is printed if `logging.raiseExceptions` is set."""
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the caller's line, not this one
        try:
            super().log(level, msg, *args, **kwargs)
        except Exception:  # noqa: BLE001 - the user's filters and handlers
            if logging.raiseExceptions:
                with suppress(Exception):
                    traceback.print_exc()


def safe_logger(name: str) -> SafeLogger:
    """Return the logger of that name, as one whose calls never raise."""
    return SafeLogger(logging.getLogger(name))

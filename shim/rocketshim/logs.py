"""Loggers whose calls never raise, so that no filter or handler of the user can stop the code that logs.

A filter, a `LogRecord` factory or a handler can raise an error out of the log call. Such an error must not end a thread
or skip the code after the call. It is printed as `logging` prints errors of handlers, and then dropped.
"""

import logging
import traceback
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

__all__ = ["SafeLogger", "one_line", "safe_logger"]


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose calls never raise, except what ends a process (`SystemExit`, `KeyboardInterrupt`)."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Keep the `extra` of the call."""
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log as `Logger.log` does; print an error of it if `logging.raiseExceptions` is set."""
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the caller's line, not this one
        try:
            super().log(level, msg, *args, **kwargs)
        except Exception:  # noqa: BLE001 - the user's filters and handlers
            if logging.raiseExceptions:
                with suppress(Exception):
                    traceback.print_exc()


def one_line(text: str) -> str:
    """Return a text with everything escaped that is not printable, so that it cannot forge a log line."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def safe_logger(name: str) -> SafeLogger:
    """Return the logger of that name, with calls that never raise."""
    return SafeLogger(logging.getLogger(name))

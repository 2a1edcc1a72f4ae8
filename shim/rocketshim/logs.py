"""Loggers of events with facts, whose calls never raise: no filter or handler of the user can stop the code that logs.

`log.warning("consumer.commit-failed", extra={"error": …})` makes a record whose attribute `event` is the name of the
event and whose facts are attributes, too. Its message has both, for handlers that print only messages.

A filter, a `LogRecord` factory or a handler can raise an error out of the log call. Such an error must not end a thread
or skip the code after the call. It is printed as `logging` prints errors of handlers, and then dropped.
"""

import logging
import re
import traceback
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, Final

from rocketshim.core.user_values import one_line

__all__ = ["SafeLogger", "safe_logger"]


_EVENT: Final = re.compile(r"[a-z]+\.[a-z-]+")


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose calls never raise, except what ends a process (`SystemExit`, `KeyboardInterrupt`)."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Keep the `extra` of the call."""
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log as `Logger.log` does; print an error of it if `logging.raiseExceptions` is set."""
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the caller's line, not this one
        facts = kwargs.get("extra")
        try:
            if not self.isEnabledFor(level):
                return
            if facts and "event" not in facts and isinstance(msg, str) and _EVENT.fullmatch(msg):
                kwargs["extra"] = {"event": msg, **facts}
                msg, args = "%s: %s", (msg, " ".join(f"{name}={one_line(str(it))}" for name, it in facts.items()))
            super().log(level, msg, *args, **kwargs)
        except Exception:  # noqa: BLE001 - the user's filters and handlers
            if logging.raiseExceptions:
                with suppress(Exception):
                    traceback.print_exc()


def safe_logger(name: str) -> SafeLogger:
    """Return the logger of that name, with calls that never raise."""
    return SafeLogger(logging.getLogger(name))

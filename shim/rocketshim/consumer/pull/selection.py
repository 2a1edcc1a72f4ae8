"""Which messages a pull consumer hands out: the expressions of its callers."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rocketshim.filters import MessageSelector, TagFilter
from rocketshim.filters.selection import matching
from rocketshim_topics import MalformedRecordError
from rocketshim_topics.wire import BAD_HEADER_KEY, coordinates, read_headers

__all__ = ["as_selector", "is_selected", "selected", "subscription_text", "unreadable_headers"]


def as_selector(expression: MessageSelector | str | None) -> MessageSelector:
    """Convert a filter argument of a pull consumer: a text is a tag expression, None selects everything."""
    return expression if isinstance(expression, MessageSelector) else MessageSelector.by_tag(expression)


def unreadable_headers(record: Any) -> MalformedRecordError:
    """Return the error of a pull consumer for a message that no filter can evaluate."""
    return MalformedRecordError(
        BAD_HEADER_KEY,
        f"{coordinates(record)} was skipped: a header name is not UTF-8, so no expression can be evaluated on it; read "
        "it without an expression",
    )


def selected(
    selector: MessageSelector | None, run: list[Any], unreadable: Callable[[Any, Exception], None]
) -> Iterable[Any]:
    """Return the messages of a run that a selector selects; call `unreadable` for one that it cannot evaluate."""
    if selector is None:
        return run
    if isinstance(selector.filter, TagFilter):
        return selector.filter.sieve(run, unreadable)
    return matching(selector.filter.matches_headers, run, unreadable)


def is_selected(selector: MessageSelector, message: Any) -> bool | None:
    """Return whether a selector selects a message; None if its headers are unreadable."""
    compiled = selector.filter
    if isinstance(compiled, TagFilter) and compiled.matches_all:
        return True
    try:
        return compiled.matches_headers(read_headers(message))
    except MalformedRecordError:
        return None


def subscription_text(subscribed: Mapping[str, MessageSelector]) -> tuple[str, str]:
    """Return digest and text of a subscription, in the same form as push consumers of the same group."""
    parts = sorted(f"{name}={selector.filter.digest()}" for name, selector in subscribed.items())
    text = ", ".join(sorted(f"{name}={selector.expression}" for name, selector in subscribed.items()))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16], text

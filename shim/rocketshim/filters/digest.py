"""A short digest of a subscription, by which two members of a group can see that their subscriptions differ."""

import hashlib
from typing import Final

__all__ = ["subscription_digest"]

_DIGITS: Final = 16


def subscription_digest(expression_type: str, expression: str | None) -> str:
    """Return 16 hex digits for an expression; they are the same in all processes, machines and versions.

    The expression is a canonical text; None (unlike `""` or `"*"`) means that everything is selected.
    """
    text = expression_type if expression is None else f"{expression_type}\n{expression}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]

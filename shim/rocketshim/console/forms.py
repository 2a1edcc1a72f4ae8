"""The fields of forms and queries."""

from collections.abc import Mapping
from urllib.parse import parse_qsl

from starlette.requests import Request

from rocketshim.errors import ConfigError

__all__ = ["Form", "decimal", "given", "read_form", "whole"]

Form = Mapping[str, str]


async def read_form(request: Request) -> Form:
    """Return the fields of a form; the last of several fields with one name counts."""
    return dict(parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True))


def given(fields: Form, name: str) -> str | None:
    """Return a field's text; None: it is missing or blank."""
    return fields.get(name, "").strip() or None


def whole(fields: Form, name: str) -> int | None:
    """Return a field's whole number; None: it is missing or blank.

    Raises:
        ConfigError: it is not a number.
    """
    text = given(fields, name)
    if text is not None and not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise ConfigError(f"{name} is {text!r:.40}; it must be a whole number")
    return None if text is None else int(text)


def decimal(fields: Form, name: str) -> float | None:
    """Return a field's number; None: it is missing or blank.

    Raises:
        ConfigError: it is not a number.
    """
    text = given(fields, name)
    try:
        return None if text is None else float(text)
    except ValueError as error:
        raise ConfigError(f"{name} is {text!r:.40}; it must be a number") from error

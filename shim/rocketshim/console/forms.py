"""The fields of forms and queries, and the selection of records that they name, as the options of commands do."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, Self
from urllib.parse import parse_qsl

from starlette.requests import Request

from rocketshim.admin.record_filter import RecordFilter
from rocketshim.console.settings import ConsoleSettings
from rocketshim.errors import ConfigError
from rocketshim.filters import SqlFilter
from rocketshim_topics.wire import KEYS, RESERVED

__all__ = ["Form", "Selection", "decimal", "given", "read_form", "sql_text", "whole"]


Form = Mapping[str, str]
_MOST_WHERE_CHARS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Selection:
    """What the user selected; None: everything."""

    where: str | None = None  # an SQL92 condition on headers
    tags: str | None = None  # tags, separated by `||`
    key: str | None = None  # a record key or business key
    since: str | None = None  # a duration before now, or a time
    cause: str | None = None  # the id of a cause

    @classmethod
    def of(cls, form: Form, settings: ConsoleSettings) -> Self:
        """Return the selection of a query or form; refuse one that would tell something about hidden headers."""
        selection = cls(**{field.name: given(form, field.name) for field in fields(cls)})
        if selection.where is not None and len(selection.where) > _MOST_WHERE_CHARS:
            raise ConfigError(
                f"the condition has {len(selection.where):,} characters; a page tries it on thousands of records, so "
                f"it may have {_MOST_WHERE_CHARS:,}: use the command line"
            )
        if "headers" in settings.hide:
            named = set() if selection.where is None else set(SqlFilter(selection.where).properties)
            if selection.key is not None or not named <= RESERVED - {KEYS}:
                raise ConfigError("this console hides headers and keys, so they cannot be searched either")
        return selection

    @property
    def query(self) -> dict[str, str | None]:
        """Return the selection as fields of a URL."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def is_narrow(self) -> bool:
        """Return whether anything is selected, so not everything."""
        return any(self.query.values())

    def record_filter(self) -> RecordFilter:
        """Return the filter of this selection."""
        return RecordFilter(**self.query)


def sql_text(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


async def read_form(request: Request) -> Form:
    """Return the fields of a form; the last of several fields with one name counts."""
    return dict(parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True))


def given(fields: Form, name: str) -> str | None:
    """Return a field's text; None: it is missing or blank."""
    return fields.get(name, "").strip() or None


def whole(fields: Form, name: str) -> int | None:
    """Return a field's whole number; None: it is missing or blank."""
    text = given(fields, name)
    if text is not None and not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise ConfigError(f"{name} is {text!r:.40}; it must be a whole number")
    return None if text is None else int(text)


def decimal(fields: Form, name: str) -> float | None:
    """Return a field's number; None: it is missing or blank."""
    text = given(fields, name)
    try:
        return None if text is None else float(text)
    except ValueError as error:
        raise ConfigError(f"{name} is {text!r:.40}; it must be a number") from error

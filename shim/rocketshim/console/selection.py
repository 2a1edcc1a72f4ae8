"""The selection of records that a page's query or form names, by the rules of the commands' options."""

from dataclasses import dataclass, fields
from typing import Self

from rocketshim.admin.record_filter import RecordFilter
from rocketshim.console.forms import Form, given
from rocketshim.console.settings import ConsoleSettings
from rocketshim.errors import ConfigError
from rocketshim.filters import SqlFilter
from rocketshim_topics.wire import KEYS, RESERVED

__all__ = ["Selection", "sql_text"]


@dataclass(frozen=True, slots=True)
class Selection:
    """What the user selected; None: everything."""

    where: str | None = None  # an SQL92 condition on headers
    tags: str | None = None  # tags, separated by `||`
    key: str | None = None  # a record key or business key
    since: str | None = None  # a duration before now, or a time

    @classmethod
    def of(cls, form: Form, settings: ConsoleSettings) -> Self:
        """Return the selection of a query or form.

        Raises:
            ConfigError: it would tell something about headers that are hidden.
        """
        selection = cls(**{field.name: given(form, field.name) for field in fields(cls)})
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
        return RecordFilter(where=self.where, tags=self.tags, key=self.key, since=self.since)


def sql_text(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"

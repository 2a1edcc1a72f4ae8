"""Select records of a topic by the options of the commands: a condition, tags, a key, a time."""

import time
from collections.abc import Callable
from typing import Any

from rocketshim.admin.record_view import RecordView
from rocketshim.admin.times import past_ms
from rocketshim.filters import SqlFilter
from rocketshim.filters.tag import check_tags

__all__ = ["RecordFilter", "selecting"]


def selecting(where: str | None, tags: str | None) -> Callable[[Any], bool]:
    """Return a function that tells whether both filters accept these headers, as a consumer's subscription would.

    A filter that is None accepts all records.
    """
    by_tag = check_tags(tags).matches_headers
    if where is None:
        return by_tag
    by_sql = SqlFilter(where).matches_headers
    return lambda headers: by_tag(headers) and by_sql(headers)


class RecordFilter:
    """The records that the user selected by options.

    Raises:
        ConfigError, FilterSyntaxError: an option's value is not valid.
    """

    def __init__(self, *, where: str | None, tags: str | None, key: str | None, since: str | None) -> None:
        given = {"where": where, "tags": tags, "key": key, "since": since}
        self.written = {name: text for name, text in given.items() if text is not None}
        self._selects = selecting(where, tags)
        self._unseen = set() if where is None else set(SqlFilter(where).properties)
        self._examined_any = False
        self._key = key
        self.since_ms = None if since is None else past_ms(since, time.time_ns() // 1_000_000, "--since")

    def wants(self, entry: RecordView) -> bool:
        """Return whether the user selected a record."""
        if self.since_ms is not None and entry.stored_ms < self.since_ms:
            return False
        self._examined_any = True
        if self._unseen:
            self._unseen.difference_update(name for name, _ in entry.properties)
        if not self._selects(entry.properties):
            return False
        if self._key is None:
            return True
        written = self._key.encode(errors="surrogateescape")
        return entry.key == written or self._key in (entry.envelope.keys or "").split()

    def misnamed(self) -> str | None:
        """Return a hint about names in `--where` that no examined record has; None if there are none."""
        if not self._examined_any or not self._unseen:
            return None
        names = ", ".join(sorted(self._unseen))
        return f"--where: no record here has a header {names}; the cause is FAIL_CLASS, its text FAIL_TEXT"

"""Select records of a topic by the options of the commands: a condition, tags, a key, a time."""

import re
import time
from collections.abc import Callable
from typing import Any, Self

from rocketshim.admin.cause_counts import cause_of
from rocketshim.admin.record_view import RecordView
from rocketshim.admin.times import past_ms
from rocketshim.errors import ConfigError
from rocketshim.filters import SqlFilter
from rocketshim.filters.tag import check_tags
from rocketshim_topics import TopicNames
from rocketshim_topics.causes import cause_id

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
    """The records that the user selected by options."""

    def __init__(
        self,
        *,
        where: str | None = None,
        tags: str | None = None,
        key: str | None = None,
        since: str | None = None,
        cause: str | None = None,
    ) -> None:
        if cause is not None and re.fullmatch("[0-9a-f]{12}", cause) is None:
            raise ConfigError(f"--cause {cause!r:.80}: write the id of a cause, 12 digits, as `stats` shows it")
        given = {"where": where, "tags": tags, "key": key, "since": since, "cause": cause}
        self.written = {name: text for name, text in given.items() if text is not None}
        self.everything = True  # also records that were sent again or discarded
        self.newest: int | None = None  # only the last ones of each partition
        self.until_ms: int | None = None  # only those stored before this time, epoch ms
        self._selects = selecting(where, tags)
        self._unseen = set() if where is None else set(SqlFilter(where).properties)
        self._examined_any = False
        self._key = key
        self._cause = cause
        self._found_cause = False
        self._tests: list[Callable[[RecordView], bool]] = []
        self.since_ms = None if since is None else past_ms(since, time.time_ns() // 1_000_000, "--since")

    def also(self, name: str, text: str | None, test: Callable[[RecordView, str], bool]) -> Self:
        """Require a test of another option, if the option was given."""
        if text is not None:
            self.written[name] = text
            self._tests.append(lambda entry: test(entry, text))
        return self

    def going_to(self, topic: str | None, names: TopicNames) -> Self:
        """Require this target, by its logical or its physical name; None: any."""
        return self.also("topic", topic, lambda entry, text: _goes_to(entry.envelope.real_topic, text, names))

    def wants(self, entry: RecordView) -> bool:
        """Return whether the user selected a record."""
        if self.since_ms is not None and entry.stored_ms < self.since_ms:
            return False
        if self.until_ms is not None and entry.stored_ms >= self.until_ms:
            return False
        self._examined_any = True
        if self._unseen:
            self._unseen.difference_update(name for name, _ in entry.properties)
        if self._cause is not None:
            if cause_id(*cause_of(entry)) != self._cause:
                return False
            self._found_cause = True
        if not (self._selects(entry.properties) and all(test(entry) for test in self._tests)):
            return False
        if self._key is None:
            return True
        written = self._key.encode(errors="surrogateescape")
        return entry.key == written or self._key in (entry.envelope.keys or "").split()

    def misnamed(self) -> str | None:
        """Return a hint about a cause, or names in `--where`, that no examined record has; None if there are none."""
        if self._examined_any and self._cause is not None and not self._found_cause:
            return f"--cause: no record here has the cause {self._cause}; `stats` shows those that exist"
        if not self._examined_any or not self._unseen:
            return None
        names = ", ".join(sorted(self._unseen))
        return f"--where: no record here has a header {names}; the cause is FAIL_CLASS, its text FAIL_TEXT"


def _goes_to(target: str | None, topic: str, names: TopicNames) -> bool:
    if target == topic:
        return True
    try:
        return target is not None and names.physical(target) == topic
    except ConfigError:  # the target is not a name of a topic
        return False

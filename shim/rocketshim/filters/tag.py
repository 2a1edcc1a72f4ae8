"""Tag expressions: `A || B` selects the messages with the tag `A` or `B`.

Parsing follows RocketMQ exactly. No expression, an empty one or exactly `*` selects every message, with or without a
tag. Any other text is split at every `||`; control characters and blanks up to U+0020 are removed from both ends of
each part; empty parts are dropped. Some consequences are surprising:

* `||` alone is an error, but blanks alone are valid and select **nothing**; `|| ||` also selects nothing.
* `*` with blanks around it, or in a list, is the literal tag `*`.
* A single `|` is part of the tag. Tags are case-sensitive.
* A message has one tag: `A || B` *on a message* is one tag of six characters.
* A message without a tag, or with an empty one, never matches a list.
* It is not possible to subscribe to a tag with a blank at either end.

RocketMQ takes `a,b` and `amount > 5 AND vip IS NOT NULL` for one tag each, which no message has, so that nothing is
ever selected. Where a program or an operator writes an expression, `check_tags` refuses such a text. If a tag really
has such a name, SQL selects it: `TAGS = 'a,b'`.

Matching compares the text. RocketMQ's broker compares hash codes first, and its client then compares the text; the
result is the same.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from rocketshim.core.subscriptions import filter_digest
from rocketshim.errors import ConfigError, FilterSyntaxError
from rocketshim.filters.java_text import TRIMMED_CHARACTERS
from rocketshim_topics.wire import UNREADABLE_ERRORS, mark_unreadable, reader_of

__all__ = ["TAG_HEADER", "TagFilter", "check_tags"]

TAG_HEADER: Final = "TAGS"
"""Name of the header with the tag of a message."""


_Record = TypeVar("_Record", bound=Any)  # with `headers` and `set_headers`

_ALL: Final = "*"
_SEPARATOR: Final = "||"
_OF_LISTS: Final = re.compile(r"(,)|\s(\|)\s")
_OF_SQL: Final = re.compile(
    r"\w\s*([=<>]+)\s*['\w(+-]|\s(AND|OR|NOT|IN|IS|BETWEEN|CONTAINS|STARTSWITH|ENDSWITH)\s", re.IGNORECASE
)


class TagFilter:
    """A filter by tag. Immutable.

    Args:
        expression: tags separated by `||`; None, `""` and `"*"` select everything.

    Attributes:
        expression: the given text; `"*"` if it selects everything.
        expression_type: always `"TAG"`.
        tags: the selected tags; empty if everything or nothing is selected.
        matches_all: whether every message is selected.

    Raises:
        FilterSyntaxError: the expression consists only of separators.
        ConfigError: it is not a text, for example a list of tags, as which it would select nothing.

    Thread-safety: any thread.
    Source: RocketMQ 5.3.3 `FilterAPI.buildSubscriptionData`, `PullAPIWrapper.processPullResult`.
    """

    __slots__ = ("_encoded", "expression", "matches_all", "tags")

    expression_type: Final = "TAG"

    def __init__(self, expression: str | None = None) -> None:
        if not isinstance(expression, str | None):
            raise ConfigError(f"{expression!r:.80} is not a tag expression: give one text, such as 'created || paid'")
        self.matches_all = not expression or expression == _ALL
        self.expression = str.__str__(expression or _ALL)  # of an enumeration that is a text: its value
        self.tags: frozenset[str] = frozenset() if self.matches_all else _split(self.expression)
        self._encoded = frozenset(tag.encode("utf-8", "surrogatepass") for tag in self.tags)

    def matches(self, tag: str | None) -> bool:
        """Return whether a message with this tag is selected; None and `""` mean that it has no tag."""
        return self.matches_all or tag in self.tags

    def matches_headers(self, headers: Sequence[tuple[str, bytes | None]] | None) -> bool:
        """Return whether a record with these headers is selected.

        The first header named `TAGS` counts, as everywhere in the wire format. A consumer calls this for each record,
        so it decodes nothing and builds no dictionary.

        Args:
            headers: the headers as the Kafka client returns them; None if there are none.
        """
        if self.matches_all:
            return True
        if headers is not None:
            for name, value in headers:
                if name == "TAGS":
                    return value in self._encoded
        return False

    def sieve(self, records: Iterable[_Record], unreadable: Callable[[_Record, Exception], None]) -> Iterator[_Record]:
        """Yield the selected records. This takes 0.07 µs a record; a call of `matches_headers` for each takes 0.13 µs.

        The headers of records that are not selected are removed: keeping their lists until the end of a batch costs
        twice as much as reading them (measured: 0.25 µs for a message with six headers).

        Args:
            records: the records; taken one by one. They must not be used elsewhere.
            unreadable: is called with each record whose headers cannot be read, and with the error; must not raise.
        """
        if self.matches_all:
            yield from records
            return
        encoded, kind = self._encoded, None
        for record in records:
            try:
                if type(record) is not kind:
                    kind = type(record)
                    read = reader_of(kind)
                for name, value in read(record) or ():
                    if name == "TAGS":
                        selected = value in encoded
                        break
                else:
                    selected = False
                if selected:
                    yield record
                else:
                    record.set_headers(None)
            except UNREADABLE_ERRORS:
                unreadable(record, mark_unreadable(record))
            except Exception as error:  # noqa: BLE001 - a marked record raises its error; also handle any other
                unreadable(record, error)

    def digest(self) -> str:
        """Return 16 hex digits that are equal for filters with the same tags, in every process and version."""
        return filter_digest(self.expression_type, None if self.matches_all else _SEPARATOR.join(sorted(self.tags)))

    def __eq__(self, other: object) -> bool:
        """Return whether both select the same tags; order, repeats and blanks in the texts do not matter."""
        if not isinstance(other, TagFilter):
            return NotImplemented
        return (self.matches_all, self.tags) == (other.matches_all, other.tags)

    def __hash__(self) -> int:
        return hash((self.matches_all, self.tags))

    def __str__(self) -> str:
        return self.expression

    def __repr__(self) -> str:
        return f"TagFilter({self.expression!r})"


def _split(expression: str) -> frozenset[str]:
    pieces = expression.split(_SEPARATOR)
    if not any(pieces):
        raise FilterSyntaxError(
            f"tag expression {expression!r} has separators but no tag: write 'A || B', or '*' for all",
            expression=expression,
            position=0,
            token=_SEPARATOR,
            expected="a tag",
        )
    return frozenset(tag for piece in pieces if (tag := piece.strip(TRIMMED_CHARACTERS)))


def check_tags(expression: str | None) -> TagFilter:
    """Return the filter of a tag expression that a person wrote.

    Raises:
        FilterSyntaxError: the expression consists only of separators, or is meant as another kind of list or as SQL.
        ConfigError: it is not a text.
    """
    made = TagFilter(expression)
    for pattern, hint in (
        (_OF_SQL, "it looks like an SQL condition: give it as sql=, or as MessageSelector.by_sql()"),
        (_OF_LISTS, "tags are separated by two bars: write 'a || b'"),
    ):
        found = None if made.matches_all else pattern.search(made.expression)
        if found is not None:
            raise FilterSyntaxError(
                f"{made.expression!r:.200} is not a tag expression, since {hint}. A tag that really has such a name is "
                "selected by SQL: TAGS = '…'",
                expression=made.expression,
                position=found.start(found.lastindex or 0),
                token=found[found.lastindex or 0],
                expected="tags, separated by ||",
            )
    return made

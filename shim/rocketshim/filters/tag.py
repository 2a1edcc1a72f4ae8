"""Tag expressions: `A || B` selects the messages whose one tag is `A` or `B`.

Parsing follows RocketMQ to the letter. No expression, an empty one or exactly `*` selects everything, tagged or not.
Otherwise the text is split at every `||`, control characters and blanks up to U+0020 are cut from both ends of each
piece, and empty pieces are dropped. What surprises people:

* `||` alone is an error, but blanks alone are legal and select **nothing**; so does `|| ||`;
* `*` with blanks around it, or inside a list, is the literal tag `*`;
* a single `|` belongs to the tag; case counts;
* a message has one tag: `A || B` *on a message* is one tag of six characters;
* an untagged message (no tag, or an empty one) never matches a list;
* a tag with a blank at either end cannot be subscribed to.

Matching compares the text. RocketMQ's broker compares hash codes first and its client compares the text afterwards;
the outcome is the same.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

from rocketshim.errors import FilterSyntaxError
from rocketshim.filters.digest import subscription_digest
from rocketshim.filters.java_text import TRIMMED_CHARACTERS
from rocketshim_topics.wire import UNREADABLE_ERRORS, mark_unreadable, reader_of

__all__ = ["TAG_HEADER", "TagFilter"]

TAG_HEADER: Final = "TAGS"
"""Name of the header that carries a message's tag."""


class _HasHeaders(Protocol):
    def headers(self) -> Any: ...
    def set_headers(self, headers: Any, /) -> None: ...


_Record = TypeVar("_Record", bound=_HasHeaders)

_ALL: Final = "*"
_SEPARATOR: Final = "||"


class TagFilter:
    """Selects messages by their tag. Immutable.

    Args:
        expression: tags separated by `||`; None, `""` and `"*"` select everything.

    Attributes:
        expression: the text as given; `"*"` if it selects everything.
        expression_type: always `"TAG"`.
        tags: the tags that are selected; empty if everything or nothing is.
        matches_all: whether every message is selected.

    Raises:
        FilterSyntaxError: the expression has nothing but separators.

    Thread-safety: any thread.
    Source: RocketMQ 5.3.3 `FilterAPI.buildSubscriptionData`, `PullAPIWrapper.processPullResult`.
    """

    __slots__ = ("_encoded", "expression", "matches_all", "tags")

    expression_type: Final = "TAG"

    def __init__(self, expression: str | None = None) -> None:
        self.matches_all = not expression or expression == _ALL
        self.expression = _ALL if self.matches_all else str(expression)
        self.tags: frozenset[str] = frozenset() if self.matches_all else _split(self.expression)
        self._encoded = frozenset(tag.encode("utf-8", "surrogatepass") for tag in self.tags)

    def matches(self, tag: str | None) -> bool:
        """Whether a message with this tag is selected; None and `""` mean that it has none."""
        return self.matches_all or tag in self.tags

    def matches_headers(self, headers: Sequence[tuple[str, bytes | None]] | None) -> bool:
        """Whether a record with these headers is selected.

        The first header named `TAGS` counts, as everywhere on the wire. Nothing is decoded and no dictionary is made:
        this is what a consumer calls for each record.

        Args:
            headers: the headers as the Kafka client hands them out; None if there are none.
        """
        if self.matches_all:
            return True
        if headers is not None:
            for name, value in headers:
                if name == "TAGS":
                    return value in self._encoded
        return False

    def sieve(self, records: Iterable[_Record], unreadable: Callable[[_Record, Exception], None]) -> Iterator[_Record]:
        """Those of many records that are selected: `matches_headers` without a call for each, 0.07 µs instead of 0.13.

        Records that are not selected lose their headers: lists of them that wait for the end of a batch cost twice what
        reading them does (0.25 µs a message with six headers, our measurement).

        Args:
            records: the records; taken one by one, nobody else's.
            unreadable: told of each record whose headers cannot be read; it may not raise.
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
            except Exception as error:  # noqa: BLE001 - of a record that is marked, and what may come
                unreadable(record, error)

    def digest(self) -> str:
        """16 hex digits that are equal for filters that select the same tags, in every process and version."""
        return subscription_digest(
            self.expression_type, None if self.matches_all else _SEPARATOR.join(sorted(self.tags))
        )

    def __eq__(self, other: object) -> bool:
        """Equal if they select the same: order, repeats and blanks in the text do not count."""
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
            f"tag expression {expression!r} has separators and no tag: write 'A || B', or '*' for all",
            expression=expression,
            position=0,
            token=_SEPARATOR,
            expected="a tag",
        )
    return frozenset(tag for piece in pieces if (tag := piece.strip(TRIMMED_CHARACTERS)))

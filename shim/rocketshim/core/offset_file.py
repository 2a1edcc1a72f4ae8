"""The content of a local offset file, as bytes and back. Pure.

One JSON document and a line with its SHA-256: a file that was cut short, or changed, is refused as a whole. Positions
belong to a cluster, and to a topic as it was created (Kafka's topic id): the same names on another cluster, or a topic
that was deleted and made anew, are other logs, in which these positions mean nothing.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

__all__ = ["OffsetFile", "Stored", "decode", "encode"]

_VERSION: Final = 1
_SUM: Final = "sha256 "


@dataclass(frozen=True, slots=True)
class Stored:
    """A position.

    Attributes:
        offset: of the next message, 0 or more.
        metadata: text kept with it.
    """

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class OffsetFile:
    """What a file says.

    Attributes:
        cluster: id of the cluster; `""`: not known.
        topic_ids: topic to its id; a topic that is missing here has none known.
        positions: of each topic and partition.
    """

    cluster: str
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    positions: Mapping[tuple[str, int], Stored] = field(default_factory=dict)

    def moved(self, positions: Mapping[tuple[str, int], Stored]) -> "OffsetFile":
        """The same with these positions in place of those of the same partitions; no other is lost."""
        return OffsetFile(self.cluster, self.topic_ids, {**self.positions, **positions})

    def identified(self, topic: str, topic_id: str) -> "OffsetFile":
        """The same, the topic having this id now; if it had another, its positions begin at 0.

        What lies in a topic that was made anew was written since: whoever had consumed the former one has missed
        nothing of it by reading all.
        """
        before = self.topic_ids.get(topic, "")
        if not topic_id or topic_id == before:
            return self
        positions = dict(self.positions)
        if before:
            for place in [place for place in positions if place[0] == topic]:
                positions[place] = Stored(0, positions[place].metadata)
        return OffsetFile(self.cluster, {**self.topic_ids, topic: topic_id}, positions)


def encode(content: OffsetFile) -> bytes:
    """The file's bytes."""
    topics: dict[str, Any] = {}
    for (topic, partition), stored in sorted(content.positions.items()):
        entry = topics.setdefault(topic, {"id": content.topic_ids.get(topic, ""), "queues": {}})
        entry["queues"][str(partition)] = {"offset": stored.offset, "metadata": stored.metadata}
    text = json.dumps({"v": _VERSION, "cluster": content.cluster, "topics": topics}, indent=1, ensure_ascii=True)
    return f"{text}\n{_SUM}{sha256(text.encode()).hexdigest()}\n".encode()


def decode(data: bytes) -> OffsetFile:
    """What a file says.

    Raises:
        ValueError: it is not whole, or not of this version.
    """
    text, separator, rest = data.decode("ascii", "replace").removesuffix("\n").rpartition("\n")
    if not separator or rest != f"{_SUM}{sha256(text.encode()).hexdigest()}" or not data.endswith(b"\n"):
        raise ValueError("its checksum does not fit: the file was cut short or changed")
    try:
        content = json.loads(text)
        if content["v"] != _VERSION:
            raise ValueError(f"version {content['v']!r} is not {_VERSION}")
        topics: Mapping[str, Any] = content["topics"]
        return OffsetFile(
            content["cluster"],
            {topic: entry["id"] for topic, entry in topics.items() if entry["id"]},
            dict(_positions(topics)),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no offset file: {error!r}") from error


def _positions(topics: Mapping[str, Any]) -> Iterable[tuple[tuple[str, int], Stored]]:
    for topic, entry in topics.items():
        for number, stored in entry["queues"].items():
            yield (topic, int(number)), Stored(int(stored["offset"]), str(stored["metadata"]))

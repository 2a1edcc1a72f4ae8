"""Encodes and decodes the content of a local offset file. Pure.

The file is one JSON document and a line with its SHA-256. A file that was truncated or changed is refused as a whole.
Positions belong to a cluster, and to one creation of a topic (Kafka's topic id). The same names on another cluster, or
a topic that was deleted and created again, are other logs, in which these positions have no meaning.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["OffsetFile", "Stored", "decode", "encode"]

_VERSION: Final = 1
_SUM: Final = "sha256 "


@dataclass(frozen=True, slots=True)
class Stored:
    """A position.

    Attributes:
        offset: offset of the next message, 0 or more.
        metadata: text stored with it.
    """

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class OffsetFile:
    """The content of an offset file.

    Attributes:
        cluster: id of the cluster; `""`: not known.
        topic_ids: topic to its id; a missing topic has no known id.
        positions: the position of each topic and partition.
    """

    cluster: str
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    positions: Mapping[TopicPartitionKey, Stored] = field(default_factory=dict)

    def moved(self, positions: Mapping[TopicPartitionKey, Stored]) -> "OffsetFile":
        """Return a copy with these positions in place of those of the same partitions; all others stay."""
        return OffsetFile(self.cluster, self.topic_ids, {**self.positions, **positions})

    def identified(self, topic: str, topic_id: str) -> "OffsetFile":
        """Return a copy in which the topic has this id; if it had another id, its positions restart at 0.

        Everything in a topic that was created again was written after that. So a consumer of the former topic misses
        nothing if it reads all of the new one.
        """
        before = self.topic_ids.get(topic, "")
        if not topic_id or topic_id == before:
            return self
        positions = dict(self.positions)
        if before:
            for key in [key for key in positions if key.topic == topic]:
                positions[key] = Stored(0, positions[key].metadata)
        return OffsetFile(self.cluster, {**self.topic_ids, topic: topic_id}, positions)


def encode(content: OffsetFile) -> bytes:
    """Return the file's bytes."""
    topics: dict[str, Any] = {}
    for (topic, partition), stored in sorted(content.positions.items()):
        entry = topics.setdefault(topic, {"id": content.topic_ids.get(topic, ""), "queues": {}})
        entry["queues"][str(partition)] = {"offset": stored.offset, "metadata": stored.metadata}
    text = json.dumps({"v": _VERSION, "cluster": content.cluster, "topics": topics}, indent=1, ensure_ascii=True)
    return f"{text}\n{_SUM}{sha256(text.encode()).hexdigest()}\n".encode()


def decode(data: bytes) -> OffsetFile:
    """Return the content of a file.

    Raises:
        ValueError: the file is incomplete or has another version.
    """
    text, separator, checksum = data.decode("ascii", "replace").removesuffix("\n").rpartition("\n")
    if not separator or checksum != f"{_SUM}{sha256(text.encode()).hexdigest()}" or not data.endswith(b"\n"):
        raise ValueError("its checksum does not match: the file was truncated or changed")
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
        raise ValueError(f"it is not an offset file: {error!r}") from error


def _positions(topics: Mapping[str, Any]) -> Iterable[tuple[TopicPartitionKey, Stored]]:
    for topic, entry in topics.items():
        for number, stored in entry["queues"].items():
            yield TopicPartitionKey(topic, int(number)), Stored(int(stored["offset"]), str(stored["metadata"]))

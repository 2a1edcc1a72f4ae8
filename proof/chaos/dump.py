"""Dump the topics at the end of a run: the ground truth of its history."""

import struct
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from proof.lines import Commit, JsonHeaders, Record, digest_of, encoded, headers_to_json
from rocketshim_topics.wire import coordinates, headers_shown

__all__ = ["OFFSETS_TOPIC", "commits", "parse_commit", "records"]

Client = Mapping[str, str]
"""Settings of a Kafka client, with the brokers' addresses."""
OFFSETS_TOPIC = "__consumer_offsets"
_SILENCE_S = 30.0
_APPEND_TIME = 2
_WITH_EPOCH, _FLEXIBLE = 3, 4


class DumpError(Exception):
    """A topic could not be read to its end."""


def records(client: Client, wanted: Callable[[str], bool], *, with_values: set[str]) -> Iterator[Record]:
    """Every record of the topics that are wanted; values too where a topic is in `with_values`."""
    topics = [topic for topic in _topics(client) if wanted(topic)]
    visible = {coordinates(message) for message in _read(client, topics, "read_committed")}
    for message in _read(client, topics, "read_uncommitted"):
        stamp, stamped_ms = message.timestamp()
        headers: JsonHeaders = headers_to_json(headers_shown(message))
        where = coordinates(message)
        yield Record(
            where=where, ms=stamped_ms, stamp="append" if stamp == _APPEND_TIME else "create",
            key=encoded(message.key()), digest=digest_of(message.value()), headers=headers, committed=where in visible,
            value=encoded(message.value()) if message.topic() in with_values else None,
        )  # fmt: skip


def commits(client: Client, groups: set[str]) -> Iterator[Commit]:
    """Every stored position of these groups, in the order of the topic."""
    found: list[tuple[int, int, Commit]] = []
    for message in _read(client, [OFFSETS_TOPIC], "read_committed"):
        commit = parse_commit(message.key(), message.value())
        if commit is not None and commit.group in groups:
            found.append((message.partition() or 0, message.offset() or 0, commit))
    for _, _, commit in sorted(found, key=lambda each: each[:2]):
        yield commit


def parse_commit(key: bytes | None, value: bytes | None) -> Commit | None:
    """Read a record of `__consumer_offsets`; None: it is no position (or its removal).

    Source: Kafka's `OffsetCommitKey` (version 1) and `OffsetCommitValue` (versions 1 to 4), message format schemas.
    """
    if key is None or value is None or struct.unpack_from(">h", key)[0] > 1:
        return None
    group, at = _text(key, 2)
    topic, at = _text(key, at)
    (partition,) = struct.unpack_from(">i", key, at)
    version, position = struct.unpack_from(">hq", value)
    at = 14 if version >= _WITH_EPOCH else 10
    metadata, at = _compact_text(value, at) if version >= _FLEXIBLE else _text(value, at)
    (commit_ms,) = struct.unpack_from(">q", value, at)
    return Commit(group=group, queue=f"{topic}/{partition}", position=position, ms=commit_ms, metadata=metadata)


def _text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, at)
    end = at + 2 + max(length, 0)
    return data[at + 2 : end].decode(), end


def _compact_text(data: bytes, at: int) -> tuple[str, int]:
    """A text whose length, plus one, is an unsigned varint."""
    length = shift = 0
    while True:
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    end = at + max(length - 1, 0)
    return data[at:end].decode(), end


def _consumer(client: Client, isolation: str) -> Consumer:
    return Consumer(
        {
            **client, "client.id": "harness", "log_level": 0, "group.id": f"proof-dump-{uuid.uuid4().hex[:8]}",
            "enable.auto.commit": False, "enable.partition.eof": True, "isolation.level": isolation,
            "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50,
        }
    )  # fmt: skip


def _topics(client: Client) -> dict[str, Any]:
    consumer = _consumer(client, "read_committed")
    try:
        return dict(consumer.list_topics(timeout=_SILENCE_S).topics)
    finally:
        consumer.close()


def _read(client: Client, topics: list[str], isolation: str) -> Iterator[Message]:
    consumer = _consumer(client, isolation)
    try:
        known = consumer.list_topics(timeout=_SILENCE_S).topics
        partitions = [
            TopicPartition(topic, number, OFFSET_BEGINNING) for topic in topics for number in known[topic].partitions
        ]
        consumer.assign(partitions)
        ended: set[tuple[str | None, int | None]] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(_SILENCE_S)
            if message is None:
                raise DumpError(f"{len(partitions) - len(ended)} partitions did not end within {_SILENCE_S:.0f} s")
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the constant has no other name
                ended.add((message.topic(), message.partition()))
    finally:
        consumer.close()

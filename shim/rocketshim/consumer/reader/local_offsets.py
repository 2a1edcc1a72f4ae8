"""Offsets in a local file: the offset store of BROADCASTING, where each consumer has its own.

It has the `committed` and `commit` methods of the Kafka consumer, so that the code that finds starts and commits works
with either. Rules:

* A new file is written beside the old one, synced to the disk, and renamed over it. The old one becomes `.bak`, unless
  it is damaged. A crash at any instant leaves the old offsets or the new ones.
* A damaged file never counts as "no offsets" (in RocketMQ it does, and consumption starts at the end). `.bak` is used
  if it is intact, which repeats some seconds of messages; else it is an error
  (test_lost_offsets_are_an_error_and_never_a_new_start).
* If the folder is deleted while the consumer runs, it is made again, with its lock, by the next write or at the end.
* A lock file excludes a second process with the same client id: the two would overwrite each other's offsets.
* A write that fails (disk full) is a refused commit: it is logged, counted, and repeated with the next commit.
* The file is one JSON document and a line with its SHA-256. A file that was truncated or changed is refused as a whole.
* Positions belong to a cluster, and to one creation of a topic (Kafka's topic id). The same names on another cluster,
  or a topic that was deleted and created again, are other logs, in which these positions have no meaning.

Source: `LocalFileOffsetStore` of RocketMQ.
"""

import json
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from rocketshim import file_lock
from rocketshim.errors import OffsetStoreError
from rocketshim.logs import safe_logger
from rocketshim_topics import TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = [
    "PROCESS_VARIABLE",
    "LocalOffsetStore",
    "OffsetFile",
    "Stored",
    "decode",
    "encode",
    "offset_folder",
    "stable_client_id",
]

PROCESS_VARIABLE: Final = "ROCKETSHIM_PROCESS"
"""Environment variable in which `rocketshim run --processes` gives each process its number: `0`, `1` …"""

_LOG = safe_logger("rocketshim.consumer")
_FILE: Final = "offsets.json"
_LOCK: Final = "offsets.lock"
_LOCK_FLAGS: Final = os.O_RDWR | os.O_CREAT
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9@_-]")
_VERSION: Final = 1
_SUM: Final = "sha256 "


Stored = tuple[int, str]
"""A position, and the text stored with it."""


@dataclass(frozen=True, slots=True)
class OffsetFile:
    """The content of an offset file; a cluster of `""` and a topic without an id are not known."""

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
                positions[key] = (0, positions[key][1])
        return OffsetFile(self.cluster, {**self.topic_ids, topic: topic_id}, positions)


def encode(content: OffsetFile) -> bytes:
    """Return the file's bytes."""
    topics: dict[str, Any] = {}
    for (topic, partition), (offset, metadata) in sorted(content.positions.items()):
        entry = topics.setdefault(topic, {"id": content.topic_ids.get(topic, ""), "queues": {}})
        entry["queues"][str(partition)] = {"offset": offset, "metadata": metadata}
    text = json.dumps({"v": _VERSION, "cluster": content.cluster, "topics": topics}, indent=1, ensure_ascii=True)
    return f"{text}\n{_SUM}{sha256(text.encode()).hexdigest()}\n".encode()


def decode(data: bytes) -> OffsetFile:
    """Return the content of a file. Raises ValueError: the file is incomplete or has another version."""
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
            yield TopicPartitionKey(topic, int(number)), (int(stored["offset"]), str(stored["metadata"]))


def stable_client_id() -> str:
    """Return `host@DEFAULT`, as in RocketMQ's broadcasting; `host@DEFAULT-1` … in other processes of a run."""
    number = os.environ.get(PROCESS_VARIABLE, "0")
    return f"{socket.gethostname()}@DEFAULT{'' if number == '0' else f'-{number}'}"


def offset_folder(base: str | None, client_id: str, names: TopicNames, group: str) -> Path:
    """Return the directory of a client's offset file for a group, below `base` or else `~/.rocketshim_offsets`.

    Two clients with the same id share the file, and exclude each other.
    """
    root = Path(base).expanduser() if base is not None else Path.home() / ".rocketshim_offsets"
    safe = _UNSAFE.sub("-", client_id)[:120]
    if safe != client_id:
        safe = f"{safe}-{sha256(client_id.encode()).hexdigest()[:16]}"
    return root / safe / names.group_log(group)


class LocalOffsetStore:
    """Offsets of one client in one group; a cluster or topic id of `""` is unknown, and not compared.

    To make it raises OffsetStoreError, and nothing was changed: another process uses the file, it is damaged, it
    belongs to another cluster, or it cannot be read or written.

    Thread-safety: one thread makes it; then only the poll thread uses it.
    """

    def __init__(self, folder: Path, cluster: str, topic_id: Callable[[str], str]) -> None:
        self._path = folder / _FILE
        self._is_damaged = False  # the file: then `.bak` has the positions, until the next write
        self._topic_id = topic_id
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / _LOCK, _LOCK_FLAGS, 0o644)
        except OSError as error:
            why = f"cannot store offsets in {folder}: {error}; choose another offset_store_dir"
            raise OffsetStoreError(why) from error
        try:
            self._take_lock()
            self._content = self._read(cluster)
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Release the file for other processes. A second call does nothing."""
        self._topic_id = lambda _: ""  # it may keep an admin client alive
        if self._lock >= 0 and self._content.positions and not self._path.exists():
            try:
                self._write(encode(self._content))
            except OSError:
                _LOG.exception("consumer.offset-file-not-written", extra={"path": str(self._path)})
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def committed(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:  # noqa: ARG002
        """Return offsets in the form of `confluent_kafka.Consumer.committed`; -1001 where none is stored."""
        for topic in sorted({item.topic for item in partitions}):
            self._content = self._content.identified(topic, self._topic_id(topic))
        nothing = (OFFSET_INVALID, "")
        keys = [TopicPartitionKey.of(item) for item in partitions]
        found = [(key, self._content.positions.get(key, nothing)) for key in keys]
        return [TopicPartition(*key, offset, metadata=metadata) for key, (offset, metadata) in found]

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool = False) -> list[TopicPartition]:  # noqa: ARG002
        """Store offsets; they are on the disk when this returns, even with `asynchronous`.

        Raises KafkaException (`_FS`): the file cannot be written; its content is unchanged.
        """
        moved = {TopicPartitionKey.of(item): (item.offset, item.metadata or "") for item in offsets}
        content = self._content.moved(moved)
        try:
            self._write(encode(content))
        except OSError as error:
            _LOG.exception("consumer.offset-file-not-written", extra={"path": str(self._path)})
            raise KafkaException(KafkaError(KafkaError._FS, str(error))) from error  # noqa: SLF001
        self._content = content
        return offsets

    # --- inside ------------------------------------------------------------------------------------------------------

    def _take_lock(self) -> None:
        """Lock the file for this process.

        Decides: May a second process use the same client id in BROADCASTING? No, an OffsetStoreError at its start.
        """
        try:
            file_lock.lock(self._lock)
        except OSError as error:
            with suppress(OSError):
                os.lseek(self._lock, 0, os.SEEK_SET)
                holder = os.read(self._lock, 64).decode("ascii", "replace").strip()
                raise OffsetStoreError(
                    f"{self._path} is in use by process {holder or '?'}: two consumers with one client id would "
                    "overwrite each other's offsets; give each its own client_id"
                ) from error
            raise OffsetStoreError(f"{self._path} is in use, or cannot be locked: {error}") from error
        os.ftruncate(self._lock, 0)
        os.lseek(self._lock, 0, os.SEEK_SET)
        os.write(self._lock, str(os.getpid()).encode())

    def _renew_lock(self) -> None:
        """Make the folder and the lock again if somebody has deleted them. Raises OSError: another process has it."""
        folder = self._path.parent
        with suppress(FileNotFoundError):
            if os.path.samestat((folder / _LOCK).stat(), os.fstat(self._lock)):
                return
        folder.mkdir(parents=True, exist_ok=True)
        former, self._lock = self._lock, os.open(folder / _LOCK, _LOCK_FLAGS, 0o644)
        try:
            self._take_lock()
        except OffsetStoreError as error:
            os.close(self._lock)
            self._lock = former
            raise BlockingIOError(str(error)) from error
        os.close(former)
        _LOG.warning("consumer.offset-folder-made-again", extra={"path": str(folder)})

    def _read(self, cluster: str) -> OffsetFile:
        content = self._newest() or OffsetFile("")
        if cluster and content.cluster not in {"", cluster}:
            raise OffsetStoreError(
                f"{self._path} has offsets of the cluster {content.cluster}, but this cluster is {cluster}: choose "
                "another offset_store_dir or client_id, or remove the file to start by consume_from_where"
            )
        return replace(content, cluster=cluster or content.cluster)

    def _newest(self) -> OffsetFile | None:
        """Read the file, or its backup if the file is missing or damaged; None: neither exists."""
        backup, trouble = self._path.with_name(f"{_FILE}.bak"), ""
        for path in (self._path, backup):
            try:
                return decode(path.read_bytes())
            except FileNotFoundError:
                continue
            except OSError as error:
                raise OffsetStoreError(f"{path} cannot be read: {error}") from error
            except ValueError as error:
                self._is_damaged = True
                trouble = trouble or f"{path}: {error}"
                _LOG.error("consumer.offset-file-broken", extra={"path": str(path), "error": str(error)})
        if trouble:
            raise OffsetStoreError(
                f"the offsets are lost: {trouble}. Restore the file, or remove {self._path} and {backup.name} to "
                "start by consume_from_where"
            )
        return None

    def _write(self, data: bytes) -> None:
        self._renew_lock()
        beside = self._path.with_name(f"{_FILE}.tmp")
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if not self._is_damaged:
            with suppress(FileNotFoundError):
                self._path.replace(self._path.with_name(f"{_FILE}.bak"))
        beside.replace(self._path)
        self._is_damaged = False
        if hasattr(os, "O_DIRECTORY"):  # Windows opens no folder, and keeps the order of renames by itself
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

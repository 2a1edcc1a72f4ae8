"""Positions in a local file: the offset store of BROADCASTING, where each consumer has its own.

It has the shape of the Kafka consumer's `committed` and `commit`, so that whoever resolves starts and commits need not
know which it is. Rules:

* A file is written beside the old one, forced to the disk and then put in its place; the old one becomes `.bak`. A
  crash at any instant leaves the old positions or the new ones.
* A file that is not whole is never taken for "no positions" (RocketMQ does, and begins at the end): `.bak` is used if
  it is whole, which repeats some seconds of messages; else it is an error.
* A lock file keeps a second process with the same client id out: the two would overwrite each other's positions.
* A write that fails (disk full) is a refused commit: said, counted, and done again with the next one.

Source: `LocalFileOffsetStore` of RocketMQ.
"""

import fcntl
import os
import re
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from rocketshim.core.offset_file import OffsetFile, Stored, decode, encode
from rocketshim.errors import OffsetStoreError
from rocketshim.logs import safe_logger
from rocketshim_topics import TopicNames

__all__ = ["LocalOffsetStore", "offset_folder"]

_LOG = safe_logger("rocketshim.consumer")
_FILE: Final = "offsets.json"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9@_-]")


def offset_folder(base: str | None, client_id: str, names: TopicNames, group: str) -> Path:
    """The folder of a client's offset file of a group.

    Args:
        base: folder of all of them; None: `~/.rocketshim_offsets`.
        client_id: two clients with the same one share the file, and exclude each other.
        names: of the consumer's namespace.
        group: of the consumer.
    """
    root = Path(base).expanduser() if base is not None else Path.home() / ".rocketshim_offsets"
    safe = _UNSAFE.sub("-", client_id)[:120]
    if safe != client_id:
        safe = f"{safe}-{sha256(client_id.encode()).hexdigest()[:16]}"
    return root / safe / names.group_log(group)


class LocalOffsetStore:
    """Positions of one client in one group.

    Args:
        folder: where the file lies; made if it is missing.
        cluster: id of the cluster the positions are of; `""`: not known, and not compared.
        topic_id: asked for the id of a topic; `""`: not known.

    Raises:
        OffsetStoreError: another process has it, the file is not whole, it is of another cluster, or it cannot be
            read or written. Nothing was changed.

    Thread-safety: made in one thread, then the poll thread's.
    """

    def __init__(self, folder: Path, cluster: str, topic_id: Callable[[str], str]) -> None:
        self._path = folder / _FILE
        self._topic_id = topic_id
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "offsets.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise OffsetStoreError(
                f"positions cannot be kept in {folder}: {error}; choose another offset_store_dir"
            ) from error
        try:
            self._take_lock()
            self._content = self._of_cluster(self._read() or OffsetFile(""), cluster)
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others have the file. Safe twice."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def committed(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """Positions as `confluent_kafka.Consumer.committed` gives them; -1001 where there is none."""
        del timeout
        for topic in sorted({item.topic for item in partitions}):
            self._content = self._content.identified(topic, self._topic_id(topic))
        found = []
        for item in partitions:
            stored = self._content.positions.get((item.topic, item.partition))
            offset, metadata = (OFFSET_INVALID, "") if stored is None else (stored.offset, stored.metadata)
            found.append(TopicPartition(item.topic, item.partition, offset, metadata=metadata))
        return found

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool = False) -> list[TopicPartition]:
        """Store positions; on the disk when it returns, also when asked to be asynchronous.

        Raises:
            KafkaException: `_FS`, the file cannot be written; what it says is as before.
        """
        del asynchronous
        moved = {(item.topic, item.partition): Stored(item.offset, item.metadata or "") for item in offsets}
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
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            with suppress(OSError):
                holder = os.pread(self._lock, 64, 0).decode("ascii", "replace").strip()
                raise OffsetStoreError(
                    f"{self._path} is in use by process {holder or '?'}: two consumers of one client id would "
                    "overwrite each other's positions; give each its own client_id"
                ) from error
            raise OffsetStoreError(f"{self._path} is in use, or cannot be locked: {error}") from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def _of_cluster(self, content: OffsetFile, cluster: str) -> OffsetFile:
        if cluster and content.cluster not in {"", cluster}:
            raise OffsetStoreError(
                f"{self._path} holds positions of the cluster {content.cluster}, this one is {cluster}: choose "
                "another offset_store_dir or client_id, or remove the file to begin by consume_from_where"
            )
        return OffsetFile(cluster or content.cluster, content.topic_ids, content.positions)

    def _read(self) -> OffsetFile | None:
        """What the file says, else its predecessor; None: there are none."""
        backup = self._path.with_name(f"{_FILE}.bak")
        found, trouble = False, ""
        for path in (self._path, backup):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise OffsetStoreError(f"{path} cannot be read: {error}") from error
            found = True
            try:
                content = decode(data)
            except ValueError as error:
                trouble = trouble or f"{path}: {error}"
                _LOG.error("consumer.offset-file-broken", extra={"path": str(path), "error": str(error)})
            else:
                return content
        if found:
            raise OffsetStoreError(
                f"the positions are lost: {trouble}. Restore the file, or remove {self._path} and {backup.name} to "
                "begin by consume_from_where"
            )
        return None

    def _write(self, data: bytes) -> None:
        beside = self._path.with_name(f"{_FILE}.tmp")
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            self._path.replace(self._path.with_name(f"{_FILE}.bak"))
        beside.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

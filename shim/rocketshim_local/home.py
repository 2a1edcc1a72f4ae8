"""The folder of one local cluster, and the lock on it.

The folder contains `cluster.json` (cluster id, number of nodes, version of Kafka), `in-use` (an empty file that is
locked while the cluster runs) and for each node `node-<i>/data`, `node-<i>/log` and `node-<i>/server.properties`.

A folder that the caller names is kept. Otherwise the folder is `<cache>/clusters/<time of start>-<id>`: when the
cluster stops, its data are removed and its logs are kept. Each new start removes the data that crashed processes left,
and all but the newest `KEPT_LOGS` log folders. The lock on `in-use` tells whether a folder is in use; the kernel
releases it when the process that holds it ends. Starts take turns: otherwise one could remove a folder while another
looks at it.
"""

import base64
import json
import secrets
import shutil
import time
from pathlib import Path
from typing import IO

from rocketshim import file_lock
from rocketshim.errors import LocalBrokerError
from rocketshim_local.cache import cache_dir, exclusive
from rocketshim_local.jars import KAFKA_VERSION

__all__ = ["ClusterHome", "random_id"]

KEPT_LOGS = 8
_NOT_NOTED = "4.3.1"  # what wrote the folders that name no version


def random_id() -> str:
    """Return a random id as Kafka writes them: 16 bytes as 22 characters of URL-safe base64."""
    # The first byte is fixed, because Kafka's tools read an id that begins with a hyphen as an option.
    return base64.urlsafe_b64encode(b"R" + secrets.token_bytes(15))[:22].decode()


class ClusterHome:
    """The folder of a cluster, created if it does not exist, and locked from construction to `leave`.

    Without `data_dir` it is a new folder in the cache, whose data `leave` removes. A folder belongs to one cluster: the
    number of its nodes never changes.
    """

    def __init__(self, data_dir: Path | None, brokers: int) -> None:
        fresh_id = random_id()
        self._keeps_data = data_dir is not None
        if data_dir is None:
            self.path = cache_dir() / "clusters" / f"{time.strftime('%Y%m%d-%H%M%S')}-{fresh_id[:8]}"
        else:
            self.path = data_dir.expanduser().absolute()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if data_dir is None:
                with exclusive("clusters"):
                    _sweep(self.path.parent)
                    self._lock = _lock(self.path)
            else:
                self._lock = _lock(self.path)
        except OSError as error:
            raise LocalBrokerError(
                f"cannot use the folder {self.path}: {error.strerror}; name a folder that can be written"
            ) from error
        if self._lock is None:
            raise LocalBrokerError(
                f"the folder {self.path} is in use by another local cluster: stop it, or name another folder"
            )
        try:
            self.cluster_id = self._identify(brokers, fresh_id)
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Unlock the folder, after removing the data that are not kept. It may be called twice."""
        if self._lock is None:
            return
        if not self._keeps_data:
            _remove_data(self.path)
        _unlock(self._lock)
        self._lock = None

    def _identify(self, brokers: int, fresh_id: str) -> str:
        about = self.path / "cluster.json"
        try:
            if not about.exists():
                first = {"cluster_id": fresh_id, "brokers": brokers, "kafka": KAFKA_VERSION}
                about.write_text(json.dumps(first), encoding="utf-8")
            known = json.loads(about.read_text(encoding="utf-8"))
            known_brokers, known_id = int(known["brokers"]), str(known["cluster_id"])
            kafka = str(known.get("kafka", _NOT_NOTED))
            is_newer = _numbers(kafka) > _numbers(KAFKA_VERSION)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LocalBrokerError(f"{about} does not describe a cluster: name another folder") from error
        if known_brokers != brokers:
            raise LocalBrokerError(
                f"the folder {self.path} belongs to a cluster of {known_brokers} brokers, not {brokers}: "
                "start it with that number, or name another folder"
            )
        if is_newer:
            raise LocalBrokerError(
                f"the folder {self.path} has data of Kafka {kafka}, which the local broker, Kafka {KAFKA_VERSION}, "
                "cannot read: name another folder, or delete this one with its data"
            )
        if kafka != KAFKA_VERSION:
            about.write_text(json.dumps(known | {"kafka": KAFKA_VERSION}), encoding="utf-8")
        return known_id


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _lock(home: Path) -> IO[str] | None:
    """Lock a folder, created if it does not exist, against all other processes and threads; None if it is in use."""
    home.mkdir(mode=0o700, exist_ok=True)
    handle = (home / "in-use").open("w")
    try:
        file_lock.lock(handle.fileno())
    except OSError:
        handle.close()
        return None
    return handle


def _unlock(handle: IO[str]) -> None:
    file_lock.unlock(handle.fileno())
    handle.close()


def _remove_data(home: Path) -> None:
    for data in home.glob("node-*/data"):
        shutil.rmtree(data, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Remove the data of clusters whose process has ended, and all but their newest log folders."""
    kept = 0
    for home in sorted((mark.parent for mark in root.glob("*/in-use")), reverse=True):
        if (lock := _lock(home)) is None:
            continue
        _remove_data(home)
        _unlock(lock)
        kept += 1
        if kept > KEPT_LOGS:
            shutil.rmtree(home, ignore_errors=True)

"""The folder in which rocketshim keeps what it has downloaded, and the two rules that keep it sound.

1. *Whole or absent.* A set of files is filled in a folder with a temporary name, listed in a manifest (name, size,
   SHA-256), and takes its final name in one `rename`. A fetch that is killed leaves a folder nobody looks at, which
   the next fetch removes.
2. *One writer.* Whoever fills takes an exclusive `flock` first and looks again once it has it; the kernel gives the
   lock back when its holder dies, so no stale lock can be left behind. Readers take no lock: rule 1 serves them.

A set counts as complete when each file of its manifest is there with its size. Hashes are compared when the set is
filled and by `rocketshim broker info --verify`, not at each start: reading 45 MB costs more than starting from it.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rocketshim.errors import ConfigError, LocalBrokerError

__all__ = ["CACHE_VARIABLE", "FileSet", "cache_dir", "exclusive", "filling", "read_file_set"]

CACHE_VARIABLE = "ROCKETSHIM_CACHE"
"""Environment variable that names the cache folder; absent or empty: `$XDG_CACHE_HOME/rocketshim`."""

_MANIFEST = "manifest.json"


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the cache folder; it need not exist yet.

    Args:
        environ: the environment to read; None: this process's.

    Returns:
        `$ROCKETSHIM_CACHE`, else `$XDG_CACHE_HOME/rocketshim`, else `~/.cache/rocketshim`.

    Raises:
        ConfigError: the variable holds a relative path, which would name another folder in each directory.

    Thread-safety: any thread.
    """
    environ = os.environ if environ is None else environ
    if given := environ.get(CACHE_VARIABLE):
        path = Path(given).expanduser()
        if not path.is_absolute():
            raise ConfigError(f"{CACHE_VARIABLE}={given!r} is relative: give the cache folder as an absolute path")
        return path
    base = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification tells to ignore a relative path.
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "rocketshim"


@contextmanager
def exclusive(lock_file: Path) -> Iterator[None]:
    """Hold an exclusive lock among all processes and threads of this machine that name the same file.

    Blocks until the lock is free. The file stays: removing it would let two holders lock two files of one name.
    """
    _make_folder(lock_file.parent)
    with lock_file.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class FileSet:
    """A complete folder of files.

    Attributes:
        path: the folder.
        files: file name to (size in bytes, SHA-256 in hex), sorted by name.
        about: what the set was made from, as its maker wrote it.
    """

    path: Path
    files: Mapping[str, tuple[int, str]]
    about: Mapping[str, object]

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of all files, in bytes."""
        return sum(size for size, _ in self.files.values())

    def damaged(self) -> list[str]:
        """Return the names of files whose content is not what the manifest says; empty when all is well."""
        return [name for name, (_, sha256) in self.files.items() if _sha256(self.path / name) != sha256]


def read_file_set(path: Path) -> FileSet | None:
    """Return the set at `path`, or None when it is not there or not complete (a missing file, another size)."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        files = {name: (entry["size_bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
        if any((path / name).stat().st_size != size for name, (size, _) in files.items()):
            return None
        return FileSet(path, files, manifest["about"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # absent or unreadable in any way: to be filled anew


@contextmanager
def filling(path: Path, about: Mapping[str, object]) -> Iterator[Path]:
    """Give an empty folder to fill; at the end of the block it becomes the complete set at `path`.

    The caller holds the lock of this set. Only plain files directly in the folder belong to the set; folders in it
    are removed. When the block raises, nothing is left at `path` that was not there before.
    """
    _make_folder(path.parent)
    for abandoned in path.parent.glob(f".{path.name}.*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        partial.chmod(0o755)
        yield partial
        for folder in [entry for entry in partial.iterdir() if entry.is_dir()]:
            shutil.rmtree(folder)
        files = {
            entry.name: {"size_bytes": entry.stat().st_size, "sha256": _sha256(entry)}
            for entry in sorted(partial.iterdir())
        }
        (partial / _MANIFEST).write_text(json.dumps({"about": dict(about), "files": files}, indent=1), encoding="utf-8")
        if path.exists():
            shutil.rmtree(path)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LocalBrokerError(
            f"cannot create the cache folder {path}: {error.strerror}; name a writable one with {CACHE_VARIABLE}"
        ) from error

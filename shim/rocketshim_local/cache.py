"""The folder with the files that rocketshim has downloaded, and the two rules that keep it consistent.

1. *Complete or absent.* A set of files is written to a folder with a temporary name and listed in a manifest (name,
   size, SHA-256). One `rename` then gives the folder its final name. The next download removes what a killed one left.
2. *One writer.* A writer first takes an exclusive `flock` and then checks again whether the set exists. The kernel
   releases the lock when the process that holds it dies, so a stale lock cannot remain. Readers need no lock, because
   of rule 1.

A set is complete if each file of its manifest exists and has its size. Hashes are computed when the set is written, and
compared by `rocketshim broker info --verify`. They are not compared at each start: reading 45 MB takes longer than the
start itself.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rocketshim import file_lock
from rocketshim.errors import ConfigError, LocalBrokerError

__all__ = ["CACHE_VARIABLE", "FileSet", "cache_dir", "certificate_advice", "exclusive", "file_set", "read_file_set"]

CACHE_VARIABLE = "ROCKETSHIM_CACHE"
"""Environment variable with the cache folder; if it is unset or empty: `$XDG_CACHE_HOME/rocketshim`."""

_MANIFEST = "manifest.json"


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the cache folder; it may not exist yet.

    Args:
        environ: environment variables; None: those of this process.

    Returns:
        `$ROCKETSHIM_CACHE`, else `$XDG_CACHE_HOME/rocketshim`, else `~/.cache/rocketshim`.

    Raises:
        ConfigError: `ROCKETSHIM_CACHE` is a relative path, whose meaning would change with the working directory.

    Thread-safety: any thread.
    """
    environ = os.environ if environ is None else environ
    if given := environ.get(CACHE_VARIABLE):
        path = Path(given).expanduser()
        if not path.is_absolute():
            raise ConfigError(f"{CACHE_VARIABLE}={given!r} is relative: give the cache folder as an absolute path")
        return path
    base = Path(environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification requires that a relative path is ignored.
    return (base if base.is_absolute() else Path.home() / ".cache") / "rocketshim"


@contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Hold an exclusive lock against all other processes and threads of this machine that use the same name.

    Blocks until the lock is free. The file `locks/<name>.lock` of the cache is never removed: otherwise two holders
    could lock two different files with the same name.
    """
    lock_file = cache_dir() / "locks" / f"{name}.lock"
    try:
        lock_file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LocalBrokerError(
            f"cannot create the cache folder {lock_file.parent}: {error.strerror}; "
            f"name a writable one with {CACHE_VARIABLE}"
        ) from error
    with lock_file.open("a") as handle:
        file_lock.lock(handle.fileno(), wait=True)
        try:
            yield
        finally:
            file_lock.unlock(handle.fileno())


@dataclass(frozen=True, slots=True)
class FileSet:
    """A complete set of files in one folder.

    Attributes:
        path: the folder.
        files: file name to (size in bytes, SHA-256 in hex), sorted by name.
    """

    path: Path
    files: Mapping[str, tuple[int, str]]

    @property
    def size_bytes(self) -> int:
        """Total size of all files in bytes."""
        return sum(size for size, _ in self.files.values())

    def damaged(self) -> list[str]:
        """Return the names of files whose SHA-256 differs from the manifest; empty if all files are unchanged."""
        return [name for name, (_, sha256) in self.files.items() if _sha256(self.path / name) != sha256]


def read_file_set(path: Path) -> FileSet | None:
    """Return the set at `path`, or None if it does not exist or is not complete (a missing file, another size)."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        files = {name: (entry["size_bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
        complete = all((path / name).stat().st_size == size for name, (size, _) in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # absent or unreadable: the caller downloads it again
    return FileSet(path, files) if complete else None


def file_set(path: Path, write: Callable[[Path], None]) -> FileSet:
    """Return the set at `path`; write it if it does not exist or is not complete.

    Args:
        path: the folder of the set, in the cache.
        write: writes the files, without subfolders, to the empty folder that it is called with. If it raises, `path`
            stays as it was.

    Raises:
        LocalBrokerError: the cache folder cannot be created.

    Thread-safety: any thread, any number of processes; one of them writes, the others wait for it.
    """
    if (found := read_file_set(path)) is not None:
        return found
    with exclusive(path.name):
        if (found := read_file_set(path)) is not None:  # another process has written it meanwhile
            return found
        unfinished = path.with_name(f".{path.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            write(unfinished)
            files = {file.name: (file.stat().st_size, _sha256(file)) for file in sorted(unfinished.iterdir())}
            listed = {name: {"size_bytes": size, "sha256": sha256} for name, (size, sha256) in files.items()}
            (unfinished / _MANIFEST).write_text(json.dumps({"files": listed}, indent=1), encoding="utf-8")
            if path.exists():
                shutil.rmtree(path)
            unfinished.rename(path)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return FileSet(path, files)


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def certificate_advice(error: str) -> str:
    """Return what to do about an error of requests or pip, ending in a space; empty if no certificate caused it.

    Both read `REQUESTS_CA_BUNDLE`. Companies whose proxies replace certificates have such a file.
    """
    if "CERTIFICATE_VERIFY_FAILED" not in error:
        return ""
    return (
        "This machine does not trust the server's certificate: set REQUESTS_CA_BUNDLE to a PEM file with the authority "
        "that issued it, for example your company's. "
    )

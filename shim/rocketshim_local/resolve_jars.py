"""A process of its own: resolve Maven coordinates with jgo, download their jars, tell on stdout how it goes.

Started by `rocketshim_local.jars` as `python -m rocketshim_local.resolve_jars`, so that what jgo reads from the
environment (its cache, the local repository) never has to be set in the user's process.

In: one JSON object on stdin, `{"coordinates": [...], "repository": url, "into": folder}`. Out: one JSON object a line,
`{"resolved": n}`, then `{"file": name, "bytes": n}` per jar, at last `{"done": true, "pom_bytes": n}` or
`{"error": text}`. Exit code 0 exactly after `done`.

jgo resolves, by Maven's rules (nearest version, exclusions, scopes: compile and runtime are taken). Three things are
done otherwise than its `build()` does:

* A description (pom) that cannot be fetched is an error here. jgo goes on without it, and so without all that the
  artifact needs: one lost packet would leave a set that looks complete.
* A jar that differs from the SHA-1 beside it in the repository is an error. jgo logs a warning.
* Jars are not sorted into module folders, for which jgo would fetch a JDK of its own.

Jars come four at a time; what fails for a passing reason is tried three times.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import requests
from jgo.maven import Artifact, MavenContext, PythonResolver
from jgo.parse import Coordinate

_CONCURRENT_DOWNLOADS = 4
_TIMEOUT_S = 30
_TRIES = 3
_CHUNK_BYTES = 1 << 16
_T = TypeVar("_T")


class _StrictResolver(PythonResolver):
    """Resolves as jgo does and remembers what could not be downloaded."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[str] = []

    def download(self, artifact: Artifact) -> Path | None:
        def once() -> Path | None:
            # What an earlier try left may be half a file, and jgo insists on there being none.
            if artifact.cached_path is not None:
                artifact.cached_path.unlink(missing_ok=True)
            return super(_StrictResolver, self).download(artifact)

        try:
            return _persistently(once)
        except (requests.RequestException, OSError, RuntimeError) as error:
            self.failures.append(f"{artifact}: {error}")
            raise


def main() -> int:
    """Serve one request; see the module."""
    request = json.load(sys.stdin)
    into, repository = Path(request["into"]), str(request["repository"])
    try:
        artifacts = _resolve(request["coordinates"], repository, into / "poms")
        _tell(resolved=len(artifacts))
        with requests.Session() as session, ThreadPoolExecutor(_CONCURRENT_DOWNLOADS) as pool:
            jobs = [pool.submit(_download, session, url, into / name) for name, url in artifacts.items()]
            try:
                for job in as_completed(jobs):
                    _tell(**job.result())
            finally:
                pool.shutdown(cancel_futures=True)
    except (requests.RequestException, OSError, RuntimeError, ValueError) as error:
        _tell(error=f"{type(error).__name__}: {error}")
        return 1
    _tell(done=True, pom_bytes=sum(file.stat().st_size for file in (into / "poms").rglob("*") if file.is_file()))
    return 0


def _resolve(coordinates: list[str], repository: str, poms: Path) -> dict[str, str]:
    """Return file name to address of every jar that the coordinates need at run time, themselves included."""
    resolver = _StrictResolver()
    context = MavenContext(resolver=resolver, repo_cache=poms, remote_repos={"central": repository}, timeout=_TIMEOUT_S)
    # All at once, so that versions are settled among them as in one project; `raw`, or else each coordinate would
    # impose the versions it manages on all others (log4j manages an old kafka-clients), which Maven does not do.
    wanted = [
        context.create_dependency(replace(Coordinate.parse(text), scope="compile", raw=True)) for text in coordinates
    ]
    inputs, transitive = resolver.resolve(wanted)
    if resolver.failures:
        raise RuntimeError(resolver.failures[0])
    artifacts = [d.artifact for d in [*inputs, *(t for t in transitive if t.scope in {"compile", "runtime"})]]
    return {a.filename: f"{repository}/{a.component.path_prefix.as_posix()}/{a.filename}" for a in artifacts}


def _download(session: requests.Session, url: str, target: Path) -> dict[str, object]:
    sha1 = _persistently(lambda: _receive(session, url, target))
    published = _persistently(lambda: session.get(f"{url}.sha1", timeout=_TIMEOUT_S))
    words = published.text.split()
    # A repository manager may keep no checksum files; the transport has checked the length all the same.
    if published.ok and words and words[0].lower() != sha1:
        raise ValueError(f"{url} does not have the SHA-1 that stands beside it: {words[0]}, got {sha1}")
    return {"file": target.name, "bytes": target.stat().st_size}


def _receive(session: requests.Session, url: str, target: Path) -> str:
    sha1 = hashlib.sha1(usedforsecurity=False)
    with session.get(url, stream=True, timeout=_TIMEOUT_S) as response, target.open("wb") as file:
        response.raise_for_status()
        for chunk in response.iter_content(_CHUNK_BYTES):
            file.write(chunk)
            sha1.update(chunk)
    return sha1.hexdigest()


def _persistently(attempt: Callable[[], _T]) -> _T:
    """Return what `attempt` returns, trying again when the network fails it; an answer of the server is final."""
    for _ in range(_TRIES - 1):
        try:
            return attempt()
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
            continue
    return attempt()


def _tell(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

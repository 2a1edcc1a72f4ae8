"""Resolve Maven coordinates with jgo and download their jars, in a separate process that reports on stdout.

`rocketshim_local.jars` starts it as `python -m rocketshim_local.resolve_jars`. jgo reads its cache and its local
repository from environment variables; in a separate process these never have to be set in the user's process.

Input: one JSON object on stdin, `{"coordinates": [...], "repository": url, "into": folder}`. Output: one JSON object a
line: `{"resolved": n}`, then `{"file": name, "bytes": n}` per jar, finally `{"done": true, "pom_bytes": n}` or
`{"error": text}`. The exit code is 0 if and only if the last line is `done`.

jgo resolves by Maven's rules (nearest version, exclusions, scopes compile and runtime). Three things differ from jgo's
`build()`:

* A pom that cannot be downloaded is an error here. jgo continues without it, and thus without the dependencies of its
  artifact: after one lost packet an incomplete set would look complete.
* A jar that does not match the SHA-1 next to it in the repository is an error here. jgo logs a warning.
* Jars are not sorted into module folders; for that, jgo would download a JDK.

Four jars are downloaded at the same time. A download that fails because of the network is tried three times.
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
    """A resolver that works like jgo's and remembers which artifacts could not be downloaded."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[str] = []

    def download(self, artifact: Artifact) -> Path | None:
        def once() -> Path | None:
            # An earlier try may have left half a file, and jgo requires that the file does not exist.
            if artifact.cached_path is not None:
                artifact.cached_path.unlink(missing_ok=True)
            return super(_StrictResolver, self).download(artifact)

        try:
            return _persistently(once)
        except (requests.RequestException, OSError, RuntimeError) as error:
            self.failures.append(f"{artifact}: {error}")
            raise


def main() -> int:
    """Process the request on stdin; return the exit code. See the module docstring for input and output."""
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
    """Return file name to address of the jars of the coordinates and of all their run-time dependencies."""
    resolver = _StrictResolver()
    context = MavenContext(resolver=resolver, repo_cache=poms, remote_repos={"central": repository}, timeout=_TIMEOUT_S)
    # Resolve all coordinates together, so that their versions are mediated as in one Maven project. `raw`: otherwise
    # each coordinate would impose its managed versions on all others (log4j manages an old kafka-clients), which Maven
    # does not do.
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
    # A repository manager may have no checksum files; the transport has checked the length in any case.
    if published.ok and words and words[0].lower() != sha1:
        raise ValueError(f"{url} has the SHA-1 {sha1}, but the repository publishes {words[0]}")
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
    """Return the result of `attempt`; try up to three times if the network fails, but accept any answer of a server."""
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

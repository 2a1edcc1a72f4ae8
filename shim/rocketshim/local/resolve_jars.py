"""A process of its own: resolve Maven coordinates with jgo, download their jars, tell on stdout how it goes.

Started by `rocketshim.local.jars` as `python -m rocketshim.local.resolve_jars`, so that what jgo reads from the
environment (its cache, the local repository) never has to be set in the user's process.

In: one JSON object on stdin, `{"coordinates": [...], "repository": url, "into": folder}`. Out: one JSON object a line,
`{"resolved": n}`, then `{"file": name, "bytes": n}` per jar, at last `{"done": true, "pom_bytes": n}` or
`{"error": text}`. Exit code 0 exactly after `done`.

jgo resolves (dependency management, exclusions, scopes: compile and runtime are taken). Jars are downloaded here, four
at a time, each checked against the SHA-1 beside it in the repository: jgo only warns when that differs, and its
`build()` fetches a JDK of its own to sort jars into module folders, which nobody needs here.
"""

import hashlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

CONCURRENT_DOWNLOADS = 4
_TIMEOUT_S = 30
_CHUNK_BYTES = 1 << 16


def main() -> int:
    """Serve one request; see the module."""
    request = json.load(sys.stdin)
    import requests  # noqa: PLC0415 after the request was read: an import error is reported, too
    from jgo.maven import MavenContext  # noqa: PLC0415
    from jgo.parse import Coordinate  # noqa: PLC0415

    into = Path(request["into"])
    repository: str = request["repository"]
    poms = into / "poms"
    try:
        context = MavenContext(repo_cache=poms, remote_repos={"central": repository}, timeout=_TIMEOUT_S)
        # One resolution for all coordinates together, so that versions are mediated among them as in one project.
        wanted = [
            context.create_dependency(replace(Coordinate.parse(text), scope="compile", raw=True))
            for text in request["coordinates"]
        ]
        inputs, transitive = context.resolver.resolve(wanted)
        artifacts = [d.artifact for d in [*inputs, *(t for t in transitive if t.scope in {"compile", "runtime"})]]
        _tell(resolved=len(artifacts))
        with requests.Session() as session, ThreadPoolExecutor(CONCURRENT_DOWNLOADS) as pool:
            jobs = [
                pool.submit(_download, session, f"{repository}/{a.component.path_prefix.as_posix()}", a.filename, into)
                for a in artifacts
            ]
            try:
                for job in as_completed(jobs):
                    _tell(**job.result())
            finally:
                pool.shutdown(cancel_futures=True)
    except (requests.RequestException, OSError, RuntimeError, ValueError) as error:
        _tell(error=f"{type(error).__name__}: {error}")
        return 1
    _tell(done=True, pom_bytes=sum(file.stat().st_size for file in poms.rglob("*") if file.is_file()))
    return 0


def _download(session: Any, folder_url: str, name: str, into: Path) -> dict[str, object]:
    url = f"{folder_url}/{name}"
    sha1 = hashlib.sha1(usedforsecurity=False)
    size = 0
    with session.get(url, stream=True, timeout=_TIMEOUT_S) as response, (into / name).open("wb") as file:
        response.raise_for_status()
        for chunk in response.iter_content(_CHUNK_BYTES):
            file.write(chunk)
            sha1.update(chunk)
            size += len(chunk)
    with session.get(f"{url}.sha1", timeout=_TIMEOUT_S) as published:
        words = published.text.split()
    # A repository manager may keep no checksum files; the transport has checked the length all the same.
    if published.ok and words and words[0].lower() != sha1.hexdigest():
        raise ValueError(f"{url} does not have the SHA-1 that stands beside it: {words[0]}, got {sha1.hexdigest()}")
    return {"file": name, "bytes": size}


def _tell(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

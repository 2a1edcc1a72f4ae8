"""Resolve Maven coordinates with jgo, and download their jars from where the user's Maven would.

*From where.* Maven Central, unless a `settings.xml` names a mirror of it: a machine behind a company's repository
manager can often reach only that mirror. `ROCKETSHIM_MAVEN_REPOSITORY` takes precedence; then come
`~/.m2/settings.xml` and `conf/settings.xml` of `$MAVEN_HOME` and `$M2_HOME`. Only `<mirrors>` is read: a password comes
from `~/.netrc`, and a proxy from `HTTPS_PROXY`, as usual in Python. Nothing is ever written to `~/.m2`.

*Which jars.* jgo resolves by Maven's rules (nearest version, exclusions, scopes compile and runtime). Three things
differ from jgo's `build()`:

* A pom that cannot be downloaded is an error here. jgo continues without it, and thus without the dependencies of its
  artifact: after one lost packet an incomplete set would look complete.
* A jar that does not match the SHA-1 next to it in the repository is an error here. jgo logs a warning.
* Jars are not sorted into module folders; for that, jgo would download a JDK.
"""

import hashlib
import os
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import requests
from jgo.maven import Artifact, MavenContext, PythonResolver
from jgo.parse import Coordinate

from rocketshim.errors import ConfigError

__all__ = ["CENTRAL", "REPOSITORY_VARIABLE", "PomError", "central_url", "download", "mirror_of_central"]

CENTRAL = "https://repo.maven.apache.org/maven2"
REPOSITORY_VARIABLE = "ROCKETSHIM_MAVEN_REPOSITORY"

_CONCURRENT_DOWNLOADS = 4
_TIMEOUT_S = 30
_TRIES = 3
_T = TypeVar("_T")


def central_url(environ: Mapping[str, str] | None = None) -> str:
    """Return the address from which the user's Maven would download artifacts of Maven Central, without a final slash.

    Raises:
        ConfigError: `ROCKETSHIM_MAVEN_REPOSITORY` is not an http(s) address.
    """
    environ = os.environ if environ is None else environ
    if given := environ.get(REPOSITORY_VARIABLE):
        if not given.startswith(("https://", "http://")):
            raise ConfigError(f"{REPOSITORY_VARIABLE}={given!r} is not an http(s) address of a Maven repository")
        return given.rstrip("/")
    files = [Path.home() / ".m2" / "settings.xml"]
    files += [Path(environ[name]) / "conf" / "settings.xml" for name in ("MAVEN_HOME", "M2_HOME") if environ.get(name)]
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if url := mirror_of_central(text):
            return url.rstrip("/")
    return CENTRAL


def mirror_of_central(settings_xml: str) -> str | None:
    """Return the http(s) address of the first mirror of Maven Central in a `settings.xml`; None if there is none.

    Source: Maven's guide to mirror settings (`*`, `external:*`, lists, `!id` exclusions).
    """
    try:
        root = ET.fromstring(settings_xml)  # noqa: S314 the user's own Maven settings
    except ET.ParseError:
        return None
    for mirror in root.iterfind("{*}mirrors/{*}mirror"):
        url = (mirror.findtext("{*}url") or "").strip()
        patterns = {part.strip() for part in (mirror.findtext("{*}mirrorOf") or "").split(",")}
        covers = "!central" not in patterns and patterns & {"central", "*", "external:*"}
        if covers and url.startswith(("https://", "http://")):
            return url
    return None


def download(coordinates: Sequence[str], repository: str, into: Path, report: Callable[[str], None]) -> None:
    """Download the jars of the coordinates and of all their run-time dependencies into a folder.

    Args:
        coordinates: resolved together, as in one Maven project.
        repository: address of the Maven repository.
        into: the folder.
        report: is called with one line per step, from this thread.

    Raises:
        PomError, OSError, RuntimeError, ValueError: the repository cannot be reached, an artifact does not exist, or a
            checksum differs.
    """
    with tempfile.TemporaryDirectory() as poms:
        addresses = _resolve(coordinates, repository, Path(poms))
    report(f"jars: {len(addresses)} to download")
    size_bytes = 0
    with requests.Session() as session, ThreadPoolExecutor(_CONCURRENT_DOWNLOADS) as pool:
        for count, size in enumerate(pool.map(lambda url: _download(session, url, into), addresses), 1):
            size_bytes += size
            if count == len(addresses) or count % max(1, len(addresses) // 5) == 0:
                report(f"jars: {count} of {len(addresses)}, {size_bytes / 1e6:.1f} MB")


class PomError(Exception):
    """A pom cannot be downloaded. jgo catches OSError, ValueError and RuntimeError, and continues without the pom."""


class _StrictResolver(PythonResolver):
    """A resolver that works like jgo's and ends at the first artifact that cannot be downloaded."""

    def download(self, artifact: Artifact) -> Path | None:
        def once() -> Path | None:
            # An earlier try may have left half a file, and jgo requires that the file does not exist.
            if artifact.cached_path is not None:
                artifact.cached_path.unlink(missing_ok=True)
            return super(_StrictResolver, self).download(artifact)

        try:
            return _persistently(once)
        except (OSError, RuntimeError) as error:  # a RequestException is an OSError
            raise PomError(f"{artifact}: {error}") from error


def _resolve(coordinates: Sequence[str], repository: str, poms: Path) -> list[str]:
    """Return the addresses of the jars of the coordinates and of all their run-time dependencies, each one once."""
    resolver = _StrictResolver()
    context = MavenContext(resolver=resolver, repo_cache=poms, remote_repos={"central": repository}, timeout=_TIMEOUT_S)
    # Resolve all coordinates together, so that their versions are mediated as in one Maven project. `raw`: otherwise
    # each coordinate would impose its managed versions on all others (log4j manages an old kafka-clients), which Maven
    # does not do.
    wanted = [
        context.create_dependency(replace(Coordinate.parse(text), scope="compile", raw=True)) for text in coordinates
    ]
    inputs, transitive = resolver.resolve(wanted)
    artifacts = [d.artifact for d in [*inputs, *(t for t in transitive if t.scope in {"compile", "runtime"})]]
    return sorted({f"{repository}/{a.component.path_prefix.as_posix()}/{a.filename}" for a in artifacts})


def _download(session: requests.Session, url: str, into: Path) -> int:
    """Download a jar and check it; return its size in bytes."""
    jar = _persistently(lambda: session.get(url, timeout=_TIMEOUT_S))
    jar.raise_for_status()
    published = _persistently(lambda: session.get(f"{url}.sha1", timeout=_TIMEOUT_S))
    sha1 = hashlib.sha1(jar.content, usedforsecurity=False).hexdigest()
    words = published.text.split()
    # A repository manager may have no checksum files; the transport has checked the length in any case.
    if published.ok and words and words[0].lower() != sha1:
        raise ValueError(f"{url} has the SHA-1 {sha1}, but the repository publishes {words[0]}")
    (into / url.rpartition("/")[2]).write_bytes(jar.content)
    return len(jar.content)


def _persistently(attempt: Callable[[], _T]) -> _T:
    """Return the result of `attempt`; try up to three times if the network fails, but accept any answer of a server."""
    for _ in range(_TRIES - 1):
        try:
            return attempt()
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
            continue
    return attempt()

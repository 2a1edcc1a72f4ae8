"""Download jars by Maven coordinates into rocketshim's own cache.

The jars of a set of coordinates are in one folder `<cache>/jars/<artifact>-<version>-<hash of the coordinates>`, which
is complete or absent (see `rocketshim_local.cache`). The user's Maven repository is neither read nor written, because a
repository that contains a pom without its jar breaks other resolvers.
"""

import hashlib
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from rocketshim.errors import ConfigError, LocalBrokerError
from rocketshim.extras import way_in
from rocketshim_local.cache import (
    CACHE_VARIABLE,
    FileSet,
    cache_dir,
    certificate_advice,
    file_set,
    read_file_set,
)

__all__ = ["KAFKA_COORDINATES", "KAFKA_VERSION", "cached_jars", "fetch_jars"]

KAFKA_VERSION = "4.2.2"
"""Version of the broker. A new version may need a new `bootstrap.checkpoint`; a test of the local broker tells."""

KAFKA_COORDINATES = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    # Kafka's pom names no logging back end (its release archive adds one). Without one the broker logs nothing.
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
)
"""Coordinates of the jars that a broker needs: 45 jars of Kafka and one for its logging."""

_COORDINATE = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+(:[\w.-]+)?")
_log = logging.getLogger("rocketshim.local")


def fetch_jars(coordinates: Sequence[str], *, report: Callable[[str], None] | None = None) -> FileSet:
    """Return the jars of the coordinates and of all their run-time dependencies; download them if they are not cached.

    Args:
        coordinates: `group:artifact:version[:classifier]`, at least one; resolved together, as in one Maven project.
        report: is called with progress, one line of text per call; None: the logger `rocketshim.local` at INFO.

    Returns:
        the complete set. Do not change its folder.

    Raises:
        ConfigError: there are no coordinates, or one does not have this form.
        LocalBrokerError: jgo is not installed, the repository cannot be reached, an artifact does not exist, or a
            checksum differs. The cache is unchanged.

    Thread-safety: any thread, any number of processes; one of them downloads, the others wait for it.
    """
    return file_set(_folder(coordinates), lambda folder: _download(coordinates, folder, report or _log.info))


def cached_jars(coordinates: Sequence[str]) -> FileSet | None:
    """Return the jars of the coordinates if they are cached and complete, else None. Downloads nothing."""
    return read_file_set(_folder(coordinates))


def _folder(coordinates: Sequence[str]) -> Path:
    if not coordinates:
        raise ConfigError("no coordinates: name at least one group:artifact:version")
    for text in coordinates:
        if not _COORDINATE.fullmatch(text):
            raise ConfigError(f"{text!r} is not a Maven coordinate: write group:artifact:version[:classifier]")
    digest = hashlib.sha256("\n".join(sorted(coordinates)).encode()).hexdigest()[:8]
    artifact, version = coordinates[0].split(":")[1:3]
    return cache_dir() / "jars" / f"{artifact}-{version}-{digest}"


def _download(coordinates: Sequence[str], folder: Path, report: Callable[[str], None]) -> None:
    try:
        from rocketshim_local import maven  # noqa: PLC0415 - jgo and requests, for downloads only
    except ModuleNotFoundError as error:
        raise LocalBrokerError(f"cannot download jars without the package {error.name}: {way_in('local')}") from error
    repository = maven.central_url()
    report(f"jars: resolving {', '.join(coordinates)} at {repository}")
    try:
        maven.download(coordinates, repository, folder, report)
    except (maven.PomError, OSError, RuntimeError, ValueError) as error:
        raise LocalBrokerError(
            f"cannot download {', '.join(coordinates)} from {repository} ({error}). {certificate_advice(str(error))}"
            f"If this machine cannot reach Maven Central: set a mirror in ~/.m2/settings.xml or in "
            f"{maven.REPOSITORY_VARIABLE}, or copy the cache folder of another machine and set {CACHE_VARIABLE} to it, "
            "or set ROCKETSHIM_BOOTSTRAP to the address of a running Kafka"
        ) from error

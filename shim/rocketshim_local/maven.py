"""Find the repository from which the user's Maven would download.

It is Maven Central, unless a `settings.xml` names a mirror of it. A machine behind a company's repository manager can
often reach only that mirror. The files are `~/.m2/settings.xml`, then `conf/settings.xml` of `$MAVEN_HOME` and
`$M2_HOME`; the first matching mirror is used, as in Maven. `ROCKETSHIM_MAVEN_REPOSITORY` takes precedence over all of
them.

Only `<mirrors>` is read. Passwords (`<servers>`) are not read: a password for a mirror comes from `~/.netrc`, and a
proxy from `HTTPS_PROXY`, as usual in Python. Nothing is ever written to `~/.m2`.
"""

import os
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

from rocketshim.errors import ConfigError

__all__ = ["CENTRAL", "REPOSITORY_VARIABLE", "central_url", "mirror_of_central"]

CENTRAL = "https://repo.maven.apache.org/maven2"
REPOSITORY_VARIABLE = "ROCKETSHIM_MAVEN_REPOSITORY"


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
    """Return the address of the first mirror of Maven Central in a `settings.xml`.

    Returns:
        the address; None if the text is not XML, or no mirror with an http(s) address matches.

    Source: Maven's guide to mirror settings (`*`, `external:*`, lists, `!id` exclusions).
    """
    try:
        root = ET.fromstring(settings_xml)  # noqa: S314 the user's own Maven settings
    except ET.ParseError:
        return None
    for mirror in root.iterfind("{*}mirrors/{*}mirror"):
        fields = {child.tag.rpartition("}")[2]: (child.text or "").strip() for child in mirror}
        url = fields.get("url", "")
        if _stands_for_central(fields.get("mirrorOf", "")) and url.startswith(("https://", "http://")):
            return url
    return None


def _stands_for_central(mirror_of: str) -> bool:
    patterns = [part.strip() for part in mirror_of.split(",")]
    if "!central" in patterns:
        return False
    return any(pattern in {"central", "*", "external:*"} for pattern in patterns)

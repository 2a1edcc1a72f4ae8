"""Who may use the console, and how they prove it: a token, a file of users, or a proxy in front.

Sessions live in memory: a restart ends them. A session's id is made at login and never accepted from the outside, so
that it cannot be fixed by somebody else. Comparisons take the same time whether they succeed or not.

A line of the users' file is `NAME:ROLE:scrypt$N$R$P$SALT$HASH`, made by `rocketshim console --new-user`. Empty lines
and lines that begin with `#` are skipped. The file is read again when it changes: users that are no longer in it, or
have another role or password, are logged out. While it cannot be read or is not valid, the users of before stay, and a
warning is logged, so that a slip of an editor locks nobody out.
"""

import base64
import hashlib
import hmac
import ipaddress
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:  # an extra, and `--help` and `--new-user` do without
    from starlette.datastructures import Headers

from rocketshim.errors import ConfigError
from rocketshim.logs import safe_logger

__all__ = [
    "Person",
    "ProxyUsers",
    "Role",
    "Sessions",
    "TooManyAttemptsError",
    "Users",
    "check_token",
    "new_token",
    "user_line",
]

Role = Literal["viewer", "operator"]
_N, _R, _P = 2**14, 8, 1
_SESSION_MS: Final = 12 * 3_600_000
_MOST_SESSIONS: Final = 1_000
_MOST_FAILURES: Final = 20
_FAILURES_MS: Final = 60_000
_LOG = safe_logger("rocketshim.console")


@dataclass(frozen=True, slots=True)
class Person:
    """A user of the console."""

    name: str  # as the log of redrives names them
    role: Role  # `viewer` may read, `operator` may write, too


class TooManyAttemptsError(Exception):
    """Too many logins failed within a minute."""


def new_token() -> str:
    """Return a secret to log in with, made at start and printed once."""
    return secrets.token_urlsafe(32)


def check_token(token: str, name: str, secret: str) -> Person | None:
    """Return the operator if the secret is the token; the name is not used."""
    del name
    return Person("token", "operator") if hmac.compare_digest(secret.encode(), token.encode()) else None


class Users:
    """The users of a file; the error of a line never contains a hash.

    Thread-safety: any thread; the users are replaced by one assignment.
    """

    def __init__(self, lines: list[str], file: Path | str = "the users' file") -> None:
        self._file = file
        self._nobody = _hashed(secrets.token_urlsafe(16))
        self._users = _users_of(lines, file)
        self._seen: object = _look(file)

    @classmethod
    def of(cls, path: Path) -> "Users":
        """Read the file, which other users of the machine must not be able to read."""
        return cls(_lines(path), path)

    def check(self, name: str, secret: str) -> Person | None:
        """Return who this is; None: there is no such user, or the password is wrong."""
        role, hashed = self._newest().get(name, (None, self._nobody))
        is_right = _matches(secret, hashed)
        return Person(name, role) if is_right and role is not None else None

    def entry(self, name: str) -> object:
        """Return what stands for a user in the file now; None: nothing."""
        return self._newest().get(name)

    def _newest(self) -> dict[str, tuple[Role, str]]:
        """Return the users of the file, which is read if it has changed."""
        seen = _look(self._file)
        if seen != self._seen:
            self._seen = seen
            try:
                self._users = _users_of(_lines(Path(self._file)), self._file)
            except ConfigError as error:
                _LOG.warning("console.users-file-refused", extra={"error": str(error)})
        return self._users


def _look(file: Path | str) -> object:
    """Return what tells two versions of a file apart."""
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode)


def _lines(path: Path) -> list[str]:
    try:
        is_open = path.stat().st_mode & 0o007
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the users' file {path} ({type(error).__name__})") from error
    if is_open:
        raise ConfigError(f"every user of this machine may read or write {path}: chmod o= {path}")
    return lines


def _users_of(lines: list[str], file: Path | str) -> dict[str, tuple[Role, str]]:
    users: dict[str, tuple[Role, str]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, _, rest = line.strip().partition(":")
        role, _, hashed = rest.partition(":")
        if role not in {"viewer", "operator"} or not name or not _is_hash(hashed) or name in users:
            raise ConfigError(f"{file}, line {number}: not NAME:viewer|operator:scrypt$…, or repeated")
        users[name] = ("operator" if role == "operator" else "viewer", hashed)
    return users


class ProxyUsers:
    """Users that a proxy has authenticated. Its headers count only in connections from the proxy.

    A header that is there twice names nobody: the first one may be its client's, which the proxy did not remove. Only
    members of the group `operators` may write; without it, nobody may.
    """

    def __init__(
        self, header: str, *, groups_header: str | None, operators: str | None, trusted: tuple[str, ...]
    ) -> None:
        self._header = header.lower()
        self._groups_header = (groups_header or "").lower()
        self._operators = operators
        self._trusted = [ipaddress.ip_network(each) for each in trusted]

    def person(self, address: str | None, headers: "Headers") -> Person | None:
        """Return who sends a request; None: it does not come from the proxy, or names nobody."""
        try:
            client = ipaddress.ip_address(address or "")
        except ValueError:
            return None
        names, groups_headers = headers.getlist(self._header), headers.getlist(self._groups_header)
        if len(names) != 1 or len(groups_headers) > 1 or not any(client in network for network in self._trusted):
            return None
        name = names[0].strip()
        if not name or not name.isprintable():
            return None
        groups = {each.strip() for listed in groups_headers for each in listed.split(",")}
        is_operator = self._operators is not None and self._operators in groups
        return Person(name[:200], "operator" if is_operator else "viewer")


class Sessions:
    """Logins with a form, and their sessions. `check` returns the person of a name and a secret; None: they are wrong.

    A session counts as long as `entry`, what is known of its user, is what it was at the login.

    After 20 failures in a minute, no login of that name is tried until the minute is over. A token has no name, and
    cannot be guessed: its failures are not counted, so that no stranger's page locks anybody out.

    Thread-safety: any thread; call `login` from one at a time, so that guessing cannot use up memory.
    """

    def __init__(
        self,
        check: Callable[[str, str], Person | None],
        now_ms: Callable[[], int],
        entry: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._check = check
        self._now_ms = now_ms
        self._entry = entry
        self._sessions: dict[str, tuple[Person, int, object]] = {}
        self._failures: list[tuple[str, int]] = []
        self._lock = threading.Lock()

    def login(self, name: str, secret: str) -> str | None:
        """Return the id of a new session; None: name or secret are wrong. After many failures of a name, refuse it."""
        now_ms = self._now_ms()
        self._failures = [each for each in self._failures if now_ms - each[1] < _FAILURES_MS]
        if [each[0] for each in self._failures].count(name) >= _MOST_FAILURES:
            raise TooManyAttemptsError
        entry = self._entry(name)
        person = self._check(name, secret)
        if person is None:
            self._failures += [(name, now_ms)] if name else []
            return None
        session = secrets.token_urlsafe(32)
        with self._lock:
            self._drop_old(now_ms)
            self._sessions[session] = (person, now_ms + _SESSION_MS, entry)
        return session

    def person(self, session: str) -> Person | None:
        """Return the user of this session; None: there is none, it has expired, or the user has changed."""
        with self._lock:
            person, until_ms, entry = self._sessions.get(session, (None, 0, None))
        if person is None or self._now_ms() >= until_ms or self._entry(person.name) != entry:
            return None
        return person

    def logout(self, session: str) -> None:
        """End a session."""
        with self._lock:
            self._sessions.pop(session, None)

    def _drop_old(self, now_ms: int) -> None:
        self._sessions = {name: each for name, each in self._sessions.items() if now_ms < each[1]}
        while len(self._sessions) >= _MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]


def user_line(name: str, role: str, password: str) -> str:
    """Return the line of a user for the users' file."""
    if not name or ":" in name or not name.isprintable() or name != name.strip() or name.startswith("#"):
        raise ConfigError("the name must be printable, without a colon")
    if role not in {"viewer", "operator"}:
        raise ConfigError(f"the role is {role!r}; it must be viewer or operator")
    if len(password) < 12:
        raise ConfigError("the password needs 12 characters or more")
    return f"{name}:{role}:{_hashed(password)}"


def _hashed(password: str) -> str:
    salt = secrets.token_bytes(16)
    digest = hashlib.scrypt(password.encode(), salt=salt, n=_N, r=_R, p=_P)
    return "$".join(
        ["scrypt", str(_N), str(_R), str(_P), *(base64.b64encode(each).decode() for each in (salt, digest))]
    )


def _matches(password: str, hashed: str) -> bool:
    _, n, r, p, salt, digest = hashed.split("$")
    found = hashlib.scrypt(password.encode(), salt=base64.b64decode(salt), n=int(n), r=int(r), p=int(p))
    return hmac.compare_digest(found, base64.b64decode(digest))


def _is_hash(text: str) -> bool:
    """Return whether a hash costs what ours do: a cheap one could be guessed, a dear one would keep others waiting."""
    try:
        kind, n, r, p, salt, digest = text.split("$")
        sizes = [len(base64.b64decode(each, validate=True)) for each in (salt, digest)]
    except ValueError:
        return False
    return (kind, n, r, p) == ("scrypt", str(_N), str(_R), str(_P)) and sizes[0] >= 16 and sizes[1] == 64

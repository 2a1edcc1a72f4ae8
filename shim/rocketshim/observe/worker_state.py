"""Ask workers what they do: `/state` of their health servers (`rocketshim worker --health`).

Only the given addresses are asked, all at the same time. Redirects are errors, proxies are not used, and an answer may
have 1 MiB and take 2 s.
"""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException, HTTPResponse
from typing import Final
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, build_opener

from pydantic import BaseModel, ConfigDict, ValidationError

from rocketshim.errors import ConfigError
from rocketshim.observe.snapshot import WorkerSnapshot

__all__ = ["ask_workers", "checked_urls"]

_TIMEOUT_S: Final = 2.0
_MOST_BYTES: Final = 1_048_576
_AT_ONCE: Final = 16


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Return nothing, which makes a redirect an `HTTPError`."""


class _Queue(BaseModel):
    held: int


class _Counts(BaseModel):
    delivered: int
    parked: dict[str, int]
    alarms: dict[str, int]


class _State(BaseModel):
    """The part of `rocketshim.worker.state.WorkerState` that is shown."""

    model_config = ConfigDict(strict=True)

    ready: bool
    mode: str
    oldest_due_ms: int
    avoided: dict[str, str]
    queues: list[_Queue]
    counts: _Counts


def checked_urls(urls: Iterable[str]) -> tuple[str, ...]:
    """Return addresses of health servers as they were given; refuse one with a password, which pages would show."""
    checked = tuple(urls)
    for url in checked:
        try:
            parts = urlsplit(url)
        except ValueError:  # its text may have the password
            raise ConfigError(
                "a worker URL is not valid: write http://HOST:PORT, for example http://[::1]:80"
            ) from None
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(f"worker URL {url!r}: write http://HOST:PORT, for example http://worker-1:8080")
        if "@" in parts.netloc:
            raise ConfigError(f"the worker URL of {parts.hostname} has a password, which pages would show: remove it")
    return checked


def ask_workers(urls: Sequence[str]) -> tuple[WorkerSnapshot, ...]:
    """Return what the workers say, in the order of their URLs; one that did not answer has an `error`."""
    if not urls:
        return ()
    with ThreadPoolExecutor(min(len(urls), _AT_ONCE), "rocketshim-worker-state") as pool:
        return tuple(pool.map(_ask, urls))


def _ask(url: str) -> WorkerSnapshot:
    opener = build_opener(_NoRedirects, ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/state", timeout=_TIMEOUT_S) as answer:
            state = _State.model_validate_json(_read(answer))
    except ValidationError as error:
        return WorkerSnapshot(url, error=f"this is not a worker's state: {error.error_count()} fields are wrong")
    except HTTPError as error:
        with error:
            return WorkerSnapshot(url, error=f"it answered {error.code} {error.reason}")
    except (OSError, HTTPException, ValueError) as error:
        return WorkerSnapshot(url, error=str(getattr(error, "reason", error)) or type(error).__name__)
    return WorkerSnapshot(
        url,
        mode=state.mode,
        is_ready=state.ready,
        queues=len(state.queues),
        held=sum(queue.held for queue in state.queues),
        late_ms=state.oldest_due_ms,
        avoided=state.avoided,
        delivered=state.counts.delivered,
        parked=state.counts.parked,
        alarms=state.counts.alarms,
    )


def _read(answer: HTTPResponse) -> bytes:
    end_s, body = time.monotonic() + _TIMEOUT_S, b""
    while chunk := answer.read1(65_536):
        body += chunk
        if len(body) > _MOST_BYTES or time.monotonic() > end_s:
            raise ValueError("its answer is longer than 1 MiB, or takes longer than 2 s")
    return body

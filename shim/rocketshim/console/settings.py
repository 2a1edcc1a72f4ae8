"""Settings of the console, checked when they are made: it refuses to start where it would not be safe."""

import ipaddress
import socket
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from rocketshim.health import is_loopback
from rocketshim.observe.worker_state import checked_urls
from rocketshim.settings import Settings
from rocketshim_topics import DelayLevels

__all__ = ["ConsoleSettings", "Hidden"]

Hidden = Literal["bodies", "headers"]
_MIB = 1_048_576


class ConsoleSettings(Settings):
    """What the command line says about the console.

    Attributes:
        bootstrap: addresses of the Kafka brokers.
        namespace: prefix of rocketshim's own topics.
        client: further librdkafka settings.
        levels: the worker's level table.
        host: address to listen on.
        port: port to listen on; 0: any free one.
        operate: register the routes that write; False: nothing can be changed.
        auth: `token`, `proxy`, or `@FILE` with the users.
        proxy_header: header in which the proxy names the user.
        proxy_groups_header: header in which the proxy names the user's groups; None: it does not.
        trusted_proxies: addresses that the proxy connects from. Required for `proxy`.
        operators: name of the group whose members may write, for `proxy`; None: nobody.
        public_url: URL of the console as browsers see it; None: the address that it listens on.
        tls_cert, tls_key: files in PEM; None: no TLS.
        hide: what no page shows: `bodies`, or `headers` (the user's own headers, and keys).
        allow_export: allow downloading bodies and dead letters.
        worker_urls: addresses of the workers' health servers; no other address is ever asked.
        read_limit_bytes: how much one page may read, in bytes. Default 32 MiB.
        state_dir: where plans are stored.

    Raises:
        ConfigError: from `make`; a value is out of range, or the combination is not safe.
    """

    bootstrap: str
    namespace: str = ""
    client: dict[str, Any] = Field(default_factory=dict)
    levels: DelayLevels = Field(default_factory=DelayLevels.default)
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8085
    operate: bool = False
    auth: Annotated[str, Field(pattern=r"^(token|proxy|@.+)$")] = "token"
    proxy_header: str = "X-Forwarded-User"
    proxy_groups_header: str | None = None
    trusted_proxies: tuple[str, ...] = ()
    operators: str | None = None
    public_url: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    hide: frozenset[Hidden] = frozenset()
    allow_export: bool = True
    worker_urls: tuple[str, ...] = ()
    read_limit_bytes: Annotated[int, Field(ge=_MIB)] = 32 * _MIB
    state_dir: Path

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.public_url is not None:
            url = urlsplit(self.public_url)
            if url.scheme not in {"http", "https"} or not url.hostname or url.query or url.fragment:
                raise ValueError("public_url must be like https://ops.example/rocketshim")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together")
        if not self.is_loopback and not self.is_https:
            raise ValueError(
                f"listening on {self.host} without encryption would expose passwords and messages: "
                "use --tls-cert and --tls-key, or a proxy with TLS and --public-url https://…"
            )
        if self.auth == "proxy" and not self.trusted_proxies:
            raise ValueError("auth=proxy needs --trusted-proxy: otherwise anybody could name themselves")
        for network in self.trusted_proxies:
            ipaddress.ip_network(network)
        checked_urls(self.worker_urls)
        return self

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can connect."""
        return is_loopback(self.host)

    @property
    def is_https(self) -> bool:
        """Return whether browsers connect with TLS."""
        return self.tls_cert is not None or (self.public_url or "").startswith("https://")

    @property
    def base_path(self) -> str:
        """Return the path of the public URL without its last slash; `""`: the console is at the top."""
        return urlsplit(self.public_url or "").path.rstrip("/")

    @property
    def hosts(self) -> frozenset[str]:
        """Return the names under which browsers may call the console, in lower case and without a port."""
        named = {self.host}
        if self.public_url is not None:
            named.add(urlsplit(self.public_url).hostname or "")
        named |= {"localhost", "127.0.0.1", "::1"} if self.is_loopback else {socket.gethostname(), socket.getfqdn()}
        return frozenset(map(str.lower, named))

    @property
    def origin(self) -> str | None:
        """Return the origin of the public URL; None: it is that of the request's own host."""
        if self.public_url is None:
            return None
        url = urlsplit(self.public_url)
        return f"{url.scheme}://{url.netloc}".lower()

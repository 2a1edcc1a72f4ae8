"""Find or start a Kafka: a named one, one in Docker, or one in a local JVM.

The first choice that is available is used, and reported in one line:

1. The address in `ROCKETSHIM_BOOTSTRAP`, if it is set. Then nothing is started or stopped. If the named broker does not
   answer, that is an error; the other choices are not tried, because the user chose this broker explicitly.
2. Docker, if an engine answers within a second and testcontainers is installed.
3. `LocalCluster`.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from rocketshim.errors import BrokerUnavailableError
from rocketshim_local.cluster import LocalCluster
from rocketshim_local.docker import docker_broker, docker_obstacle
from rocketshim_local.probe import admin_client, known_brokers

__all__ = ["BOOTSTRAP_VARIABLE", "Broker", "any_broker", "choose"]

BOOTSTRAP_VARIABLE = "ROCKETSHIM_BOOTSTRAP"
_ANSWER_TIMEOUT_S = 5.0
BrokerKind = Literal["named", "docker", "local"]

_log = logging.getLogger("rocketshim.local")


@dataclass(frozen=True, slots=True)
class Broker:
    """A running Kafka.

    Attributes:
        bootstrap: address, for `bootstrap.servers`.
        kind: its origin: `named` (`ROCKETSHIM_BOOTSTRAP`), `docker` or `local`.
        cluster: the local cluster if `kind` is `local`, else None.
    """

    bootstrap: str
    kind: BrokerKind
    cluster: LocalCluster | None = None


def choose(environ: Mapping[str, str], docker_obstacle: Callable[[], str | None]) -> tuple[BrokerKind, str]:
    """Return the kind of broker to use, and the reason as text for a person.

    Decides: Which Kafka does a program get to develop with? The one that ROCKETSHIM_BOOTSTRAP names, or none; else
        Docker, else a local one.
    """
    if environ.get(BOOTSTRAP_VARIABLE):
        return "named", f"{BOOTSTRAP_VARIABLE} names it"
    if (obstacle := docker_obstacle()) is None:
        return "docker", "a Docker engine answers"
    return "local", f"a JVM on this machine ({obstacle})"


@contextmanager
def any_broker(
    *, properties: Mapping[str, str] | None = None, report: Callable[[str], None] | None = None
) -> Iterator[Broker]:
    """Provide a running Kafka for the duration of the block; stop afterwards what was started for it.

    Args:
        properties: broker properties in addition to the defaults; ignored for a named broker.
        report: is called with one line that names the choice and its address, and with one line per slow step; None:
            the logger `rocketshim.local` at INFO.

    Raises:
        BrokerUnavailableError: the named broker does not answer within 5 s.
        LocalBrokerError: no broker could be started; the message says what to do.
    """
    report = _log.info if report is None else report
    kind, why = choose(os.environ, docker_obstacle)
    match kind:
        case "named":
            bootstrap = os.environ[BOOTSTRAP_VARIABLE]
            if not known_brokers(admin_client({"bootstrap.servers": bootstrap}), timeout_s=_ANSWER_TIMEOUT_S):
                raise BrokerUnavailableError(
                    f"{BOOTSTRAP_VARIABLE}={bootstrap}: no broker answers there within {_ANSWER_TIMEOUT_S:.0f} s; "
                    "start it, or unset the variable"
                )
            report(f"broker: {bootstrap} ({why})")
            yield Broker(bootstrap, kind)
        case "docker":
            with docker_broker(properties or {}, report=report) as bootstrap:
                report(f"broker: {bootstrap} ({why})")
                yield Broker(bootstrap, kind)
        case "local":
            with LocalCluster(properties=properties, report=report) as cluster:
                report(f"broker: {cluster.bootstrap}, {why}; logs in {cluster.logs_dir}")
                yield Broker(cluster.bootstrap, kind, cluster)

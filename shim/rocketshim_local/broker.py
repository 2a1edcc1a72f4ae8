"""A Kafka, whichever this machine can give: the one that is named, Docker's, or the local JVM's.

Order of choice: `ROCKETSHIM_BOOTSTRAP` if it is set (then nothing is started and nothing stopped); Docker if an engine
answers within a second and testcontainers is installed; else `LocalCluster`. The choice is reported in one line.
A named broker that does not answer is an error, never a reason to go on to the next: whoever named it meant it.
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
from rocketshim_local.probe import known_brokers

__all__ = ["BOOTSTRAP_VARIABLE", "Broker", "any_broker", "choose"]

BOOTSTRAP_VARIABLE = "ROCKETSHIM_BOOTSTRAP"
_ANSWER_TIMEOUT_S = 5.0
BrokerKind = Literal["named", "docker", "local"]

_log = logging.getLogger("rocketshim.local")


@dataclass(frozen=True, slots=True)
class Broker:
    """A Kafka that answers.

    Attributes:
        bootstrap: its address, for `bootstrap.servers`.
        kind: how it was come by: `named` (`ROCKETSHIM_BOOTSTRAP`), `docker` or `local`.
        cluster: the local cluster when kind is `local`, else None.
    """

    bootstrap: str
    kind: BrokerKind
    cluster: LocalCluster | None = None


def choose(environ: Mapping[str, str], docker_obstacle: Callable[[], str | None]) -> tuple[BrokerKind, str]:
    """Return which kind of broker to use and why, in words for a person.

    Args:
        environ: the environment.
        docker_obstacle: tells why Docker cannot be used, None if it can; called only when it matters.
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
    """Give a running Kafka for the length of the block; what was started for it is stopped at its end.

    Args:
        properties: broker properties beyond the defaults; a named broker stays as it is.
        report: gets one line with the choice and its address, and lines of what takes long; None: the logger
            `rocketshim_local` at INFO.

    Raises:
        BrokerUnavailableError: the named broker does not answer within 5 s.
        LocalBrokerError: no broker could be started; the message names the ways out.
    """
    report = _log.info if report is None else report
    kind, why = choose(os.environ, docker_obstacle)
    match kind:
        case "named":
            bootstrap = os.environ[BOOTSTRAP_VARIABLE]
            _require_answer(bootstrap)
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


def _require_answer(bootstrap: str) -> None:
    if not known_brokers(bootstrap, timeout_s=_ANSWER_TIMEOUT_S):
        raise BrokerUnavailableError(
            f"{BOOTSTRAP_VARIABLE}={bootstrap}: no broker answers there within {_ANSWER_TIMEOUT_S:.0f} s; "
            "start it, or unset the variable"
        )

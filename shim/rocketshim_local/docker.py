"""A broker in a Docker container, started with testcontainers.

The image is `apache/kafka` by the Apache project. It runs one node, broker and controller in one, with the same
properties as a node of the local cluster. Its client port is published on 127.0.0.1 under the same number, so that
clients can use the address that the broker advertises. testcontainers is optional: if it or a Docker engine is missing,
`docker_obstacle` returns that as the reason.
"""

import importlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rocketshim.errors import LocalBrokerError
from rocketshim_local.jars import KAFKA_VERSION
from rocketshim_local.probe import admin_client, known_brokers, reserve_port
from rocketshim_local.server_properties import HOST, NodeAddress, server_properties

__all__ = ["docker_broker", "docker_obstacle", "image_environment"]

DOCKER_VARIABLE = "ROCKETSHIM_DOCKER"
IMAGE = f"apache/kafka:{KAFKA_VERSION}"
_ANSWER_TIMEOUT_S = 1.0
_START_TIMEOUT_S = 120.0
_CONTROLLER_PORT = 9_093


def docker_obstacle(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the reason why Docker cannot be used here, None if it can. It takes at most about a second."""
    environ = os.environ if environ is None else environ
    if environ.get(DOCKER_VARIABLE, "").lower() in {"off", "0", "no", "false"}:
        return f"{DOCKER_VARIABLE} turns Docker off"
    if importlib.util.find_spec("testcontainers") is None:
        return "testcontainers is not installed"
    path = (environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock").partition("unix://")[2]
    if path and not Path(path).exists():
        return "no Docker engine answers"  # Docker's client would leave a socket open
    docker = importlib.import_module("docker")
    try:
        docker.from_env(timeout=_ANSWER_TIMEOUT_S, environment=dict(environ)).close()  # asks the engine for its version
    except (docker.errors.DockerException, ValueError):  # ValueError: the port in DOCKER_HOST is not a number
        return "no Docker engine answers"
    return None


def image_environment(properties: Mapping[str, str]) -> dict[str, str]:
    """Return broker properties as the environment variables that the image reads.

    Source: documentation of the image: prefix `KAFKA_`, upper case, `.` becomes `_`, `_` becomes `__`, `-` becomes
    `___`.
    """
    spelling = str.maketrans({".": "_", "_": "__", "-": "___"})
    return {f"KAFKA_{key.translate(spelling).upper()}": value for key, value in properties.items()}


@contextmanager
def docker_broker(properties: Mapping[str, str], *, report: Callable[[str], None]) -> Iterator[str]:
    """Run a broker in a container for the duration of the block and yield its `host:port`; arguments as `any_broker`.

    Raises:
        LocalBrokerError: Docker cannot pull or run the image, or the broker did not answer within two minutes.
    """
    with reserve_port() as reserved:
        port = reserved.getsockname()[1]
    config = server_properties(
        1,
        (NodeAddress(1, port, _CONTROLLER_PORT),),
        data_folder="/tmp/kraft-combined-logs",  # noqa: S108 inside the container
        overrides=properties,
        listen_host="0.0.0.0",  # noqa: S104 inside the container; published on the loopback only
    )
    report(f"broker: starting {IMAGE} in Docker (the image is pulled if it is missing)")
    container = importlib.import_module("testcontainers.core.container").DockerContainer(
        IMAGE, env=image_environment(config)
    )
    container.ports[f"{port}/tcp"] = (HOST, port)
    bootstrap = f"{HOST}:{port}"
    try:
        try:
            container.start()
        except (OSError, RuntimeError, importlib.import_module("docker.errors").DockerException) as error:
            raise LocalBrokerError(
                f"Docker cannot run {IMAGE}: {error}. Set {DOCKER_VARIABLE}=off to use a JVM on this machine"
            ) from error
        admin, deadline = admin_client({"bootstrap.servers": bootstrap}), time.monotonic() + _START_TIMEOUT_S
        while not known_brokers(admin):
            if time.monotonic() > deadline:
                last = b"".join(container.get_logs()).decode(errors="replace").splitlines()[-15:]
                raise LocalBrokerError(
                    f"{IMAGE} does not answer at {bootstrap} after {_START_TIMEOUT_S:.0f} s; "
                    "the last lines of its log:\n" + "\n".join(last)
                )
        yield bootstrap
    finally:
        if container.get_wrapped_container() is not None:
            container.stop()

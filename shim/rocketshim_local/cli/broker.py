"""`rocketshim broker run | fetch | info`: a real Kafka on this machine."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocketshim.cli.app import FINDING
from rocketshim.cli.options import Json
from rocketshim.errors import ConfigError, LocalBrokerError
from rocketshim.stop_signals import StopSignals

if TYPE_CHECKING:
    from rocketshim_local.cluster import LocalCluster

app = typer.Typer(
    help="A real Kafka on this machine; neither Docker nor an installed Java needed.",
    epilog="Example: rocketshim broker run --brokers 3",
    no_args_is_help=True,
)

_DEFAULT_PORT = 9092
_LOOK_EVERY_S = 0.5


def _say(line: str) -> None:
    typer.echo(line, err=True)


@app.command(epilog="Example: rocketshim broker run --brokers 3 --data ./kafka-data")
def run(
    *,
    brokers: Annotated[int, typer.Option(min=1, max=9, help="Number of nodes.")] = 1,
    port: Annotated[
        int,
        typer.Option(min=0, max=65_000, help="Port of the first node, the others follow; 0: any free ports."),
    ] = _DEFAULT_PORT,
    data: Annotated[
        Path | None, typer.Option(help="Folder that keeps the data; without it they end with the broker.")
    ] = None,
    set_property: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="A broker property; repeatable.")
    ] = None,
) -> None:
    """Run a broker, or a cluster of several, until Ctrl-C or SIGTERM. Prints its address on standard output.

    It stops the brokers cleanly; only a second Ctrl-C, at least a second after the first, does not wait for that.
    """
    from rocketshim_local.cluster import LocalCluster  # noqa: PLC0415 `--help` does without

    properties = dict(_parse_property(text) for text in set_property or [])
    cluster = LocalCluster(brokers, properties=properties, data_dir=data, port=port or None, report=_say)

    def wait(signals: StopSignals) -> None:
        typer.echo(cluster.bootstrap)
        _say(f"logs: {cluster.logs_dir}; stop with Ctrl-C")
        _say(f"for other terminals: export ROCKETSHIM_BOOTSTRAP={cluster.bootstrap}")
        sys.stdout.flush()
        while not signals.asked:
            if cluster.ended:
                raise LocalBrokerError(f"node {cluster.ended[0]} ended by itself; its logs are in {cluster.logs_dir}")
            time.sleep(_LOOK_EVERY_S)

    run_until_stopped(cluster, wait)
    _say("stopped")


def run_until_stopped(cluster: "LocalCluster", work: Callable[[StopSignals], None]) -> None:
    """Start a cluster, do some work that ends when a signal arrives, and stop the cluster cleanly.

    A second Ctrl-C, at least a second after the first, interrupts `work` and the stop, and kills the nodes.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with cluster, StopSignals() as signals:
            try:
                work(signals)
                cluster.stop()
            except KeyboardInterrupt:
                signals.ignore_from_now_on()
                cluster.stop(timeout_s=0)
    except KeyboardInterrupt:
        pass  # before the cluster had started; no node is left


def _parse_property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--property {text!r}: write NAME=VALUE, for example log.retention.ms=60000")
    return name.strip(), value.strip()


@app.command(epilog="Example: rocketshim broker fetch")
def fetch() -> None:
    """Download what a broker needs (46 MB, and 100 MB of Java where there is none), and try it once."""
    from rocketshim_local.prepare import prepare  # noqa: PLC0415 as above

    kit = prepare(report=_say)
    _say(f"ready: Kafka's {len(kit.jars.files)} jars, {kit.jars.size_bytes / 1e6:.1f} MB in {kit.jars.path}")


@app.command(epilog="Example: rocketshim broker info --verify")
def info(
    *,
    verify: Annotated[bool, typer.Option(help="Also compare every jar with its SHA-256.")] = False,
    as_json: Json = False,
) -> None:
    """Show what there is: jars, Java, Docker, and which broker would be chosen. Exit code 2 if none can be."""
    from rocketshim_local.broker import choose  # noqa: PLC0415 as above
    from rocketshim_local.cache import cache_dir  # noqa: PLC0415
    from rocketshim_local.docker import docker_obstacle  # noqa: PLC0415
    from rocketshim_local.jars import KAFKA_COORDINATES, KAFKA_VERSION, cached_jars  # noqa: PLC0415
    from rocketshim_local.java import find_java  # noqa: PLC0415

    kind, why = choose(os.environ, docker_obstacle)
    jars = cached_jars(KAFKA_COORDINATES)
    try:
        found = find_java()
        java = f"{found.version} ({found.executable}, {found.origin})"
    except LocalBrokerError as error:
        found, java = None, str(error)
    damaged = jars.damaged() if jars is not None and verify else []
    facts = {
        "choice": f"{kind}: {why}",
        "kafka": KAFKA_VERSION,
        "cache": str(cache_dir()),
        "jars": f"{len(jars.files)} files, {jars.size_bytes / 1e6:.1f} MB" if jars else "not fetched",
        "java": java,
    }
    if verify:
        facts["damaged"] = ", ".join(damaged) or "none"
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
    else:
        for name, value in facts.items():
            typer.echo(f"{name:8} {value}")
    if damaged or (kind == "local" and (found is None or jars is None)):
        _say("not ready: run `rocketshim broker fetch`" + (f" after removing {jars.path}" if damaged and jars else ""))
        raise typer.Exit(FINDING)

"""`rocketshim dev`: a real Kafka, the worker and your consumer in one terminal."""

import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rocketshim.cli.options import LogFormatOption, LogLevelOption
from rocketshim.errors import ConfigError, LocalBrokerError
from rocketshim.stop_signals import StopSignals
from rocketshim_local.cli.broker import run_until_stopped

if TYPE_CHECKING:
    from rocketshim.worker.log_format import LogFormat, LogLevel
    from rocketshim_local.cluster import LocalCluster
    from rocketshim_local.dev import ConsumerProcess

app = typer.Typer()

_PORT: Final = 9092
_COLOURS: Final = {"dev": "magenta", "kafka": "blue", "worker": "cyan", "consumer": "green"}
_PRINTING: Final = threading.Lock()


@app.command(epilog="Example: rocketshim dev shop.payments:consumer")
def dev(
    *,
    target: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:NAME]", help="Also run this consumer, and again when its code changes."),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65_000, help="Port of Kafka on 127.0.0.1.")] = _PORT,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data for the next `rocketshim dev --keep`.")] = False,
    data: Annotated[Path | None, typer.Option(help="Keep the data in this folder.")] = None,
    log_format: LogFormatOption = "text",
    log_level: LogLevelOption = "info",
) -> None:
    """Run a real Kafka and the worker to develop with, until Ctrl-C; topics are created as they are used.

    Your programs connect to 127.0.0.1:9092. MODULE:NAME gets this address as ROCKETSHIM_BOOTSTRAP; an address that it
    names itself wins, and a warning says so. The data end with the command, unless you give --keep or --data. A second
    Ctrl-C, at least a second after the first, ends everything immediately.
    """
    from rocketshim_local.cache import cache_dir  # noqa: PLC0415 - `--help` does without
    from rocketshim_local.cluster import LocalCluster  # noqa: PLC0415
    from rocketshim_local.dev import check_target  # noqa: PLC0415

    if keep and data is not None:
        raise ConfigError("--keep chooses the folder of the data itself: give --keep or --data, not both")
    if target is not None:
        check_target(target)
    folder = cache_dir() / "dev" if keep else data
    cluster = LocalCluster(
        properties={"auto.create.topics.enable": "true"},
        data_dir=folder,
        port=port,
        report=lambda line: _show("kafka", line),
    )

    def work(signals: StopSignals) -> None:
        _show("kafka", f"ready at {cluster.bootstrap}; data are {f'kept in {folder}' if folder else 'not kept'}")
        _work(cluster, target, signals, log_format, log_level)

    run_until_stopped(cluster, work)
    _show("dev", "stopped")


def _work(
    cluster: "LocalCluster", target: str | None, signals: StopSignals, log_format: "LogFormat", log_level: "LogLevel"
) -> None:
    """Run the worker and the consumer until a signal, or until a part has ended."""
    from rocketshim_local.dev import ConsumerProcess, PartLogs, WorkerThread, changes  # noqa: PLC0415

    root = logging.getLogger()
    root.handlers[:] = [PartLogs(_show, log_format)]
    root.setLevel(log_level.upper())
    worker = WorkerThread(cluster.bootstrap)
    consumer = None
    if target is not None:
        consumer = ConsumerProcess(target, cluster.bootstrap, _show, log_format=log_format, log_level=log_level)
    try:
        if consumer is not None:
            consumer.start()
        _show("dev", f"for other terminals: export ROCKETSHIM_BOOTSTRAP={cluster.bootstrap}; stop with Ctrl-C")
        for changed in changes(None if consumer is None else Path.cwd()):
            if signals.asked:
                return
            if cluster.ended:
                raise LocalBrokerError(f"Kafka ended by itself; its logs are in {cluster.logs_dir}")
            if worker.error is not None:
                raise worker.error
            if consumer is not None:
                _look_after(consumer, changed)
    finally:
        _show("dev", "stopping")
        if consumer is not None:
            consumer.stop()
        worker.stop()


def _look_after(consumer: "ConsumerProcess", changed: list[str]) -> None:
    """Start the consumer again if its code has changed, and report if it has ended.

    Decides: What if the consumer or the worker of `rocketshim dev` ends? The consumer, a process, starts again when its
        code changes; an error of the worker, a thread, ends everything.
    """
    if (code := consumer.ended()) is not None:
        _show("dev", f"the consumer ended with exit code {code}; it starts again when a Python file here changes")
    if changed:
        _show("dev", f"changed: {', '.join(changed[:3])}; starting the consumer again")
        consumer.stop()
        consumer.start()


def _show(part: str, line: str) -> None:
    """Print a line of a part, with the part's name in its colour."""
    name = typer.style(f"{part:8} |", fg=_COLOURS[part])
    with _PRINTING:
        typer.echo(f"{name} {line}", color=False if os.environ.get("NO_COLOR") else None)

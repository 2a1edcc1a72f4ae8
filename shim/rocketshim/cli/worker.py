"""`rocketshim worker`: the delay-redelivery worker as a process of its own."""

import gc
import os
import signal
import threading
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketshim.cli.options import Bootstrap, Client, DelayLevelsText, Namespace, client_settings
from rocketshim.errors import ConfigError, RocketshimError
from rocketshim.logs import safe_logger
from rocketshim.stop_signals import STOP_SIGNALS, StopSignals

if TYPE_CHECKING:
    from rocketshim.worker.watchdog import Heartbeat
    from rocketshim.worker.worker import DelayWorker

app = typer.Typer()

_LOG = safe_logger("rocketshim.worker")
_GRACE_S = 5.0  # beyond the stop deadline, for closing the clients


class _LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


@app.command(epilog="Example: rocketshim worker --bootstrap localhost:9092 --allow 'orders*' --allow invoices")
def worker(
    *,
    bootstrap: Bootstrap,
    client: Client = None,
    allow: Annotated[
        list[str],
        typer.Option(
            metavar="TOPIC|PREFIX*",
            help="A topic the worker may deliver to, or a prefix with one '*'; repeatable. Retries need none.",
        ),
    ],
    namespace: Namespace = "",
    delay_levels: DelayLevelsText = None,
    group: Annotated[
        str | None, typer.Option(help="Another consumer group than the namespace's own; needs --replay-everything.")
    ] = None,
    replay_everything: Annotated[
        bool, typer.Option("--replay-everything", help="Deliver all that the schedule topic holds once more.")
    ] = False,
    exactly_once: Annotated[
        bool, typer.Option("--exactly-once", help="Consume and produce in Kafka transactions.")
    ] = False,
    instance: Annotated[
        str | None, typer.Option(help="Name of this worker among its group, for --exactly-once; keep it over restarts.")
    ] = None,
    no_create_topics: Annotated[
        bool, typer.Option("--no-create-topics", help="End with an error where the worker's topics are missing.")
    ] = False,
    stop_timeout: Annotated[float, typer.Option(min=0, help="Seconds a stop waits for what is in flight.")] = 10.0,
    health: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Serve /live, /ready, /state and /metrics here; HOST: 127.0.0.1."),
    ] = None,
    log_format: Annotated[_LogFormat, typer.Option(help="How log lines look on standard error.")] = _LogFormat.TEXT,
) -> None:
    """Deliver delayed and retried messages when they are due; until SIGTERM. Exit code 1 if it cannot go on."""
    from rocketshim.clock import SystemClock  # noqa: PLC0415 - `--help` does without
    from rocketshim.health import HealthServer, address  # noqa: PLC0415
    from rocketshim.settings import WorkerSettings  # noqa: PLC0415
    from rocketshim.worker.log_format import configure  # noqa: PLC0415
    from rocketshim.worker.worker import DelayWorker  # noqa: PLC0415

    settings = WorkerSettings.make(
        bootstrap=bootstrap,
        allow=tuple(allow),
        namespace=namespace,
        **({} if delay_levels is None else {"delay_levels": delay_levels}),
        group=group,
        replay_everything=replay_everything,
        exactly_once=exactly_once,
        instance=instance,
        create_topics=not no_create_topics,
        stop_timeout_ms=round(stop_timeout * 1_000),
        client=client_settings(client),
    )
    configure("json" if log_format is _LogFormat.JSON else "text")
    process = DelayWorker(settings)
    _stop_on_signals(process, stop_timeout + _GRACE_S)
    end_if_stuck(process.heart)
    server = None
    if health is not None:
        host, port = address(health)
        server = HealthServer(host, port, lambda: process.state, SystemClock())
        try:
            server.start()
        except OSError as error:
            raise ConfigError(f"--health {health!r}: cannot listen there ({error})") from error
        _LOG.info("health.listening", extra={"host": host, "port": server.port})
    gc.freeze()
    gc.set_threshold(500_000, 50, 1_000)  # records are kept until their reports are in: with 50,000, 8 % of the loop
    try:
        process.run()
    except RocketshimError as error:
        _LOG.critical("worker.cannot-go-on", extra={"error": str(error)})
        raise
    finally:
        if server is not None:
            server.stop()


def end_if_stuck(heart: "Heartbeat", look_s: float = 1.0) -> None:
    """End the process with exit code 1 when the worker's loop hangs; a look is taken for a second."""
    from rocketshim.worker.watchdog import Watchdog  # noqa: PLC0415

    watchdog = Watchdog(heart)
    never = threading.Event()

    def watch() -> None:
        while not never.wait(look_s):
            if watchdog.look():
                _LOG.critical("worker.stuck")
                os._exit(1)

    threading.Thread(target=watch, name="rocketshim-watchdog", daemon=True).start()


def _stop_on_signals(process: "DelayWorker", deadline_s: float) -> None:
    """SIGTERM and SIGINT ask the worker to end; if it has not ended by the deadline, the process ends all the same.

    Further signals change nothing, but a second Ctrl-C a second or more after the first ends the process.
    """

    def too_late() -> None:
        _LOG.critical("worker.stop-deadline", extra={"deadline_s": deadline_s})
        os._exit(1)

    signals = StopSignals()

    def stop(number: int, frame: Any) -> None:
        is_first = not signals.asked
        signals.hear(number, frame)
        if is_first:
            process.stop()
            watchdog = threading.Timer(deadline_s, too_late)
            watchdog.daemon = True
            watchdog.start()

    for number in STOP_SIGNALS:
        signal.signal(number, stop)

"""`rocketshim worker`: run the delay-redelivery worker as a process."""

import gc
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketshim.cli.options import ConnectedWithLevels, LogFormatOption, LogLevelOption, Supervised, seconds
from rocketshim.cli.supervisor import Member, health_option, obey_supervisor, supervise
from rocketshim.errors import RocketshimError, WorkerError
from rocketshim.logs import safe_logger
from rocketshim.stop_signals import STOP_SIGNALS, StopSignals

if TYPE_CHECKING:
    from rocketshim.worker.watchdog import Heartbeat
    from rocketshim.worker.worker import DelayWorker

app = typer.Typer()

_LOG = safe_logger("rocketshim.worker")
_GRACE_S = 5.0  # beyond the stop timeout, to close the Kafka clients


@app.command(epilog="Example: rocketshim worker --bootstrap localhost:9092 --allow 'orders*' --allow invoices")
def worker(
    *,
    at: ConnectedWithLevels,
    allow: Annotated[
        list[str],
        typer.Option(
            metavar="TOPIC|PREFIX*",
            help="A topic the worker may deliver to, or a prefix with one '*'; repeatable. Not needed for retries.",
        ),
    ],
    group: Annotated[
        str | None, typer.Option(help="Consumer group, if not the default of the namespace; needs --replay-everything.")
    ] = None,
    replay_everything: Annotated[
        bool, typer.Option("--replay-everything", help="Deliver everything in the schedule topic once more.")
    ] = False,
    exactly_once: Annotated[
        bool, typer.Option("--exactly-once", help="Consume and produce in Kafka transactions.")
    ] = False,
    instance: Annotated[
        str | None, typer.Option(help="Name of this worker in its group, for --exactly-once; keep it across restarts.")
    ] = None,
    transaction_timeout: Annotated[
        float,
        typer.Option(
            parser=seconds(1),
            metavar="DURATION",
            help="When the broker aborts a transaction, for --exactly-once. A slow link needs more.",
        ),
    ] = 15.0,
    no_create_topics: Annotated[
        bool, typer.Option("--no-create-topics", help="End with an error if the worker's topics are missing.")
    ] = False,
    memory: Annotated[
        int,
        typer.Option(
            metavar="MIB", min=256, help="Memory that each process stays below, in MiB: 64 less than the container has."
        ),
    ] = 448,
    stop_timeout: Annotated[
        float,
        typer.Option(parser=seconds(), metavar="DURATION", help="How long a stop waits for messages in flight."),
    ] = 10.0,
    health: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve /live, /ready, /state and /metrics here. Default HOST: 127.0.0.1. Further processes use the "
            "next ports.",
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(min=1, max=256, help="Number of workers; with --instance NAME they are NAME-0, NAME-1 and so on."),
    ] = 1,
    log_format: LogFormatOption = "text",
    log_level: LogLevelOption = "info",
    supervised: Supervised = False,
) -> None:
    """Deliver delayed and retried messages when they are due, until SIGTERM. Exit code 1 if it cannot continue.

    With --processes, each process is a worker of the same group, and the partitions of the schedule topic are shared
    among them. If one process ends by itself, the command stops the others and ends with exit code 1.
    """
    from rocketshim.health import address, serving  # noqa: PLC0415 - `--help` does without
    from rocketshim.settings.worker import WorkerSettings  # noqa: PLC0415
    from rocketshim.worker.log_format import configure  # noqa: PLC0415
    from rocketshim.worker.worker import DelayWorker  # noqa: PLC0415

    settings = WorkerSettings.make(
        bootstrap=at.bootstrap,
        allow=tuple(allow),
        namespace=at.namespace,
        delay_levels=at.levels,
        group=group,
        replay_everything=replay_everything,
        exactly_once=exactly_once,
        instance=instance,
        transaction_timeout_ms=round(transaction_timeout * 1_000),
        create_topics=not no_create_topics,
        memory_bytes=memory * 1_048_576,
        stop_timeout_ms=round(stop_timeout * 1_000),
        client=at.client,
    )
    configure(log_format, level=log_level)
    health_address = None if health is None else address(health)
    if processes > 1:
        _supervise(processes, instance, health_address, stop_timeout)
        return
    process = DelayWorker(settings)
    _stop_on_signals(process, stop_timeout + _GRACE_S)
    if supervised:
        obey_supervisor()
    end_if_stuck(process.heart)
    gc.freeze()
    # records live until their reports arrive: with 50,000, collection took 8 % of the loop
    gc.set_threshold(500_000, 50, 1_000)
    with serving(health_address, lambda: process.state):
        try:
            process.run()
        except RocketshimError as error:
            _LOG.critical("worker.cannot-go-on", extra={"error": str(error)})
            raise


def _supervise(
    processes: int, instance: str | None, health_address: tuple[str, int] | None, stop_timeout_s: float
) -> None:
    """Run several workers with the options of this command; of an option that is given twice, the last counts."""
    members = [
        Member(
            [
                *sys.argv[1:],
                *("--processes", "1"),
                *([] if instance is None else ["--instance", f"{instance}-{number}"]),
                *health_option(health_address, number),
            ],
            {},
        )
        for number in range(processes)
    ]
    with StopSignals() as signals:
        supervise(members, signals, grace_s=stop_timeout_s + 2 * _GRACE_S, error=WorkerError)
        signals.ignore_from_now_on()


def end_if_stuck(heart: "Heartbeat", look_s: float = 1.0) -> None:
    """End the process with exit code 1 if the worker's loop hangs.

    Check it every `look_s` seconds; the watchdog counts each check as one second.
    """
    never = threading.Event()

    def watch() -> None:
        while not never.wait(look_s):
            if heart.has_stopped():
                _LOG.critical("worker.stuck")
                os._exit(1)

    threading.Thread(target=watch, name="rocketshim-watchdog", daemon=True).start()


def _stop_on_signals(process: "DelayWorker", deadline_s: float) -> None:
    """Let SIGTERM and SIGINT ask the worker to stop; end the process if it has not stopped by the deadline.

    Further signals change nothing, except that a second Ctrl-C at least a second after the first ends the process.
    """

    def end_process() -> None:
        _LOG.critical("worker.stop-deadline", extra={"deadline_s": deadline_s})
        os._exit(1)

    signals = StopSignals()

    def stop(number: int, frame: Any) -> None:
        is_first = not signals.asked
        signals.note(number, frame)
        if is_first:
            process.stop()
            timer = threading.Timer(deadline_s, end_process)
            timer.daemon = True
            timer.start()

    for number in STOP_SIGNALS:
        signal.signal(number, stop)

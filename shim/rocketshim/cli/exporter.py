"""`rocketshim exporter`: serve metrics of delay queues, dead letters and groups, whether their processes run or not."""

from functools import partial
from typing import Annotated, Final

import typer

from rocketshim.cli.completion import WatchedGroups, complete_topic
from rocketshim.cli.options import ConnectedWithLevels, LogFormatOption, LogLevelOption, seconds
from rocketshim.stop_signals import StopSignals

app = typer.Typer()
_FIRST_LOOK_S: Final = 10.0


@app.command(epilog="Example: rocketshim exporter --bootstrap localhost:9092 --listen 9464")
def exporter(
    *,
    at: ConnectedWithLevels,
    listen: Annotated[
        str,
        typer.Option(
            metavar="[HOST:]PORT", help="Serve /metrics, /live, /ready and /state here. Default HOST: 127.0.0.1."
        ),
    ] = "9464",
    group: WatchedGroups = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            help="One of your source or target topics, for the doctor; repeatable.",
            autocompletion=complete_topic,
        ),
    ] = None,
    every: Annotated[
        float,
        typer.Option(parser=seconds(1), metavar="DURATION", help="Time from one look to the next."),
    ] = 5.0,
    doctor_every: Annotated[
        float,
        typer.Option(
            parser=seconds(),
            metavar="DURATION",
            help="Time from one run of the doctor to the next; 0: it does not run.",
        ),
    ] = 300.0,
    log_format: LogFormatOption = "text",
    log_level: LogLevelOption = "info",
) -> None:
    """Serve metrics that only the cluster knows, for Prometheus, until SIGTERM. Changes nothing on the cluster.

    Dead letters, late delivery, lag and age of groups are known also when a worker or consumer is gone. One exporter
    serves one namespace. It needs the rights that `rocketshim acls --role viewer` prints.
    """
    from rocketshim.admin.doctor import set_up  # noqa: PLC0415 - `--help` does without
    from rocketshim.admin.doctor.gather import gather  # noqa: PLC0415
    from rocketshim.health import address, serving  # noqa: PLC0415
    from rocketshim.observe.exporter import DoctorRounds, Exporter  # noqa: PLC0415
    from rocketshim.observe.look_up import OffsetLookup  # noqa: PLC0415
    from rocketshim.observe.sampler import Sampler  # noqa: PLC0415
    from rocketshim.worker.log_format import configure  # noqa: PLC0415

    names, levels, groups = at.names, at.levels, tuple(group or ())
    listen_address = address(listen, option="--listen")
    configure(log_format, level=log_level)
    facts = partial(gather, at.bootstrap, names, levels, groups=groups, topics=tuple(topic or ()), client=at.client)
    lookup = partial(OffsetLookup, at.bootstrap, names, groups=groups, client=at.client, left_out={})
    with Sampler(lookup, names, levels, every_s=every) as sampler, StopSignals() as signals:
        examine = lambda: set_up(facts(look=sampler.wait_newer(None, _FIRST_LOOK_S)))  # noqa: E731 - an argument
        doctor = DoctorRounds(examine, doctor_every) if doctor_every else None
        process = Exporter(sampler, at.installation, every_s=every, doctor=doctor)
        with serving(listen_address, lambda: process.state, option="--listen"):
            if doctor is not None:
                doctor.start()
            try:
                process.run(lambda: signals.asked)
            finally:
                if doctor is not None:
                    doctor.stop()

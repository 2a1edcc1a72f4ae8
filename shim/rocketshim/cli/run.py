"""`rocketshim run module:consumer`: run the user's push consumer in one or more processes."""

import gc
import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketshim.cli.options import LogFormatOption, LogLevelOption, Supervised
from rocketshim.cli.supervisor import Member, health_option, obey_supervisor, supervise
from rocketshim.consumer.reader.local_offsets import PROCESS_VARIABLE
from rocketshim.errors import ConfigError, ConsumerError, RocketshimError
from rocketshim.logs import safe_logger
from rocketshim.settings import BOOTSTRAP_VARIABLE
from rocketshim.stop_signals import StopSignals

if TYPE_CHECKING:
    from rocketshim.consumer.push.push_consumer import PushConsumer

app = typer.Typer()

_OUR_FRAMES = frozenset(
    {__file__, importlib.__file__, "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>"}
)
_OURS = frozenset({"importlib", "rocketshim", "rocketshim_topics"})
_LOG = safe_logger("rocketshim.run")
_ADDRESS_HINT = "the program names its brokers itself, which wins: leave bootstrap out, and the variable counts"
_GRACE_S = 45.0  # a consumer stops within 30 s; closing its Kafka clients takes a few seconds more


@app.command(epilog="Example: rocketshim run shop.payments:consumer --processes 4 --health 8080")
def run(
    *,
    target: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="A PushConsumer, or a function that returns one.")
    ],
    processes: Annotated[
        int, typer.Option(min=1, max=256, help="Number of processes; each is a member of the group.")
    ] = 1,
    health: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve /live, /ready, /state and /metrics here; further processes use the next ports.",
        ),
    ] = None,
    log_format: LogFormatOption = "text",
    log_level: LogLevelOption = "info",
    supervised: Supervised = False,
) -> None:
    """Run your consumer until SIGTERM. Use several processes for several cores: Python's threads share one core.

    Each process imports the module again, so the module must not start the consumer. If one of several processes dies,
    it is started again after a pause, and the others go on; if it cannot start at all, or dies again and again, the
    command stops all of them and ends with exit code 1. Ctrl-C and SIGTERM finish what is in progress first; a second
    Ctrl-C does not wait for it.
    """
    from rocketshim.health import address  # noqa: PLC0415 - `--help` does without
    from rocketshim.worker.log_format import configure  # noqa: PLC0415

    health_address = None if health is None else address(health)
    with StopSignals() as signals:
        if supervised:
            obey_supervisor()
        consumer = _load(target)  # also before starting several processes, so that an error is reported only once
        log_options = ["--log-format", log_format, "--log-level", log_level]
        configure(log_format, level=log_level)
        if PROCESS_VARIABLE not in os.environ:  # else another process has said it
            _compare_address(consumer.settings.bootstrap, os.environ.get(BOOTSTRAP_VARIABLE))
        if processes > 1:
            command = ["run", target, *log_options]
            members = [
                Member([*command, *health_option(health_address, number)], {PROCESS_VARIABLE: str(number)})
                for number in range(processes)
            ]
            supervise(members, signals, grace_s=_GRACE_S, error=ConsumerError)
        else:
            _consume(consumer, health_address)
        signals.ignore_from_now_on()


def _compare_address(used: str, named: str | None) -> None:
    """Log that the program's own address wins over the environment variable, if they share no broker."""
    if named and _addresses(used).isdisjoint(_addresses(named)):
        _LOG.warning("run.other-address", extra={"used": used, BOOTSTRAP_VARIABLE: named, "hint": _ADDRESS_HINT})


def _addresses(bootstrap: str) -> set[str]:
    return {each.strip().lower().replace("localhost", "127.0.0.1") for each in bootstrap.split(",")}


def split_target(target: str) -> tuple[str, str]:
    """Return the module and the name in MODULE:NAME, and let modules of the current folder be imported."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise ConfigError(f"{target!r}: write MODULE:NAME, for example shop.payments:consumer")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return module, name


def missing_module(target: str, module: str) -> ConfigError:
    """Return the error for a module that does not exist."""
    return ConfigError(f"{target!r}: there is no module {module!r} here or on Python's path")


def _load(target: str) -> "PushConsumer":
    from rocketshim.consumer.push.push_consumer import PushConsumer  # noqa: PLC0415

    module_name, name = split_target(target)
    with _refuse_exit(target, f"importing the module {module_name!r}"):
        found = _imported(target, module_name)
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise ConfigError(f"{target!r}: {module_name} has no {name}") from error
    if not isinstance(found, PushConsumer) and callable(found):
        with _refuse_exit(target, f"{name}()"):
            found = found()
    if not isinstance(found, PushConsumer):
        raise ConfigError(
            f"{target!r} is a {type(found).__module__}.{type(found).__qualname__}: name a rocketshim.PushConsumer, or "
            "a function that returns one; start a program that runs its consumer itself with python"
        )
    return found


def _imported(target: str, module_name: str) -> Any:
    """Import the user's module; print an error of it from its own lines on, since ours say nothing about it."""
    try:
        return importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise missing_module(target, module_name) from error
        if isinstance(error, RocketshimError):
            raise ConfigError(f"{_own_line(error)}: {error}") from error
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in _OUR_FRAMES:
            trace = trace.tb_next
        traceback.print_exception(error.with_traceback(trace))
        raise typer.Exit(1) from error


def _own_line(error: BaseException) -> str:
    """Return the last line of the user's that an error has passed, as file and line."""
    frames = traceback.walk_tb(error.__traceback__)
    own = [each for each in frames if each[0].f_globals.get("__name__", "").partition(".")[0] not in _OURS]
    frame, line = own[-1]
    return f"{Path(frame.f_code.co_filename).name}, line {line}"


@contextmanager
def _refuse_exit(target: str, caller: str) -> Iterator[None]:
    """Turn `sys.exit` in the user's code into an error.

    With its own exit code, for example 0, it would look like a consumer that ended normally.
    """
    try:
        yield
    except SystemExit as error:
        given = "" if error.code is None else repr(error.code)
        raise ConfigError(
            f"{target!r}: {caller} called sys.exit({given}), so no consumer was started; put code that ends the "
            "process under if __name__ == '__main__'"
        ) from error


def _consume(consumer: "PushConsumer", health_address: tuple[str, int] | None) -> None:
    from rocketshim.health import serving  # noqa: PLC0415

    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1_000)  # a third more messages a second
    with serving(health_address, lambda: consumer.state):
        consumer.run()

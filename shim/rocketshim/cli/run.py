"""`rocketshim run module:consumer`: a push consumer of yours as a process, or several."""

import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketshim.consumer.push.client_ids import PROCESS_VARIABLE
from rocketshim.errors import ConfigError, ConsumerError
from rocketshim.logs import safe_logger
from rocketshim.stop_signals import STOP_SIGNALS, StopSignals

if TYPE_CHECKING:
    from rocketshim.consumer.push.push_consumer import PushConsumer

app = typer.Typer()

_LOG = safe_logger("rocketshim.consumer")
_LOOK_S = 0.2
_GRACE_S = 45.0  # a consumer stops within 30 s, and a few more for the clients


@app.command(epilog="Example: rocketshim run shop.payments:consumer --processes 4 --health 8080")
def run(
    *,
    target: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="A PushConsumer, or a function that makes one.")],
    processes: Annotated[int, typer.Option(min=1, max=256, help="Processes, each a member of the group.")] = 1,
    health: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve /live, /ready, /state and /metrics here; further processes at the ports that follow.",
        ),
    ] = None,
    json_log: Annotated[bool, typer.Option("--json-log", help="Log lines as JSON.")] = False,
    supervised: Annotated[
        bool, typer.Option("--supervised", hidden=True, help="Stop when standard input ends.")
    ] = False,
) -> None:
    """Run a consumer of yours until SIGTERM. Python's threads share one core; processes do not.

    Each process imports the module again, so the consumer must not be started there. If one process ends by itself, the
    others are stopped and the command ends with 1: whoever supervises it starts all of them again. Ctrl-C or SIGTERM
    finish what is in progress first; a second Ctrl-C does not wait for it.
    """
    from rocketshim.health import address  # noqa: PLC0415 - `--help` does without
    from rocketshim.worker.log_format import configure  # noqa: PLC0415

    place = None if health is None else address(health)
    with StopSignals() as signals:
        if supervised:
            _obey_supervisor()
        consumer = _load(target)  # of several processes here too, so that what is wrong is said once
        configure("json" if json_log else "text")
        if processes > 1:
            _supervise(target, processes, place, signals, json_log=json_log)
        else:
            _consume(consumer, place)
        signals.ignore_from_now_on()


def _load(target: str) -> "PushConsumer":
    from rocketshim.consumer.push.push_consumer import PushConsumer  # noqa: PLC0415

    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise ConfigError(f"{target!r}: write MODULE:NAME, for example shop.payments:consumer")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with _refuse_exit(target, f"the module {module_name!r}, while it was imported,"):
            found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise
        raise ConfigError(f"{target!r}: there is no module {module_name!r} here or on Python's path") from error
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise ConfigError(f"{target!r}: {module_name} has no {name}") from error
    if not isinstance(found, PushConsumer) and callable(found):
        with _refuse_exit(target, f"{name}()"):
            found = found()
    if not isinstance(found, PushConsumer):
        raise ConfigError(f"{target!r} is a {type(found).__name__}: name a PushConsumer, or a function that makes one")
    return found


@contextmanager
def _refuse_exit(target: str, who: str) -> Iterator[None]:
    """Make `sys.exit` in the user's code an error: its own exit code, 0 say, would look like a consumer that ended."""
    try:
        yield
    except SystemExit as error:
        given = "" if error.code is None else repr(error.code)
        raise ConfigError(
            f"{target!r}: {who} called sys.exit({given}), so no consumer was started; code that ends the process "
            "belongs under if __name__ == '__main__'"
        ) from error


def _consume(consumer: "PushConsumer", place: tuple[str, int] | None) -> None:
    from rocketshim.clock import SystemClock  # noqa: PLC0415
    from rocketshim.health import HealthServer  # noqa: PLC0415

    server = None
    if place is not None:
        server = HealthServer(*place, lambda: consumer.state, SystemClock())
        try:
            server.start()
        except OSError as error:
            raise ConfigError(f"--health: cannot listen at {place[0]}:{place[1]} ({error})") from error
        _LOG.info("health.listening", extra={"host": place[0], "port": server.port})
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1_000)  # a third more messages a second (docs/performance.md)
    try:
        consumer.run()
    finally:
        if server is not None:
            server.stop()


def _supervise(
    target: str, processes: int, place: tuple[str, int] | None, signals: StopSignals, *, json_log: bool
) -> None:
    """Run the members, each with a pipe from this process as its standard input, and stop all of them together.

    A pipe that ends asks its member to stop. So a member hears of it once, however many signals its process group gets,
    on every platform, and also when this process is killed.
    """
    command = [sys.executable, "-m", "rocketshim", "run", target, "--supervised"]
    command += ["--json-log"] if json_log else []
    members: list[subprocess.Popen[bytes]] = []
    ended: list[int] = []
    try:
        for number in range(processes):
            port = 0 if place is None or place[1] == 0 else place[1] + number
            own = [] if place is None else ["--health", f"{place[0]}:{port}"]
            mark = {**os.environ, PROCESS_VARIABLE: str(number)}
            with _signals_blocked():  # a member hears no signal until it can handle it
                members.append(
                    subprocess.Popen([*command, *own], env=mark, stdin=subprocess.PIPE)  # noqa: S603 - this program
                )
            if signals.asked:
                break
        while not signals.asked and not ended:
            time.sleep(_LOOK_S)
            ended = [member.pid for member in members if member.poll() is not None]
        if ended:
            time.sleep(_LOOK_S)  # a signal to all of us may have reached that member first
        codes = _stop(members)
    finally:
        for member in members:
            if member.poll() is None:  # it was forced
                member.kill()
    if not signals.asked:
        raise ConsumerError(f"the process {ended[0]} of {processes} ended by itself; all were stopped")
    if any(codes):
        raise ConsumerError(f"not every process ended well: exit codes {codes}")


def _stop(members: "list[subprocess.Popen[bytes]]") -> list[int]:
    """End them within their time, or end them all the same; their exit codes."""
    for member in members:
        if member.stdin is not None:
            member.stdin.close()
    deadline = time.monotonic() + _GRACE_S
    for member in members:
        try:
            member.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _LOG.error("run.member-killed", extra={"pid": member.pid, "grace_s": _GRACE_S})
            member.kill()
    return [member.wait() for member in members]


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Have what is started meanwhile begin with the stop signals blocked, where the platform can."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _obey_supervisor() -> None:
    """Take the stop signals that were blocked so far, and take the end of standard input for one."""

    def watch() -> None:
        with suppress(OSError):
            while os.read(sys.stdin.fileno(), 1_024):
                pass
        _LOG.info("run.stop-asked")
        signal.raise_signal(signal.SIGTERM)

    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    threading.Thread(target=watch, name="rocketshim-supervisor", daemon=True).start()

"""`rocketshim send`: send one message, or one for each line of standard input, now or later."""

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from rocketshim.admin.times import time_ms
from rocketshim.cli.completion import complete_topic
from rocketshim.cli.options import ConnectedWithLevels, Connection, Json, seconds
from rocketshim.core.user_values import count_text
from rocketshim.errors import ConfigError, RocketshimError, SendError, SendTimeoutError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from rocketshim.producer.producer import Producer
    from rocketshim.producer.result import SendResult
    from rocketshim_topics import Message


_IN_FLIGHT: Final = 1_000
_LOOK_S: Final = 3.0


def read_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield each line that is not empty: its number, from 1, and its text without the line end."""
    for number, line in enumerate(stream, 1):
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        if text:
            yield number, text


def facts_of(result: "SendResult") -> dict[str, str]:
    """Return the result of a send as JSON for programs."""
    return {"msg_id": result.msg_id, "offset_msg_id": result.offset_msg_id}


class LineSender:
    """Sends one message for each line, at most 1,000 at the same time; the caller closes the producer."""

    def __init__(
        self, producer: "Producer", message: "Callable[[bytes], Message]", *, timeout_s: float, as_json: bool
    ) -> None:
        self._producer = producer
        self._message = message
        self._timeout_s = timeout_s
        self._as_json = as_json
        self._waiting: deque[tuple[int, Future[SendResult]]] = deque()
        self._stored = 0
        self._later: list[int] = []
        self._failure: tuple[int, Exception] | None = None  # the first line that was not stored, and why

    def send(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Send the lines until one fails, wait for all reports, and name the first line that was not stored."""
        try:
            for number, text in lines:
                self._send(number, text)
                while self._waiting and (len(self._waiting) >= _IN_FLIGHT or self._waiting[0][1].done()):
                    self._settle()
                if self._failure is not None:
                    break
        except KeyboardInterrupt:
            typer.echo(f"interrupted: {self._stored_text} stored, {len(self._waiting)} more may be", err=True)
            raise
        while self._waiting:
            self._settle()
        if self._failure is not None:
            number, cause = self._failure
            later = f", of which lines {_listed(self._later)} come after it" if self._later else ""
            raise SendError(f"line {number} was not sent: {cause}. {self._stored_text} stored{later}") from cause
        if not self._as_json:
            typer.echo(f"{self._stored_text} stored")

    @property
    def _stored_text(self) -> str:
        return count_text(self._stored, "message")

    def _send(self, number: int, text: bytes) -> None:
        try:
            self._waiting.append((number, self._producer.send_async(self._message(text))))
        except (RocketshimError, BufferError) as error:
            self._failure = number, error

    def _settle(self) -> None:
        """Wait for the oldest delivery report."""
        number, future = self._waiting.popleft()
        try:
            result = future.result(self._timeout_s)
        except TimeoutError:
            self._fail(number, SendTimeoutError(f"no delivery report within {self._timeout_s:g} s"))
        except RocketshimError as error:
            self._fail(number, error)
        else:
            self._stored += 1
            if self._failure is not None and number > self._failure[0]:
                self._later.append(number)
            if self._as_json:
                typer.echo(json.dumps({"line": number, **facts_of(result)}))

    def _fail(self, number: int, cause: Exception) -> None:
        if self._failure is None or number < self._failure[0]:
            self._failure = number, cause


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:10])) + (f" … {numbers[-1]}" if len(numbers) > 10 else "")


app = typer.Typer()


@app.command(epilog="Example: rocketshim send orders 'hello' --bootstrap localhost:9092 --delay 30s --tag created")
def send(
    *,
    topic: Annotated[str, typer.Argument(help="Logical topic.", autocompletion=complete_topic)],
    body: Annotated[
        str | None, typer.Argument(help="The body as text; '-' reads all of standard input as one body.")
    ] = None,
    lines: Annotated[
        bool,
        typer.Option("--lines", help="Send each line of standard input as a message; empty lines are left out."),
    ] = False,
    at: ConnectedWithLevels,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of the Kafka record.")] = None,
    tag: Annotated[str | None, typer.Option(help="Tag of the message.")] = None,
    business_key: Annotated[
        list[str] | None, typer.Option("--business-key", help="A business key (KEYS); repeatable.")
    ] = None,
    set_property: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="A property; repeatable.")
    ] = None,
    delay: Annotated[str | None, typer.Option(help="Deliver after this duration: 90s, 30m, 2h.")] = None,
    delay_level: Annotated[int | None, typer.Option(help="Deliver after the delay of this level.")] = None,
    deliver_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Deliver at this time: 2026-11-20T18:00:00Z.")
    ] = None,
    timer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A name for a message with a delay: it can be cancelled and replaced while it waits."
        ),
    ] = None,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="With --timer: drop this message if one with the name waits.")
    ] = False,
    cron: Annotated[
        str | None, typer.Option(metavar="LINE", help="With --timer: the message recurs: '0 9 * * 1-5'.")
    ] = None,
    tz: Annotated[
        str | None, typer.Option(metavar="ZONE", help="Time zone of --cron: Europe/Berlin. Default UTC.")
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="DURATION", help="With --timer: the message recurs after this time.")
    ] = None,
    late: Annotated[
        str | None,
        typer.Option(metavar="once|skip", help="What recurs and was missed comes once, or not (once)."),
    ] = None,
    at_most: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="With --timer: how long messages that replace each other may wait."),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(parser=seconds(0.1), metavar="DURATION", help="How long to wait for the delivery report."),
    ] = 10.0,
    as_json: Json = False,
) -> None:
    """Send a message and wait until it is stored. With --lines, send one for each line of standard input.

    If a line cannot be sent, the command stops, with exit code 1. The error names the line and how many messages were
    stored.
    """
    from rocketshim.producer.producer import Producer  # noqa: PLC0415 - `--help` does without
    from rocketshim_topics import Message  # noqa: PLC0415

    if (body is None) is not lines:
        raise ConfigError("give BODY ('-' reads it from standard input), or --lines for one message a line")
    if lines and timer is not None:
        raise ConfigError("--timer names one message; with --lines each line would replace the one before")
    at_ms = None if deliver_at is None else time_ms(deliver_at, "--deliver-at")
    properties = [_pair(text) for text in set_property or []]

    def message(text: bytes) -> Message:
        return Message(
            topic,
            text,
            key=None if key is None else os.fsencode(key),
            tag=tag,
            keys=tuple(business_key or ()),
            delay=delay,
            delay_level=delay_level,
            deliver_at=at_ms,
            timer=timer,
            if_absent=if_absent,
            at_most=at_most,
            cron=cron,
            tz=tz,
            every=every,
            late=late,
            properties=properties,
        )

    first = None if lines else message(sys.stdin.buffer.read() if body == "-" else os.fsencode(body or ""))
    producer = Producer(at.bootstrap, namespace=at.namespace, delay_levels=at.levels, client=at.client)
    try:
        if first is None:
            LineSender(producer, message, timeout_s=timeout, as_json=as_json).send(read_lines(sys.stdin.buffer))
        else:
            result = producer.send(first, timeout_s=timeout)
            stored = f"{result.msg_id} stored at {result.offset_msg_id}"
            typer.echo(json.dumps(facts_of(result)) if as_json else stored)
    finally:
        producer.close(timeout_s=1.0)  # a message without a report by now was already reported as such
    if any(each is not None for each in (delay, delay_level, deliver_at, timer)):
        _warn_without_worker(at)


def _warn_without_worker(at: Connection) -> None:
    """Tell that nobody delivers what has a delay, if that is sure."""
    from rocketshim.kafka.clients import LastClientError  # noqa: PLC0415 - `--help` does without
    from rocketshim.kafka.membership import described_groups  # noqa: PLC0415

    with at.reader() as reader:
        group = at.names.worker_group
        found = described_groups(lambda: reader.admin(LastClientError()), [group], _LOOK_S)[group]
    if not getattr(found, "members", True):
        run = at.installation.worker_command
        typer.echo(f"no worker is running, so nothing is delivered until one does: {run}", err=True)


def _pair(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--property {text!r}: write NAME=VALUE")
    return name, os.fsencode(value)

"""`rocketshim send`: send one message, or one for each line of standard input, now or later."""

import json
import os
import sys
from typing import Annotated

import typer

from rocketshim.admin.times import time_ms
from rocketshim.cli.completion import complete_topic
from rocketshim.cli.options import ConnectedWithLevels, Json, seconds
from rocketshim.cli.send_lines import LineSender, facts_of, read_lines
from rocketshim.errors import ConfigError

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
            properties=properties,
        )

    first = None if lines else message(sys.stdin.buffer.read() if body == "-" else os.fsencode(body or ""))
    producer = Producer(at.bootstrap, namespace=at.namespace, delay_levels=at.levels, client=at.client)
    try:
        if first is None:
            LineSender(producer, message, timeout_s=timeout, as_json=as_json).send(read_lines(sys.stdin.buffer))
            return
        result = producer.send(first, timeout_s=timeout)
    finally:
        producer.close(timeout_s=1.0)  # a message without a report by now was already reported as such
    if as_json:
        typer.echo(json.dumps(facts_of(result)))
    else:
        typer.echo(f"{result.msg_id} stored at {result.offset_msg_id}")


def _pair(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--property {text!r}: write NAME=VALUE")
    return name, os.fsencode(value)

"""`rocketshim send`: send one message, now or later."""

import json
import sys
from typing import Annotated

import typer

from rocketshim.cli.options import Bootstrap, Client, DelayLevelsText, Json, Namespace, client_settings
from rocketshim.errors import ConfigError

app = typer.Typer()


@app.command(epilog="Example: rocketshim send orders 'hello' --bootstrap localhost:9092 --delay 30s --tag created")
def send(
    *,
    topic: Annotated[str, typer.Argument(help="Logical topic.")],
    body: Annotated[str, typer.Argument(help="The body as text; '-' reads standard input.")],
    bootstrap: Bootstrap,
    client: Client = None,
    namespace: Namespace = "",
    delay_levels: DelayLevelsText = None,
    key: Annotated[str | None, typer.Option(help="Key of the Kafka record.")] = None,
    tag: Annotated[str | None, typer.Option(help="Tag of the message.")] = None,
    business_key: Annotated[
        list[str] | None, typer.Option("--business-key", help="A business key (KEYS); repeatable.")
    ] = None,
    set_property: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="A property; repeatable.")
    ] = None,
    delay: Annotated[str | None, typer.Option(help="Deliver after this duration: 90s, 30m, 2h.")] = None,
    delay_level: Annotated[int | None, typer.Option(help="Deliver after the delay of this level.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the delivery report.")] = 10.0,
    as_json: Json = False,
) -> None:
    """Send one message and wait until it is stored."""
    from rocketshim.producer.producer import Producer  # noqa: PLC0415 - `--help` does without
    from rocketshim_topics import DelayLevels, Message  # noqa: PLC0415

    message = Message(
        topic,
        sys.stdin.buffer.read() if body == "-" else body.encode(),
        key=key,
        tag=tag,
        keys=tuple(business_key or ()),
        delay=delay,
        delay_level=delay_level,
        properties=[_pair(text) for text in set_property or []],
    )
    levels = delay_levels or DelayLevels.default()
    producer = Producer(bootstrap, namespace=namespace, delay_levels=levels, client=client_settings(client))
    try:
        result = producer.send(message, timeout_s=timeout)
    finally:
        producer.close(timeout_s=1.0)  # a message without a report by now was already reported as such
    if as_json:
        typer.echo(json.dumps({"msg_id": result.msg_id, "offset_msg_id": result.offset_msg_id}))
    else:
        typer.echo(f"{result.msg_id} stored at {result.offset_msg_id}")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--property {text!r}: write NAME=VALUE")
    return name, value

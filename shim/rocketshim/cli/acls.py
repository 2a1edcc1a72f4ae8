"""`rocketshim acls`: the least rights of a role, as `kafka-acls` commands or JSON. Talks to no broker."""

import json
from typing import Annotated

import typer

from rocketshim.admin.acls import Role, bindings, commands, grants
from rocketshim.cli.options import Json, Namespace
from rocketshim_topics import TopicNames

app = typer.Typer()


@app.command(epilog="Example: rocketshim acls --role worker --topic 'orders*' --principal User:shim-worker")
def acls(
    *,
    role: Annotated[Role, typer.Option(help="Who connects.")],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC|PREFIX*",
            help="A topic of yours that it sends to, consumes, delivers to or looks at; repeatable.",
        ),
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option("--group", help="A consumer's own group, or one to look at; repeatable.")
    ] = None,
    orderly: Annotated[
        bool, typer.Option("--orderly", help="A consumer with orderly listeners or an allocation strategy.")
    ] = False,
    principal: Annotated[str | None, typer.Option(help="Kafka's name of it. Default: User: and the role.")] = None,
    namespace: Namespace = "",
    bootstrap: Annotated[
        str, typer.Option("--bootstrap", envvar="ROCKETSHIM_BOOTSTRAP", help="For the commands; nothing is asked.")
    ] = "localhost:9092",
    as_json: Json = False,
) -> None:
    """Print the least rights that a role needs, a kafka-acls command each. Grants nothing by itself.

    Topics are created by whoever runs `init`: no role may create, alter or delete.
    """  # fmt: skip
    wanted = grants(role, TopicNames(namespace), groups=group or (), topics=topic or (), orderly=orderly)
    who = principal or f"User:{role}"
    if as_json:
        typer.echo(json.dumps(bindings(wanted, principal=who), indent=1))
        return
    for grant, command in zip(wanted, commands(wanted, principal=who, bootstrap=bootstrap), strict=True):
        typer.echo(f"# {grant.why}")
        typer.echo(command)

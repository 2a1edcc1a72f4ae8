"""`rocketshim acls`: print the minimum ACLs of a role as `kafka-acls` commands or JSON, without contacting a broker."""

import json
from typing import Annotated

import typer

from rocketshim.admin.acls import Role, bindings, commands, grants
from rocketshim.cli.options import Json, Namespace, ProfileName, checked_bootstrap
from rocketshim_topics import TopicNames

app = typer.Typer()


@app.command(epilog="Example: rocketshim acls --role worker --topic 'orders*' --principal User:shim-worker")
def acls(
    *,
    role: Annotated[Role, typer.Option(help="The role of the client that connects.")],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC|PREFIX*",
            help="One of your topics that the role sends to, consumes, delivers to or looks at; repeatable.",
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", help="A consumer's own group, or a group to look at; repeatable."),
    ] = None,
    producer_group: Annotated[
        list[str] | None,
        typer.Option("--producer-group", help="A producer's own group, if it sends in transactions; repeatable."),
    ] = None,
    orderly: Annotated[
        bool, typer.Option("--orderly", help="A consumer with orderly listeners or an allocation strategy.")
    ] = False,
    principal: Annotated[str | None, typer.Option(help="The Kafka principal. Default: User: and the role.")] = None,
    namespace: Namespace = "",
    profile: ProfileName = None,
    bootstrap: Annotated[
        str,
        typer.Option(
            "--bootstrap",
            "-b",
            envvar="ROCKETSHIM_BOOTSTRAP",
            callback=checked_bootstrap,
            help="Broker address to print in the commands; it is not contacted.",
        ),
    ] = "localhost:9092",
    as_json: Json = False,
) -> None:
    """Print the minimum ACLs that a role needs, one kafka-acls command each. The command grants nothing itself.

    The user who runs `init` creates topics: no role may create, alter or delete.
    """
    del profile
    wanted = grants(
        role,
        TopicNames(namespace),
        groups=group or (),
        topics=topic or (),
        producer_groups=producer_group or (),
        orderly=orderly,
    )
    full_principal = principal or f"User:{role}"
    if as_json:
        typer.echo(json.dumps(bindings(wanted, principal=full_principal), indent=1))
        return
    for grant, command in zip(wanted, commands(wanted, principal=full_principal, bootstrap=bootstrap), strict=True):
        typer.echo(f"# {grant.why}")
        typer.echo(command)

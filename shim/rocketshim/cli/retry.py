"""`rocketshim retry ls`: show the messages that a group receives as retries."""

import typer

from rocketshim.admin.decoder import Decoder
from rocketshim.admin.record_filter import RecordFilter
from rocketshim.cli.options import Bootstrap, Client, Json, Namespace, client_settings
from rocketshim.cli.records import (
    Follow,
    Group,
    Key,
    Limit,
    Since,
    Tags,
    Where,
    groups_topic,
    select,
    show_list,
)
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics import TopicNames

app = typer.Typer(
    help="Show the messages that a group receives as retries.",
    epilog="Example: rocketshim retry ls --bootstrap localhost:9092 --group payments --since 1h",
    no_args_is_help=True,
)


@app.callback()
def _group() -> None:
    """Show the messages that a group receives as retries."""


@app.command(epilog="Example: rocketshim retry ls --group payments --since 1h")
def ls(
    *,
    bootstrap: Bootstrap,
    client: Client = None,
    group: Group,
    namespace: Namespace = "",
    where: Where = None,
    tags: Tags = None,
    key: Key = None,
    since: Since = None,
    limit: Limit = 50,
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """List the records of a group's retry topic: attempts that were due. `delayed ls` shows those that still wait."""
    names = TopicNames(namespace)
    choice = RecordFilter(where=where, tags=tags, key=key, since=since)
    with TopicReader(bootstrap, client=client_settings(client)) as reader:
        decoder = Decoder(names, groups_topic(reader, names.retry(group), group))
        entries = select(reader, decoder, choice, follow=follow)
        show_list(entries, limit=limit, as_json=as_json, follow=follow)

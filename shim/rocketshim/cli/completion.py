"""Options that the shell completes, by a quick look at the cluster that the command line names.

The answer must come while the user waits, so each look takes two seconds at most. Whatever goes wrong, nothing is
offered: a shell that asks for completions shows no error.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final

import typer

__all__ = ["GroupName", "WatchedGroups", "complete_group", "complete_topic"]

_TIMEOUT_S: Final = 2.0


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Return the user's topics that begin like this."""
    from rocketshim_topics import TopicNames  # noqa: PLC0415 - only needed when the shell asks

    def topics(admin: Any) -> list[str]:
        is_ours = TopicNames(str(context.params.get("namespace") or "")).is_ours
        found = admin.list_topics(timeout=_TIMEOUT_S).topics
        return [name for name in found if not name.startswith("__") and not is_ours(name)]

    return _looked_up(context.params, incomplete, topics)


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    """Return the consumer groups that begin like this."""

    def groups(admin: Any) -> list[str]:
        answer = admin.list_consumer_groups(request_timeout=_TIMEOUT_S).result(_TIMEOUT_S)
        return [each.group_id for each in answer.valid]

    return _looked_up(context.params, incomplete, groups)


def _looked_up(given: Mapping[str, Any], incomplete: str, look: Callable[[Any], list[str]]) -> list[str]:
    bootstrap = given.get("bootstrap")
    if not bootstrap:
        return []
    with suppress(Exception):
        from rocketshim.cli.options import client_settings  # noqa: PLC0415
        from rocketshim.kafka.client_config import merge  # noqa: PLC0415
        from rocketshim.kafka.clients import LastClientError, confluent_admin  # noqa: PLC0415

        client = client_settings(given.get("client"), allow_code_settings=bool(given.get("allow_code_settings")))
        required = {"bootstrap.servers": bootstrap}
        defaults = {**LastClientError().settings, "socket.connection.setup.timeout.ms": 1_000}
        admin = confluent_admin(merge(client, defaults=defaults, required=required))
        return sorted(name for name in look(admin) if name.startswith(incomplete))
    return []


GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.", autocompletion=complete_group)]

WatchedGroups = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        "-g",
        help="Another group to watch, besides those with a retry or dead-letter topic; repeatable.",
        autocompletion=complete_group,
    ),
]
"""Default None."""

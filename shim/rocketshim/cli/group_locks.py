"""`rocketshim group locks | members | release`: show and release the queue locks of a group that consumes in order."""

import json
import time
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from rocketshim.admin.group_log_snapshot import GroupLogStanding, group_log, release_record
from rocketshim.cli.app import FINDING
from rocketshim.cli.completion import GroupName
from rocketshim.cli.options import Connected, Connection, Json
from rocketshim.cli.records import echo_safe, show_table, split_partition
from rocketshim.errors import ConfigError, SendError
from rocketshim.kafka.client_config import PROTECTED_PRODUCER, merge
from rocketshim.kafka.clients import confluent_clients
from rocketshim.kafka.reports import DeliveryReports
from rocketshim.settings import ConnectionSettings
from rocketshim_topics.group_log import encode_group_record
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["locks", "members", "release"]

_FLUSH_TIMEOUT_S: Final = 30.0


def _read(at: Connection, group: str) -> GroupLogStanding:
    settings = ConnectionSettings.make(bootstrap=at.bootstrap, namespace=at.namespace, client=at.client)
    return group_log(settings, group)


def _age_s(standing: GroupLogStanding) -> int | None:
    """Return the seconds since the log's last record, by this machine's clock; None: the log holds no record."""
    return (
        None
        if standing.last_append_ms is None
        else max(0, time.time_ns() // 1_000_000 - standing.last_append_ms) // 1_000
    )


def _echo_age(standing: GroupLogStanding) -> None:
    age_s = _age_s(standing)
    typer.echo("the log holds no record" if age_s is None else f"last record of the log: {age_s} s ago")


def locks(*, group: GroupName, at: Connected, as_json: Json = False) -> None:
    """Show who holds which queue, its fencing token and remaining lease, and the position and retry counts.

    The next owner of a queue starts with that position and those counts; they are of the owner's last renewal, by
    default at most 20 s old. Leases run in the time of the log, which advances with its records only: while nobody
    writes, no lease expires.
    """
    standing = _read(at, group)
    rows: list[dict[str, Any]] = [
        {
            "topic": lock.queue.topic,
            "partition": lock.queue.queue_id,
            "owner": None if lock.owner is None else lock.owner.client_id,
            "known": lock.known,
            "token": lock.token,
            "lease_left_ms": lock.lease_left_ms,
            "next_offset": lock.next_offset,
            "reconsume_counts": [list(pair) for pair in lock.reconsume_counts],
        }
        for lock in standing.log.locks
    ]
    if as_json:
        typer.echo(json.dumps({"group": group, "last_record_s_ago": _age_s(standing), "locks": rows}))
        return
    table = Table(
        "topic", "partition", "owner", "token", "lease left", "next offset", "failing", box=None, pad_edge=False
    )
    for row in rows:
        owner = row["owner"] or "(free)"
        table.add_row(
            row["topic"],
            str(row["partition"]),
            owner if row["known"] else f"{owner}?",
            "" if row["token"] is None else str(row["token"]),
            f"{row['lease_left_ms'] / 1_000:.0f} s" if row["owner"] else "",
            "" if row["next_offset"] is None else str(row["next_offset"]),
            ", ".join(f"{offset}: {count} times" for offset, count in row["reconsume_counts"][:3]),
        )
    show_table(table)
    _echo_age(standing)


def members(*, group: GroupName, at: Connected, as_json: Json = False) -> None:
    """Show the members that the group's log knows, and how they distribute the queues."""
    standing = _read(at, group)
    rows = [
        {
            "client_id": member.owner.client_id,
            "incarnation": member.owner.incarnation,
            "strategy": member.strategy,
            "gone_in_ms": member.end_ms - standing.log.log_ms,
            "queues": sum(lock.owner == member.owner for lock in standing.log.locks),
        }
        for member in standing.log.members
    ]
    if as_json:
        typer.echo(json.dumps({"group": group, "last_record_s_ago": _age_s(standing), "members": rows}))
        return
    table = Table("client id", "queues", "allocated by", "expires without a heartbeat in", box=None, pad_edge=False)
    for row in rows:
        how = str(row["strategy"] or "Kafka's group protocol")
        table.add_row(str(row["client_id"]), str(row["queues"]), how, f"{int(str(row['gone_in_ms'])) / 1_000:.0f} s")
    show_table(table)
    _echo_age(standing)


def release(
    *,
    group: GroupName,
    queue: Annotated[str, typer.Argument(metavar="TOPIC/PARTITION", help="The queue, as `group locks` shows it.")],
    at: Connected,
    owner_is_gone: Annotated[
        bool, typer.Option("--owner-is-gone", help="Release the queue: the process that holds it has ended.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Release a queue whose owner has died, without waiting for its lease. Position and retry counts are kept.

    Without --owner-is-gone the command shows who holds the queue, changes nothing and ends with exit code 2. An owner
    that is still running stops when it reads the release. A frozen owner cannot: when it wakes it may finish one call
    at the same time as the new owner. Only a sink that checks fencing tokens rejects that call.
    """
    topic, number = split_partition(queue)
    if number is None:
        raise ConfigError(f"{queue!r:.80}: write TOPIC/PARTITION, as `rocketshim group locks` shows it")
    wanted = MessageQueue(topic, queue_id=number)
    standing = _read(at, group)
    record = release_record(standing, wanted)
    lock = standing.log.lock(wanted)
    if record is not None and owner_is_gone:
        log_topic = at.names.group_log(group)
        _store(at, log_topic, encode_group_record(record))
    if as_json:
        facts = {
            "group": group,
            "topic": wanted.topic,
            "partition": wanted.queue_id,
            "owner": None if record is None else record.client_id,
            "token": lock.token,
            "lease_left_ms": lock.lease_left_ms,
            "released": record is not None and owner_is_gone,
        }
        typer.echo(json.dumps(facts))
    elif record is None:
        typer.echo(f"no known owner holds {queue}: there is nothing to release")
    elif owner_is_gone:
        echo_safe(f"{queue} is free; {record.client_id} held it")
    else:
        echo_safe(
            f"{queue} is held by {record.client_id} for {lock.lease_left_ms / 1_000:.0f} s more (token {lock.token})"
        )
    if record is not None and not owner_is_gone:
        typer.echo("nothing was changed; if that process has ended, use --owner-is-gone", err=True)
        raise typer.Exit(FINDING)


def _store(at: Connection, topic: str, value: bytes) -> None:
    errors: list[Any] = []
    reports = DeliveryReports()
    producer = (at.clients or confluent_clients()).producer(
        merge(at.client, defaults={}, required={**PROTECTED_PRODUCER, "bootstrap.servers": at.bootstrap})
    )

    def reported(error: Any, message: Any) -> None:
        errors.append(reports.error(error, message))

    producer.produce(topic, value, partition=0, on_delivery=reported)
    producer.flush(_FLUSH_TIMEOUT_S)
    error = errors[0] if errors else "no answer"  # test it with `is` only: comparing a KafkaError with None breaks
    if error is not None:
        raise SendError(f"cannot confirm the release of the queue: {error}; run the command again")

"""`rocketshim group …`: list groups; show a group's lag, subscriptions and locks; move positions, free queues."""

import json
import re
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from rocketshim.admin.group_log_snapshot import GroupLogStanding, group_log, release_record
from rocketshim.admin.group_reset import GroupResetter, ResetPlan, ResetTarget
from rocketshim.admin.member_view import long_call, member_views
from rocketshim.admin.queue_commands import command_owner, failing_messages, store_group_record
from rocketshim.admin.record_view import time_text
from rocketshim.admin.redrive import whoami
from rocketshim.admin.times import past_ms
from rocketshim.cli.app import FINDING
from rocketshim.cli.completion import GroupName, complete_topic
from rocketshim.cli.options import Connected, Connection, Json, Quiet, output, seconds
from rocketshim.cli.records import echo_safe, echo_trace, split_partition
from rocketshim.cli.table import show_table
from rocketshim.core.user_values import count_text
from rocketshim.errors import ConfigError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.observe.groups import GroupReader, count
from rocketshim.observe.snapshot import GroupStanding, conflicts
from rocketshim.settings import ConnectionSettings
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.durations import duration_text
from rocketshim_topics.group_log import QueueCommand
from rocketshim_topics.message_queue import MessageQueue

_REPORT_S: Final = 10.0

app = typer.Typer(
    help="List consumer groups; show a group's lag, subscriptions and queue locks; move its positions.",
    epilog="Example: rocketshim group lag payments --bootstrap localhost:9092",
    no_args_is_help=True,
)


def _read(groups: GroupReader, group: str) -> GroupStanding:
    standing = groups.read(group)
    if not standing.partitions:
        typer.echo(f"group {group} has committed no offset on this cluster (state {standing.state})", err=True)
        raise typer.Exit(FINDING)
    return standing


@app.command(epilog="Example: rocketshim group ls --json")
def ls(*, at: Connected, as_json: Json = False) -> None:
    """List the consumer groups of the cluster: state, members, and whether they have a retry topic."""
    names = at.names
    with at.reader() as reader:
        found, topics = GroupReader(reader).listed(), reader.topics()
    rows: list[tuple[str, ...]] = []
    for each in found:
        retries = None
        with suppress(ConfigError):  # another program's group, whose name rocketshim does not accept
            retry = names.retry(each.group)
            retries = retry if retry in topics else None
        members = None if each.members is None else len(each.members)
        if as_json:
            facts = {"group": each.group, "state": each.state, "members": members, "retry_topic": retries}
            typer.echo(json.dumps(facts))
        else:
            rows.append((each.group, each.state.lower(), "?" if members is None else str(members), retries or ""))
    if not as_json:
        show_table(("group", "state", "members", "retry topic"), rows)


@app.command(epilog="Example: rocketshim group lag payments --max-lag 1000 --quiet")
def lag(
    *,
    group: GroupName,
    at: Connected,
    exact: Annotated[
        bool, typer.Option("--count", help="Read and count the waiting records, because offsets have gaps.")
    ] = False,
    follow: Annotated[bool, output("--follow", "-f", help="Repeat until Ctrl-C.")] = False,
    max_lag: Annotated[
        int | None,
        typer.Option("--max-lag", min=0, help="Exit code 2 if the lag of all partitions together is above this."),
    ] = None,
    every: Annotated[
        float, typer.Option(parser=seconds(0.001), metavar="DURATION", help="Interval of --follow.")
    ] = 5.0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show the lag of a group in each partition, its retry topic included.

    The lag counts offsets, also end markers and aborted records of transactions, which nobody reads. Consumers of
    rocketshim commit beyond them as soon as they have handled everything before; those of other libraries may not: use
    --count. Exit code 2 if the group has committed nothing, if retention deleted offsets that it had not read, or if
    the lag is above --max-lag.
    """
    with at.reader() as reader:
        groups = GroupReader(reader)
        while True:
            now_ms, standing = time.time_ns() // 1_000_000, groups.timed(_read(groups, group))
            rows = _lag_rows(reader, standing, exact=exact)
            findings = _lag_findings(rows, max_lag, counted="records" if exact else "behind")
            if findings or not quiet:
                _show_lag(standing, rows, now_ms, exact=exact, clear=follow, as_json=as_json)
            for finding in findings:
                typer.echo(finding, err=True)
            if not follow:
                break
            time.sleep(every)
    if findings:
        raise typer.Exit(FINDING)


def _lag_findings(rows: list[dict[str, Any]], max_lag: int | None, *, counted: str) -> list[str]:
    found = [
        f"{row['topic']}/{row['partition']}: retention deleted {count_text(row['lost'], 'offset')} before the group "
        "read them; messages may be lost"
        for row in rows
        if row["lost"]
    ]
    lag_now = sum(row[counted] for row in rows)
    if max_lag is not None and lag_now > max_lag:
        found.append(f"the lag is {lag_now}, above --max-lag {max_lag}")
    return found


def _lag_rows(reader: TopicReader, standing: GroupStanding, *, exact: bool) -> list[dict[str, Any]]:
    records = count(reader, [each for each in standing.partitions if each.behind > 0]) if exact else None
    return [
        {
            "topic": each.topic,
            "partition": each.partition,
            "position": each.position,
            "end": each.end,
            "behind": each.behind,
            "records": None if records is None else records[TopicPartitionKey.of(each)],
            "oldest_ms": each.first_unread_ms,
            "lost": each.lost,
            "member": each.member,
        }
        for each in standing.partitions
    ]


def _show_lag(
    standing: GroupStanding, rows: list[dict[str, Any]], now_ms: int, *, exact: bool, clear: bool, as_json: bool
) -> None:
    if as_json:
        facts = {"group": standing.group, "state": standing.state, "members": standing.members, "lag": rows}
        typer.echo(json.dumps(facts))
        return
    if clear:
        Console().clear()
    typer.echo(f"group {standing.group}: {standing.state.lower()}, {count_text(len(standing.members or ()), 'member')}")
    behind = "records" if exact else "behind"
    show_table(
        ("topic/partition", "position", "end", behind, "oldest waits for", "member"),
        (
            (
                f"{row['topic']}/{row['partition']}",
                str(row["position"]),
                "gone" if row["end"] is None else str(row["end"]),
                str(row[behind]),
                "" if row["oldest_ms"] is None else duration_text(max(0, now_ms - row["oldest_ms"]) // 1_000 * 1_000),
                row["member"] or "",
            )
            for row in rows
        ),
    )


@app.command(epilog="Example: rocketshim group subscriptions payments")
def subscriptions(*, group: GroupName, at: Connected, as_json: Json = False) -> None:
    """Show the committed subscriptions of a group. Exit code 2 if filters of a topic differ: the group loses messages.

    Each partition shows the subscription of its last commit. After a change it shows the old one until the next commit.
    """
    with at.reader() as reader:
        standing = _read(GroupReader(reader), group)
    found = conflicts(standing, retry_topic=at.names.retry(group))
    if as_json:
        rows = [
            {"topic": each.topic, "partition": each.partition, "digest": each.digest, "subscription": each.subscription}
            for each in standing.partitions
        ]
        conflicting = [
            {"topic": each.topic, "subscriptions": each.partitions, "loses_messages": each.loses_messages}
            for each in found
        ]
        typer.echo(json.dumps({"group": group, "subscriptions": rows, "conflicts": conflicting}))
    else:
        shown = [
            (f"{each.topic}/{each.partition}", each.subscription or "(not committed by rocketshim)")
            for each in standing.partitions
        ]
        show_table(("topic/partition", "subscription"), shown, wraps=True)
    for conflict in found:
        differing = "; ".join(
            f"{text} (partitions {', '.join(map(str, numbers)) or 'of the retry topic'})"
            for text, numbers in conflict.partitions.items()
        )
        meaning = "" if conflict.loses_messages else " (no other filter of this topic: normal in a rolling deployment)"
        subscriptions_of = f"{conflict.topic}: {len(conflict.partitions)} subscriptions in one group{meaning}"
        echo_safe(f"{subscriptions_of}: {differing}", err=True)
    if any(conflict.loses_messages for conflict in found):
        raise typer.Exit(FINDING)


_RESET_EXAMPLE = (
    "Example: rocketshim group reset payments --to 2h --topic orders; "
    "then: rocketshim group reset payments --to 2h --topic orders --apply"
)


@app.command(epilog=_RESET_EXAMPLE)
def reset(
    *,
    group: GroupName,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="earliest|latest|TIME|OFFSET",
            help="The new position: earliest, latest, a time or a duration before now (2026-11-20T18:00:00Z, 2h), or "
            "an offset.",
        ),
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[/PARTITION]",
            help="Only this topic or partition; repeatable. Default: what the group has committed, without its retry "
            "topic.",
            autocompletion=complete_topic,
        ),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Move the positions; without it, only show the plan.")] = False,
    at: Connected,
    as_json: Json = False,
) -> None:
    """Show where the positions of a group would be, and with --apply move them there.

    Exit code 2 if the plan cannot be applied, because members are running. With --apply this is an error: exit code 1.
    """
    names = at.names
    resetter = GroupResetter(at.bootstrap, names, at.client)
    topics = [(names.physical(name), number) for name, number in map(split_partition, topic or ())]
    plan = resetter.plan(group, topics, _target(to))
    if apply:
        resetter.apply(plan)
    if as_json:
        typer.echo(json.dumps({**asdict(plan), "applied": apply}))
    else:
        _show(plan, is_applied=apply)
    if plan.refused is not None:
        raise typer.Exit(FINDING)


def _target(to: str) -> ResetTarget:
    if to in {"earliest", "latest"}:
        return ResetTarget(latest=to == "latest")
    if re.fullmatch("[0-9]{1,19}", to):
        return ResetTarget(offset=int(to))
    return ResetTarget(at_ms=past_ms(to, time.time_ns() // 1_000_000, "--to"))


def _show(plan: ResetPlan, *, is_applied: bool) -> None:
    rows = []
    for each in plan.resets:
        change = each.target - (each.low if each.position is None else each.position)
        rows.append(
            (
                f"{each.topic}/{each.partition}",
                "none" if each.position is None else str(each.position),
                str(each.target),
                f"{change:+}" if change and each.position is not None else "",
                str(each.low),
                str(each.end),
            )
        )
    show_table(("topic/partition", "position", "new position", "change", "first", "end"), rows)
    if is_applied:
        typer.echo(f"done: group {plan.group} continues at the new positions")
    elif plan.refused is not None:
        echo_safe(f"cannot be applied now: {plan.refused}", err=True)
    else:
        typer.echo("nothing was changed; to do it, add --apply")


def _settings(at: Connection) -> ConnectionSettings:
    return ConnectionSettings.make(bootstrap=at.bootstrap, namespace=at.namespace, client=at.client)


def _log(at: Connection, group: str) -> GroupLogStanding:
    return group_log(_settings(at), group, at.clients)


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


@app.command(epilog="Example: rocketshim group locks payments")
def locks(*, group: GroupName, at: Connected, as_json: Json = False) -> None:
    """Show who holds which queue, its fencing token and remaining lease, its position, and which messages fail.

    The next owner of a queue starts with that position and those failed attempts; they are of the owner's last renewal,
    by default at most 20 s old. A message that has failed three times is renewed immediately. A listener call is shown
    when it has run for 5 s at that renewal. Leases run in the time of the log, which advances with its records only:
    while nobody writes, no lease expires.
    """
    standing = _log(at, group)
    calls = [long_call(standing, lock.queue) for lock in standing.log.locks]
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
            "failing_since_ms": trouble.since_ms,
            "cause": trouble.cause,
            "stack_trace": trouble.trace,
            "call": None if call is None else asdict(call),
        }
        for lock, call in zip(standing.log.locks, calls, strict=True)
        for trouble in [standing.trouble(lock.queue)]
    ]
    if as_json:
        typer.echo(json.dumps({"group": group, "last_record_s_ago": _age_s(standing), "locks": rows}))
        return
    show_table(
        ("topic/partition", "owner", "token", "lease left", "next offset", "in a call since (UTC)", "failing"),
        (
            (
                f"{row['topic']}/{row['partition']}",
                (row["owner"] or "(free)") + ("" if row["known"] else "?"),
                "" if row["token"] is None else str(row["token"]),
                f"{row['lease_left_ms'] / 1_000:.0f} s" if row["owner"] else "",
                "" if row["next_offset"] is None else str(row["next_offset"]),
                "" if call is None else call.text,
                ", ".join(
                    f"{row['topic']}/{row['partition']}/{offset} ({count_text(count, 'attempt')})"
                    for offset, count in row["reconsume_counts"][:3]
                ),
            )
            for row, call in zip(rows, calls, strict=True)
        ),
    )
    _echo_causes(group, standing)
    _echo_age(standing)


def _echo_causes(group: str, standing: GroupLogStanding) -> None:
    """Print why the first message of each queue fails, and each stack trace once."""
    shown: dict[str, str] = {}
    for each in failing_messages(group, standing):
        if each.cause is None:
            continue
        since = "" if each.since_ms is None else f" since {time_text(each.since_ms)[:-4]} (UTC)"
        echo_safe(f"{each.record} fails{since}: {each.cause}")
        if each.trace in shown:
            echo_safe(f"  stack trace: that of {shown[each.trace]}")
        elif each.trace is not None:
            shown[each.trace] = each.record
            echo_trace("  stack trace:", each.trace)


@app.command(epilog="Example: rocketshim group members payments")
def members(*, group: GroupName, at: Connected, as_json: Json = False) -> None:
    """Show the members that the group's log knows: version, queues, what differs from most others, what fails.

    A client id is host@pid@n, unless the program has set one. A listener call is shown when it had run for 5 s at the
    member's last renewal of its locks. A member counts as gone after the time shown, unless it sends a heartbeat. Only
    members that consume in order, or with an allocation strategy, are in the log; the others are in `group lag`.
    """
    standing = _log(at, group)
    found = member_views(standing)
    if as_json:
        rows = [{**asdict(each), "queues": len(each.queues), "held": each.queues} for each in found]
        typer.echo(json.dumps({"group": group, "last_record_s_ago": _age_s(standing), "members": rows}))
        return
    show_table(
        (
            "client id",
            "version",
            "queues",
            "fails at",
            "in a call since (UTC)",
            "allocated by",
            "gone in",
            "differs in",
        ),
        (
            (
                each.client_id,
                each.version or "",
                str(len(each.queues)),
                ", ".join(each.failing[:3]),
                ", ".join(call.text for call in each.calls[:3]),
                each.strategy or "Kafka's group protocol",
                f"{each.gone_in_ms / 1_000:.0f} s",
                ", ".join(each.differs),
            )
            for each in found
        ),
    )
    _echo_age(standing)


@app.command(epilog="Example: rocketshim group release payments orders/3 --owner-is-gone")
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
    standing = _log(at, group)
    record = release_record(standing, wanted)
    lock = standing.log.lock(wanted)
    if record is not None and owner_is_gone:
        store_group_record(_settings(at), at.names.group_log(group), record, at.clients)
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


Failing = Annotated[
    str, typer.Argument(metavar="TOPIC/PARTITION/OFFSET", help="The failing message, as `group locks` shows it.")
]
Apply = Annotated[bool, typer.Option("--apply", help="Do it; without it, only show the message and the queue's owner.")]


@app.command("try-now", epilog="Example: rocketshim group try-now payments orders/3/118 --apply")
def try_now(*, group: GroupName, record: Failing, at: Connected, apply: Apply = False, as_json: Json = False) -> None:
    """Show a failing message of an orderly queue, and with --apply have it tried again now.

    The queue's owner ends the message's wait. The command waits for the result and shows it. Exit code 2 if the message
    does not fail, or nothing was done.
    """
    _command(at, group, record, QueueCommand.TRY_NOW, apply=apply, as_json=as_json)


@app.command("dead-letter", epilog="Example: rocketshim group dead-letter payments orders/3/118 --apply")
def dead_letter(
    *, group: GroupName, record: Failing, at: Connected, apply: Apply = False, as_json: Json = False
) -> None:
    """Show a failing message of an orderly queue, and with --apply make it a dead letter: its queue goes on.

    The queue's owner stores it in the group's dead-letter topic, without another attempt, and goes on when it is
    stored. No command skips a message without a trace: `dlq discard` discards the dead letter, which is recorded, and
    `dlq plan` sends it again. The command waits for the result and shows it. Exit code 2 if the message does not fail,
    or nothing was done.
    """
    _command(at, group, record, QueueCommand.DEAD_LETTER, apply=apply, as_json=as_json)


def _command(at: Connection, group: str, record: str, do: QueueCommand, *, apply: bool, as_json: bool) -> None:
    where, offset = split_partition(record)
    topic, number = split_partition(where)
    if number is None or offset is None:
        raise ConfigError(f"{record!r:.80}: write TOPIC/PARTITION/OFFSET, as `rocketshim group locks` shows it")
    queue = MessageQueue(at.names.physical(topic), queue_id=number)
    result = command_owner(
        _settings(at), group, queue, offset, do if apply else None, by=whoami(), wait_s=_REPORT_S, clients=at.clients
    )
    before, after = result.before, result.after
    is_done = after is not None and after.token == before.token
    if as_json:
        facts = {"group": group, "record": before.record, "owner": before.owner, "token": before.token}
        stored_at = None if result.stored_at is None else f"{at.names.group_log(group)}/0/{result.stored_at}"
        facts |= {"attempts": before.attempts, "stored_at": stored_at}
        facts |= {"attempts_after": after.attempts if after is not None and is_done else None}
        typer.echo(json.dumps(facts))
    elif result.why_not is not None:
        echo_safe(f"{result.why_not}; nothing was done")
    elif not apply:
        attempts = count_text(before.attempts, "time")
        echo_safe(f"{before.record} has failed {attempts}; its queue is held by {before.owner}")
        typer.echo("nothing was changed; to do it, add --apply")
    else:
        echo_safe(result.text(do))
    if result.why_not is not None or (apply and not is_done):
        raise typer.Exit(FINDING)

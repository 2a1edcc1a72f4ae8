"""Run the demo: start broker, topics, worker and consumer, send the messages, show the progress, check the result.

Worker and consumer run in their own processes. A process that dies is started again: a user may run `kill -9` on either
of them (the demo prints their process ids), and no message is lost. The final table comes from the records on the
topics and the committed offsets of the group, not from counters of the run.
"""

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, KafkaException, TopicPartition
from rich.console import Console
from rich.live import Live
from rich.table import Table

from rocketshim.admin.record_view import RecordView
from rocketshim.admin.trace import step_text
from rocketshim.cli.table import table_lines
from rocketshim.errors import RocketshimError
from rocketshim.kafka.clients import confluent_admin, confluent_clients
from rocketshim.kafka.positions import committed_positions
from rocketshim.producer.producer import Producer
from rocketshim_local import any_broker
from rocketshim_local.demo.audit import Account, Audit
from rocketshim_local.demo.consumer_process import MAX_RETRIES
from rocketshim_local.demo.flights import Flight, Timetable, load
from rocketshim_local.probe import reserve_port
from rocketshim_local.watchdog import guarded
from rocketshim_topics import DelayLevels, Message, TopicNames, provision
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.layout import Layout, TopicSpec

__all__ = ["DAY_MS", "LEVELS", "play"]

DAY_MS: Final = 45_000
"""Length of the demo's day in ms."""

LEVELS: Final = "1s 1s 1s 2s 3s 4s"
"""A shortened delay level table: retries wait 1, 2, 3 and 4 s; with RocketMQ's table they wait 10 s, 30 s, 1 m, 2 m."""

_LEAD_MS: Final = 4_000
_LONGEST_S: Final = 150.0
_TICK_S: Final = 0.25
_LINE_EVERY_S: Final = 5.0
_SOON_S: Final = 5.0
_MOST_FAILURES: Final = 3
_NEXT: Final = """Next: rocketshim demo --keep (or make demo DEMO_ARGS=--keep), and look around;
then write your own: "Your first retry" in README.md."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """The names that one run of the demo uses.

    They are unique, so that the demo can run on a shared cluster and delete exactly its own topics afterwards.
    """

    bootstrap: str
    names: TopicNames
    topic: str
    group: str

    @property
    def connection(self) -> list[str]:
        """The options of a command that works on these topics."""
        return ["--bootstrap", self.bootstrap, "--namespace", self.names.namespace, "--delay-levels", LEVELS]


class _Actor:
    """A process that is started again when it dies, and that never outlives the demo."""

    def __init__(self, name: str, command: list[str], log: Path, console: Console) -> None:
        self._name = name
        self._command = guarded(command)
        self._log = log
        self._console = console
        self._failures = 0
        self._started_s = 0.0
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        self._started_s = time.monotonic()
        with self._log.open("ab") as log:
            process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603
        self._console.print(f"{self._name}: process {process.pid} (try: kill -9 {process.pid})")
        return process

    def revive(self) -> None:
        """Start the process again if it has ended.

        Raises:
            RocketshimError: the process exited with an error three times in a row, each within 5 s after its start.
        """
        code = self._process.poll()
        if code is None:
            return
        soon = time.monotonic() - self._started_s < _SOON_S
        self._failures = self._failures + 1 if soon and code > 0 else 0
        if self._failures >= _MOST_FAILURES:
            raise RocketshimError(
                f"the demo's {self._name} failed {self._failures} times soon after its start, last with exit code "
                f"{code}; read its log: {self._log}"
            )
        self._console.print(f"{self._name}: ended with exit code {code}, starting it again")
        self._process = self._start()

    def stop(self, timeout_s: float = 20.0) -> None:
        """Stop the process with SIGTERM; kill it if it has not ended after `timeout_s` seconds."""
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Observer:
    """A reader that adds every record of every topic of the demo to an audit."""

    def __init__(self, stage: _Stage) -> None:
        self.audit = Audit(stage.names, DelayLevels.parse(LEVELS), stage.topic, stage.group)
        config = {"bootstrap.servers": stage.bootstrap, "group.id": stage.group, "enable.auto.commit": False}
        self._consumer = confluent_clients().consumer({**config, "isolation.level": "read_committed"})
        topics = self._consumer.list_topics(timeout=10).topics
        self._partitions = [
            TopicPartition(topic, number, OFFSET_BEGINNING)
            for topic in (self.audit.schedule, self.audit.source, self.audit.retry, self.audit.dead_letter)
            for number in topics[topic].partitions
        ]
        self._consumer.assign(self._partitions)

    def read(self, for_s: float) -> None:
        """Read records for about `for_s` seconds."""
        end = time.monotonic() + for_s
        while True:
            for message in self._consumer.consume(500, max(0.0, min(0.1, end - time.monotonic()))):
                if message.error() is None:
                    self.audit.add(RecordView.of(message, trusted=message.topic() != self.audit.source))
            if time.monotonic() >= end:
                return

    def committed(self) -> dict[TopicPartitionKey, int]:
        """Return (topic, partition) to the committed offset of the group."""
        asked = [TopicPartition(part.topic, part.partition) for part in self._partitions]
        answer = committed_positions(self._consumer, asked, timeout_s=10)
        return {TopicPartitionKey.of(part): part.offset for part in answer if part.offset >= 0}

    def close(self) -> None:
        """Close the Kafka consumer."""
        self._consumer.close()


def play(*, data: Path | None = None, day_ms: int = DAY_MS, keep: bool = False, console: Console | None = None) -> bool:
    """Run the demo.

    Args:
        data: a day of flights with the columns of the shipped file; None: the shipped file.
        day_ms: length of the demo's day in ms.
        keep: whether to keep the topics afterwards, and to show them in `rocketshim console` until Ctrl-C. Worker and
            consumer run until then, too, so that a redrive is handled.
        console: where to print; None: the terminal.

    Returns:
        whether every figure has its expected value.

    Raises:
        RocketshimError: the demo could not be set up, or its worker or consumer kept failing.
    """
    console = console or Console()
    flights = load(data)
    console.print(
        f"{len(flights)} departures from New York on 2013-12-10: {sum(f.cancelled for f in flights)} cancelled, "
        f"{sum(f.late for f in flights)} more than half an hour late. The day takes {day_ms // 1_000} s."
    )
    with any_broker(report=console.print) as broker, _stage(broker.bootstrap, keep=keep) as stage:
        return _perform(stage, flights, day_ms, console, keep=keep)


@contextmanager
def _stage(bootstrap: str, *, keep: bool) -> Iterator[_Stage]:
    mark = f"demo-{uuid.uuid4().hex[:4]}"
    stage = _Stage(bootstrap, TopicNames(mark), f"{mark}.flights", f"{mark}-gate")
    admin = confluent_admin({"bootstrap.servers": bootstrap})
    layout = Layout(stage.names, DelayLevels.parse(LEVELS))
    stamped = {"message.timestamp.type": "LogAppendTime"}
    flights = TopicSpec(stage.topic, 4, stamped, "scheduled departures")
    # The brokers set the timestamps of the retry and dead-letter topics: the lateness is measured by their clocks.
    groups = [
        TopicSpec(spec.name, spec.partitions, {**spec.config, **stamped}, spec.purpose)
        for spec in layout.for_group(stage.group, with_log=False)
    ]
    specs = [*layout.shared(), *layout.timers(), *groups, flights]
    provision.ensure_topics(admin, specs)
    try:
        yield stage
    finally:
        if not keep:
            for future in admin.delete_topics([spec.name for spec in specs]).values():
                try:
                    future.result(10)
                except KafkaException as error:
                    sys.stderr.write(f"cannot delete a topic of the demo: {error}\n")


def _perform(stage: _Stage, flights: list[Flight], day_ms: int, console: Console, *, keep: bool) -> bool:
    logs = Path.cwd() / ".rocketshim" / "demo"
    logs.mkdir(parents=True, exist_ok=True)
    me = [sys.executable, "-m"]
    commands = {
        "worker": [*me, "rocketshim", "worker", *stage.connection, "--allow", stage.topic],
        "consumer": [
            *me, "rocketshim_local.demo.consumer_process",
            stage.bootstrap, stage.names.namespace, stage.topic, stage.group, str(day_ms), LEVELS,
        ],
    }  # fmt: skip
    worker, consumer = [_Actor(name, command, logs / f"{name}.log", console) for name, command in commands.items()]
    observer = _Observer(stage)
    try:
        sent = _send(stage, flights, Timetable(day_ms))
        _watch(observer, sent, [worker, consumer], console)
        if not keep:
            for actor in (consumer, worker):
                actor.stop()
        observer.read(1.0)
        _show_history(stage, sent, observer.audit, console)
        account = observer.audit.account(sent, observer.committed())
        lateness_ms = observer.audit.lateness_ms(sent)
        is_fine = _judge(account, lateness_ms, sent, len(flights), console)
        if is_fine:
            console.print(_verdict(account, lateness_ms, len(sent)), style="bold green", highlight=False)
        else:
            console.print(f"[bold red]Some figures do not match.[/] The logs are in {logs}", soft_wrap=True)
        if keep:
            _browse(stage, [worker, consumer])
        else:
            console.print(_NEXT, highlight=False)
        return is_fine
    finally:
        for actor in (consumer, worker):
            actor.stop()
        observer.close()


def _send(stage: _Stage, flights: list[Flight], timetable: Timetable) -> dict[str, Flight]:
    """Send every departure, delayed until its scaled time; return message id to flight."""
    start_ms = time.time_ns() // 1_000_000 + _LEAD_MS
    sent: dict[str, Flight] = {}
    with Producer(stage.bootstrap, namespace=stage.names.namespace, delay_levels=LEVELS) as producer:
        futures = [
            (
                flight,
                producer.send_async(
                    Message(
                        stage.topic,
                        json.dumps(asdict(flight)).encode(),
                        key=f"{flight.carrier}-{flight.number}",
                        tag=flight.carrier,
                        properties={"flight": str(flight)},
                        deliver_at=start_ms + timetable.departure_ms(flight),
                    )
                ),
            )
            for flight in flights
        ]
        for flight, future in futures:
            sent[future.result(30).msg_id] = flight
    return sent


def _watch(observer: _Observer, sent: dict[str, Flight], actors: list[_Actor], console: Console) -> None:
    """Show the progress until every message is dead or acknowledged, or 150 s have passed."""
    began = time.monotonic()
    next_line = 0.0
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while time.monotonic() - began < _LONGEST_S:
            observer.read(_TICK_S)
            for actor in actors:
                actor.revive()
            account = observer.audit.account(sent, observer.committed())
            if console.is_terminal:
                live.update(_progress(account, len(sent)), refresh=True)
            elif time.monotonic() >= next_line:
                next_line = time.monotonic() + _LINE_EVERY_S
                console.print(
                    f"sent {len(sent)}, delivered {account.delivered}, retried {account.retried[1]}, "
                    f"dead {len(account.dead)}, done {account.acknowledged}, under way {len(account.under_way)}"
                )
            if not account.under_way and not account.lost:
                return


def _progress(account: Account, sent: int) -> Table:
    table = Table(show_header=False, box=None)
    for label, count in (
        ("delivered", account.delivered),
        ("retried at least once", account.retried[1]),
        ("dead letters", len(account.dead)),
        ("done", account.acknowledged),
    ):
        width = 40 * count // max(1, sent)
        table.add_row(label, f"{count:>5}", "█" * width + "·" * (40 - width))
    return table


def _judge(
    account: Account, lateness_ms: list[int], sent: dict[str, Flight], flight_count: int, console: Console
) -> bool:
    """Print the figures beside the expected ones; return whether they are the same."""
    cancelled = {uniq_key for uniq_key, flight in sent.items() if flight.cancelled}
    late = sum(flight.late for flight in sent.values())
    table = Table(title="Figures from the records on the topics", title_justify="left")
    for column in ("", "found", "expected", ""):
        table.add_column(column, justify="left" if column == "" else "right")
    checks = [
        ("sent", len(sent), flight_count),
        ("delivered when due", account.delivered, len(sent)),
        ("retried, attempt 1", account.retried[1], len(cancelled) + late),
        *((f"retried, attempt {n}", account.retried[n], len(cancelled)) for n in range(2, MAX_RETRIES + 1)),
        ("dead letters", len(account.dead), len(cancelled)),
        ("dead and not cancelled", len(account.dead - cancelled), 0),
        ("done", account.acknowledged, len(sent) - len(cancelled)),
        ("early", sum(late_ms < 0 for late_ms in lateness_ms), 0),
        ("lost", len(account.lost), 0),
        ("still under way", len(account.under_way), 0),
    ]
    fine = True
    for label, found, expected in checks:
        fine &= found == expected
        table.add_row(label, f"{found}", f"{expected}", "ok" if found == expected else "[bold red]does not match[/]")
    table.add_row("duplicates", f"{account.duplicates}", "0, more after a kill or a stall", "")
    console.print(table)
    if lateness_ms:
        p50, p99 = (_share(lateness_ms, share) for share in (0.5, 0.99))
        console.print(
            f"lateness: p50 {p50} ms, p99 {p99} ms, max {lateness_ms[-1]} ms "
            f"({len(lateness_ms)} deliveries, brokers' clocks)"
        )
    return fine


def _verdict(account: Account, lateness_ms: list[int], sent: int) -> str:
    """Return what happened, in a sentence."""
    p99 = f"; p99 of lateness {_share(lateness_ms, 0.99)} ms" if lateness_ms else ""
    return (
        f"All {sent} flights are accounted for: {len(account.lost)} lost, 0 early, {account.retried[1]} retried, "
        f"{len(account.dead)} dead letters{p99}."
    )


def _share(sorted_ms: list[int], share: float) -> int:
    return sorted_ms[int(share * len(sorted_ms))]


def _show_history(stage: _Stage, sent: dict[str, Flight], audit: Audit, console: Console) -> None:
    """Print the history of the first cancelled flight, as `rocketshim trace` does."""
    uniq_key = min((key for key in sent if sent[key].cancelled), key=lambda key: sent[key].line, default=None)
    if uniq_key is None:
        return
    steps = audit.history(uniq_key)
    rows = [
        (
            f"{(step.stored_ms - steps[0].stored_ms) / 1_000:.3f} s",
            step.at,
            f"{step.envelope.reconsume_times or 0}",
            step_text(step, stage.names),
        )
        for step in steps
    ]
    columns = ("after", "topic/partition/offset", "failures", "what")
    head, lines = table_lines(columns, rows, console.width, wraps=True)
    title = f"History of {sent[uniq_key]}, cancelled ({uniq_key})"
    for line in (title, *head, *lines, ""):
        console.print(line, markup=False, highlight=False, soft_wrap=line is not title)


def _browse(stage: _Stage, actors: list[_Actor]) -> None:
    """Run the console in a process of its own, which prints its address, and keep the actors alive, until Ctrl-C."""
    with reserve_port() as reserved:
        port = reserved.getsockname()[1]
    command = [sys.executable, "-m", "rocketshim", "console", "--operate", "--listen", str(port)]
    with subprocess.Popen([*command, *stage.connection]) as process:  # noqa: S603 - our own command
        try:
            while process.poll() is None:
                for actor in actors:
                    actor.revive()
                time.sleep(_TICK_S)
        except KeyboardInterrupt:  # the terminal has sent it to the console, too
            process.wait()

"""What the processes of a run do: `python -m proof.chaos.program JOB`, where JOB is a `Job` as JSON.

A sender sends until SIGTERM, some messages with a delay. A consumer's listener fails as the plan says. An orderly
consumer writes to the sink. Each writes its file of the history. `PROOF_PLANT` names a defect that is planted in every
process (`proof.simulate.bugs`).
"""

import faulthandler
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, TopicPartition

from proof.chaos.plan import LANES, LEASE_MS, LEVELS, SESSION_S, TRANSACTION_MS, fails
from proof.chaos.points import Points
from proof.chaos.shop import run_shop
from proof.folds import observing
from proof.lines import End, Group, Invoke, Process, digest_of, encoded, headers_to_json
from proof.simulate.bugs import BUGS, planted
from proof.writer import HistoryWriter
from rocketshim import (
    ConsumeFromWhere,
    DelayWorker,
    Message,
    MessageModel,
    MessageView,
    Producer,
    PushConsumer,
    dropin,
)
from rocketshim.cli.worker import end_if_stuck
from rocketshim.errors import (
    BrokerUnavailableError,
    ConsumerError,
    NotAuthorizedError,
    RocketshimError,
    SendTimeoutError,
    StaleMessageError,
    TopicMissingError,
)
from rocketshim.kafka.clients import is_fatal
from rocketshim.locks.log_thread import GroupLogThread
from rocketshim.settings.worker import WorkerSettings
from rocketshim.stop_signals import StopSignals
from rocketshim_topics import decode
from rocketshim_topics.wire import REPLAY_ID, coordinates, read_headers

if TYPE_CHECKING:
    from concurrent.futures import Future

    from proof.lines import TimerCommand
    from rocketshim.producer.result import SendResult

__all__ = ["PLANT", "Job", "process_of"]

PLANT = "PROOF_PLANT"
_SEND_S = 60.0
_TICK_S = 0.01
_MOST_PENDING = 3_000
_ROOM_S = 3.0
_NAMED = 0.05
_NAMES = 12
_FIRST_RETRY_NS = 80_000_000  # librdkafka tries again after 100 ms less up to a fifth (retry.backoff.ms)
_BEGAN_NS = time.time_ns() - time.monotonic_ns()  # a process begins with a clock that is right


def _true_ns() -> int:
    """Return the time by a clock that no fault sets: a message due by one that is a day ahead waits for a day."""
    return _BEGAN_NS + time.monotonic_ns()


@dataclass(frozen=True, slots=True)
class Job:
    """What one process shall do.

    Attributes:
        role: what it is.
        lane: of which lane, by name.
        place: which of the processes of this role it is; its successor has the same number.
        name: of the process.
        run: folder of the run.
        bootstrap: addresses of the brokers.
        client: settings of every Kafka client.
        rate: messages a second, for a sender.
        port: of the sink.
        kip_848: whether the brokers assign the partitions to the members of its group.
        by_key: whether an orderly consumer keeps the order of each key.
        is_former: whether a member of a group is of the former version, which has one topic less.
    """

    role: str
    lane: str
    place: int
    name: str
    run: str
    bootstrap: str
    client: dict[str, str]
    rate: float
    port: int
    kip_848: bool
    by_key: bool
    is_former: bool = False

    def to_json(self) -> str:
        """Format it for the command line."""
        return json.dumps(asdict(self))


class _Program:
    """One process.

    Args:
        job: what it shall do.
        history: its file of the history. A worker writes nothing.
        points: where it may die.
    """

    def __init__(self, job: Job, history: HistoryWriter, points: Points) -> None:
        self.job, self.history, self.points = job, history, points
        self.lane = next(lane for lane in LANES if lane.name == job.lane)

    def run(self) -> None:
        """Run until the process is ended."""
        match self.job.role:
            case "sender":
                self._send()
            case "worker":
                self._relay()
            case "consumer":
                self._consume()
            case "orderly":
                self._consume_in_order()
            case "broadcast":
                self._consume_all()
            case "dropin":
                self._drop_in()
            case "shop":
                run, name = Path(self.job.run), self.job.name
                run_shop(
                    name, self.lane, self.history, bootstrap=self.job.bootstrap, client=self.job.client,
                    folder=run / self.job.lane, quiet=run / "control" / f"{name}.quiet",
                )  # fmt: skip
            case role:
                raise SystemExit(f"no such role: {role}")

    # --- sending -----------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        dice = random.Random(self.job.name)  # noqa: S311 - what is sent, no secret
        pending: set[Future[SendResult]] = set()
        number, began_s, skipped = 0, time.monotonic(), 0
        with (
            StopSignals() as stopping,
            Producer(
                self.job.bootstrap,
                namespace=self.lane.name,
                delay_levels=LEVELS,
                delivery_timeout_ms=int(_SEND_S * 1_000),
                client=self.job.client,
            ) as producer,
        ):
            while not stopping.asked:
                time.sleep(_TICK_S)
                due = int((time.monotonic() - began_s) * self.job.rate) - skipped
                pending = {each for each in pending if not each.done()}
                while number < due and len(pending) < _MOST_PENDING:
                    named = dice.random() < _NAMED
                    send = self._send_named if named else self._send_one
                    future = send(producer, self._message(dice, number), dice)
                    number += 1
                    if future is not None:
                        pending.add(future)
                skipped += due - number
            end = time.monotonic() + _SEND_S
            while any(not each.done() for each in pending) and time.monotonic() < end:
                time.sleep(0.05)

    def _message(self, dice: random.Random, number: int) -> Message:
        delay: dict[str, Any] = {}
        topic = dice.choices(list(self.lane.shares), list(self.lane.shares.values()))[0]
        if topic in self.lane.delayed and dice.random() < 0.15:
            delay = dice.choice(
                [
                    {"delay_level": dice.randint(1, 5)},
                    {"delay": f"{dice.randint(100, 4_000)}ms"},
                    {"deliver_at": _true_ns() // 1_000_000 + dice.randint(0, 3_000)},
                ]
            )
        body = f"{number} {self.job.name} ".encode() + dice.randbytes(dice.randint(0, 100))
        properties = [("trace", b"%d" % number), ("trace", None), ("blank", b"")]
        return Message(topic, body, key=f"k{dice.randrange(20)}", properties=properties, **delay)

    def _send_named(self, producer: Producer, message: Message, dice: random.Random) -> "Future[SendResult] | None":
        """Send a message under a name, or a command for one; there are few names, so they meet."""
        topic, name = self.lane.delayed[0], f"n{dice.randrange(_NAMES)}"
        if dice.random() < 0.4:
            command: TimerCommand = dice.choice(["CANCEL", "CANCEL", "NOW"])
            return self._send_command(producer, command, topic, name)
        delay = f"{dice.randint(100, 6_000)}ms"
        options: dict[str, Any] = dice.choice([{}, {}, {"if_absent": True}, {"at_most": "8s"}])
        return self._send_one(
            producer,
            replace(message, topic=topic, delay=delay, delay_level=None, deliver_at=None, timer=name, **options),
        )

    def _send_command(
        self, producer: Producer, command: "TimerCommand", topic: str, name: str
    ) -> "Future[SendResult] | None":
        key = encoded(f"{topic}/{name}".encode())
        op = self.history.invoke(
            lambda op, now_ns: Invoke(op=op, f="send", at_ns=now_ns, topic=topic, key=key, timer=name, command=command)
        )
        until_s = time.monotonic() + _ROOM_S
        return self._awaited(op, lambda: producer.sender.command(command, topic, name, until_s))

    def _send_one(
        self, producer: Producer, message: Message, _: random.Random | None = None
    ) -> "Future[SendResult] | None":
        delay_ms = message.delay_ms if message.delay_level is None else message.delay_level * 1_000
        command: Any = ("SET-IF-ABSENT" if message.if_absent else "SET") if message.timer is not None else None
        op = self.history.invoke(
            lambda op, now_ns: Invoke(
                op=op, f="send", at_ns=now_ns, topic=message.topic, key=encoded(message.key_bytes),
                digest=digest_of(message.body), headers=headers_to_json(message.headers), delay_ms=delay_ms,
                deliver_at_ms=message.deliver_at_ms, timer=message.timer, command=command,
            )
        )  # fmt: skip
        return self._awaited(op, lambda: producer.send_async(message))

    def _awaited(self, op: int, send: "Callable[[], Future[SendResult]]") -> "Future[SendResult] | None":
        try:
            future = send()
        except (RocketshimError, BufferError) as error:
            why = type(error).__name__
            self.history.end(lambda now_ns: End(type="fail", op=op, at_ns=now_ns, why=why))
            return None
        future.add_done_callback(partial(_sent, self.history, op, time.monotonic_ns()))
        return future

    # --- relaying ----------------------------------------------------------------------------------------------------

    def _relay(self) -> None:
        client = {**self.job.client, "session.timeout.ms": int(SESSION_S * 1_000)}
        settings = WorkerSettings.make(
            bootstrap=self.job.bootstrap, namespace=self.lane.name, delay_levels=LEVELS, allow=self.lane.allow,
            exactly_once=self.lane.exactly_once, instance=self.job.name if self.lane.exactly_once else None,
            transaction_timeout_ms=TRANSACTION_MS, client=client,
        )  # fmt: skip
        with StopSignals() as stopping:
            while not stopping.asked:
                worker = DelayWorker(settings)
                end_if_stuck(worker.heart)  # as in `rocketshim worker`

                def stop(number: int, frame: Any, worker: DelayWorker = worker) -> None:
                    stopping.note(number, frame)
                    worker.stop()

                signal.signal(signal.SIGTERM, stop)
                with suppress(BrokerUnavailableError):  # brokers are away: nothing was started
                    worker.run()

    # --- consuming ---------------------------------------------------------------------------------------------------

    def _topics(self, group: Group) -> tuple[str, ...]:
        """What the version of this process has a listener for."""
        return group.topics[:-1] if self.job.is_former else group.topics

    @property
    def _protocol(self) -> dict[str, Any]:
        """Settings of the protocol by which a group shares out its partitions."""
        session_ms = int(SESSION_S * 1_000)
        if self.job.kip_848:
            # of all members, the drop-in's too; the rule of `push.assembly` for the brokers' session, not for 45 s
            return {"group.protocol": "consumer", "max.poll.interval.ms": session_ms + 3_000}
        return {"session.timeout.ms": session_ms, "heartbeat.interval.ms": 500}

    def _consumer(self, group: Group, **settings: Any) -> PushConsumer:
        named: dict[str, Any] = {
            "group": group.name, "namespace": self.lane.name, "client_id": self.job.name, "delay_levels": LEVELS,
            "consume_from_where": ConsumeFromWhere.FIRST_OFFSET, "consume_thread_min": 4, "consume_thread_max": 4,
            "persist_consumer_offset_interval_ms": 500, "client": self.job.client,
        }  # fmt: skip
        if group.limit is not None:
            named["max_reconsume_times"] = group.limit
        return PushConsumer(self.job.bootstrap, **(named | settings))

    def _consume(self) -> None:
        group = self.lane.group("concurrent")

        def handle(message: MessageView) -> None:
            self._deliver(group.name, message, None, partial(_work, message))

        def run() -> None:
            consumer = self._consumer(group, client={**self.job.client, **self._protocol})
            for topic in (*self._topics(group), *self.lane.fleeting):
                consumer.register_message_listener(topic, handle)
            consumer.run()

        _until_brokers_answer(run)

    def _consume_all(self) -> None:
        """Broadcasting: a process that is started again continues where the one before was."""
        group, client_id = self.lane.group("broadcasting"), f"tell-{self.job.place}"
        folder = Path(self.job.run) / "positions"
        consumer = self._consumer(
            group, message_model=MessageModel.BROADCASTING, client_id=client_id, offset_store_dir=str(folder)
        )

        def handle(message: MessageView) -> None:
            self._deliver(group.name, message, None, lambda: None)

        consumer.register_message_listener(group.topics[0], handle)
        _until_brokers_answer(consumer.run)

    def _consume_in_order(self) -> None:
        group, local = self.lane.group("orderly"), threading.local()

        def handle(message: MessageView, context: Any) -> None:
            def work() -> None:
                if not hasattr(local, "sink"):
                    local.sink = socket.create_connection(("127.0.0.1", self.job.port)).makefile("rw")
                _work(message)
                local.sink.write(f"{message.offset_msg_id} {context.fencing_token} {self.job.name}\n")
                local.sink.flush()
                if local.sink.readline() != "ok\n":
                    raise _FailedError

            self._deliver(group.name, message, context.fencing_token, work)

        def run() -> None:
            consumer = self._consumer(
                group, suspend_current_queue_time_ms=50, lock_lease_ms=LEASE_MS, lock_hold_ms=3_000,
                lock_renew_ms=1_000, order="key" if self.job.by_key else "queue",
                client={**self.job.client, **self._protocol},
            )  # fmt: skip
            for topic in self._topics(group):
                consumer.register_message_listener(topic, handle, orderly=True)
            consumer.run()

        log: Any = GroupLogThread
        log._observe = observing(log._observe, group.name, self.history.write, self.history.clock_ns)  # noqa: SLF001
        _until_brokers_answer(run)

    def _deliver(self, group: str, message: MessageView, token: int | None, work: Callable[[], None]) -> None:
        """Do a listener's work between the two lines of its call."""
        headers = dict(read_headers(message.record) or ()) if message.trusted else {}
        replay = headers.get(REPLAY_ID)
        op = self.history.invoke(
            lambda op, now_ns: Invoke(
                op=op, f="deliver", at_ns=now_ns, group=group, where=message.offset_msg_id, id=message.msg_id,
                attempt=message.reconsume_times, replay=replay.decode() if replay else None, token=token,
                key=encoded(message.key), digest=digest_of(message.body), headers=headers_to_json(message.headers),
            )
        )  # fmt: skip
        self.points.reach("listener")
        try:
            work()
        except Exception:
            then: Any = "retry" if token is None else "again"
            self.history.end(lambda now_ns: End(type="fail", op=op, at_ns=now_ns, then=then))
            raise
        self.history.end(lambda now_ns: End(type="ok", op=op, at_ns=now_ns))
        self.points.reach("listener-after")

    # --- the drop-in -------------------------------------------------------------------------------------------------

    def _drop_in(self) -> None:
        with StopSignals() as stopping:
            while not stopping.asked:  # with KIP-848 it is fatal if a right is taken away
                self._drop_in_until_fatal(stopping)

    def _drop_in_until_fatal(self, stopping: StopSignals) -> None:
        group = self.lane.group("drop-in")
        config = {
            **self.job.client, **self._protocol, "bootstrap.servers": self.job.bootstrap, "group.id": group.name,
            "auto.offset.reset": "earliest", "enable.auto.commit": False,
            "rocketshim.retry.enable": True, "rocketshim.namespace": self.lane.name,
            "rocketshim.delay.levels": LEVELS, "rocketshim.max.reconsume.times": group.limit,
        }  # fmt: skip
        consumer, fatal = dropin.Consumer(config), False
        _until_brokers_answer(lambda: consumer.subscribe(list(self._topics(group))))
        while not stopping.asked and not fatal:
            found = consumer.consume(50, 0.2)
            fatal = any(is_fatal(each.error()) for each in found)
            ends: dict[tuple[Any, Any], int | None] = {}
            for message in found:
                place = message.topic(), message.partition()
                if message.error() is None and ends.get(place, 0) is not None:
                    ends[place] = self._handle(consumer, group, message)
            offsets = [TopicPartition(*place, end) for place, end in ends.items() if end is not None]
            if offsets:
                self.points.reach("commit-before")
                with suppress(KafkaException):  # another member may have the partition by now
                    consumer.commit(offsets=offsets, asynchronous=False)
                self.points.reach("commit-after")
        consumer.close()

    def _handle(self, consumer: Any, group: Group, message: Any) -> int | None:
        """Handle one message; the next offset to commit, None: the partition is not ours any more."""
        headers = read_headers(message) or ()
        trusted = message.topic() == self.lane.names.retry(group.name)
        envelope, times = decode(headers, trusted=trusted), consumer.reconsume_times(message)
        op = self.history.invoke(
            lambda op, now_ns: Invoke(
                op=op, f="deliver", at_ns=now_ns, group=group.name, where=coordinates(message),
                id=consumer.uniq_key(message), attempt=times, key=encoded(message.key()),
                digest=digest_of(message.value()), headers=headers_to_json(envelope.user),
            )
        )  # fmt: skip
        self.points.reach("listener")
        if fails(int((message.value() or b"0").partition(b" ")[0]), times):
            self.history.end(lambda now_ns: End(type="fail", op=op, at_ns=now_ns, then="retry"))
            while True:
                try:
                    consumer.reconsume_later(message, "the carrier is closed")
                except StaleMessageError:
                    return None
                except RocketshimError:  # not stored, or not known: a second record would be a repeat
                    time.sleep(0.2)
                else:
                    break
        else:
            self.history.end(lambda now_ns: End(type="ok", op=op, at_ns=now_ns))
        self.points.reach("listener-after")
        return int(message.offset()) + 1


def _sent(history: HistoryWriter, op: int, begun_ns: int, future: "Future[SendResult]") -> None:
    error = future.exception()
    if error is None:
        result = future.result()
        # The client reports no offset where the broker answers that it has the sequence number already.
        offset: int | None = result.queue_offset
        where = None if offset is None or offset < 0 else result.offset_msg_id
        history.end(lambda now_ns: End(type="ok", op=op, at_ns=now_ns, where=where, id=result.msg_id))
        return
    # A report is about the last attempt, and an earlier one may have stored the message.
    is_certain = not isinstance(error, SendTimeoutError) and time.monotonic_ns() - begun_ns < _FIRST_RETRY_NS
    kind: Any = "fail" if is_certain else "info"
    history.end(lambda now_ns: End(type=kind, op=op, at_ns=now_ns, why=repr(error)[:200]))


class _FailedError(Exception):
    """The listener fails with this message."""


def _work(message: MessageView) -> None:
    time.sleep(0.001)
    if fails(int((message.body or b"0").partition(b" ")[0]), message.reconsume_times):
        raise _FailedError


def _until_brokers_answer(start: Callable[[], None]) -> None:
    with StopSignals() as stopping:
        while not stopping.asked:
            try:
                start()
            except (BrokerUnavailableError, TopicMissingError, NotAuthorizedError):
                time.sleep(0.2)  # the brokers are away, or a topic is deleted or a right taken away right now
            except ConsumerError as error:
                if not is_fatal(error.__cause__):
                    raise  # with KIP-848 it is fatal if a right is taken away; a supervisor starts the program again
            else:
                return


def process_of(job: Job) -> Process:
    """What the first line of the process's file says."""
    lane = next(lane for lane in LANES if lane.name == job.lane)
    if job.role == "worker":
        return Process(name=job.name, role="worker", group=lane.names.worker_group)
    if job.role in {"sender", "shop"}:
        return Process(name=job.name, role="sender")
    group = lane.group_of(job.role).name
    client_id = f"tell-{job.place}" if job.role == "broadcast" else job.name
    return Process(
        name=job.name, role="dropin" if job.role == "dropin" else "consumer", group=group, client_id=client_id
    )


def main(text: str) -> None:
    """Run one process until it is ended."""
    faulthandler.enable()
    job = Job(**json.loads(text))
    control = Path(job.run) / "control"
    points = Points(control, job.name)
    if job.role != "dropin":  # it is a class of confluent_kafka itself; its points are in the program
        points.install()
    with ExitStack() as stack:
        if name := os.environ.get(PLANT):
            stack.enter_context(planted(next(bug for bug in BUGS if bug.name == name)))
        history = stack.enter_context(HistoryWriter(Path(job.run) / job.lane, process_of(job)))
        _Program(job, history, points).run()


if __name__ == "__main__":
    main(sys.argv[1])

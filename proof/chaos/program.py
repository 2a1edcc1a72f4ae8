"""What the processes of a run do: `python -m proof.chaos.program ROLE FOLDER NAME BOOTSTRAP [PORT]`.

A sender sends until SIGTERM, some messages with a delay. A consumer's listener fails as the plan says. An orderly
consumer writes to the sink, whose port it is given. Each writes its file of the history.
"""

import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proof.chaos.plan import CONCURRENT, LEASE_MS, LEVELS, NAMES, ORDERLY, SESSION_S, TOPICS, fails
from proof.lines import End, Invoke, Process, digest_of, encoded, headers_to_json
from proof.writer import HistoryWriter
from rocketshim import ConsumeFromWhere, Message, MessageView, Producer, PushConsumer
from rocketshim.errors import BrokerUnavailableError, RocketshimError, SendTimeoutError
from rocketshim_topics.wire import REPLAY_ID, read_headers

if TYPE_CHECKING:
    from concurrent.futures import Future

    from rocketshim.producer.result import SendResult

__all__: list[str] = []

_SENDS_PER_S = 60
_SEND_S = 60.0


def main(role: str, folder: str, name: str, bootstrap: str, port: str = "0") -> None:
    """Run one process of a role until it is ended."""
    match role:
        case "sender":
            with HistoryWriter(Path(folder), Process(name=name, role="sender")) as history:
                _send(history, name, bootstrap)
        case "consumer":
            process = Process(name=name, role="consumer", group=CONCURRENT.name, client_id=name)
            with HistoryWriter(Path(folder), process) as history:
                _consume(history, name, bootstrap)
        case "orderly":
            process = Process(name=name, role="consumer", group=ORDERLY.name, client_id=name)
            with HistoryWriter(Path(folder), process) as history:
                _consume_in_order(history, name, bootstrap, int(port))
        case _:
            raise SystemExit(f"no such role: {role}")


# --- sending ---------------------------------------------------------------------------------------------------------


def _send(history: HistoryWriter, name: str, bootstrap: str) -> None:
    dice = random.Random(name)  # noqa: S311 - what is sent, no secret
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    client = {"message.timeout.ms": int(_SEND_S * 1_000)}
    pending: set[Future[SendResult]] = set()
    with Producer(bootstrap, namespace=NAMES.namespace, delay_levels=LEVELS, client=client) as producer:
        number = 0
        while not ended.wait(dice.random() * 2 / _SENDS_PER_S):
            future = _send_one(history, producer, _message(dice, name, number))
            pending = {each for each in pending if not each.done()}
            if future is not None:
                pending.add(future)
            number += 1
        end = time.monotonic() + _SEND_S
        while any(not each.done() for each in pending) and time.monotonic() < end:
            time.sleep(0.05)


def _message(dice: random.Random, name: str, number: int) -> Message:
    delay: dict[str, Any] = {}
    topic = dice.choice(list(TOPICS))
    if topic in CONCURRENT.topics and dice.random() < 0.3:
        delay = dice.choice(
            [
                {"delay_level": dice.randint(1, 4)},
                {"delay": f"{dice.randint(100, 4_000)}ms"},
                {"deliver_at": time.time_ns() // 1_000_000 + dice.randint(0, 3_000)},
            ]
        )
    body = f"{number} {name} ".encode() + dice.randbytes(dice.randint(0, 100))
    properties = [("trace", b"%d" % number), ("trace", None), ("blank", b"")]
    return Message(topic, body, key=f"k{dice.randrange(20)}", properties=properties, **delay)


def _send_one(history: HistoryWriter, producer: Producer, message: Message) -> "Future[SendResult] | None":
    delay_ms = message.delay_ms if message.delay_level is None else message.delay_level * 1_000
    op = history.invoke(
        lambda op, now_ns: Invoke(
            op=op, f="send", at_ns=now_ns, topic=message.topic, key=encoded(message.key_bytes),
            digest=digest_of(message.body), headers=headers_to_json(message.headers), delay_ms=delay_ms,
            deliver_at_ms=message.deliver_at_ms,
        )
    )  # fmt: skip
    try:
        future = producer.send_async(message)
    except (RocketshimError, BufferError) as error:
        why = type(error).__name__
        history.end(lambda now_ns: End(type="fail", op=op, at_ns=now_ns, why=why))
        return None
    future.add_done_callback(partial(_sent, history, op))
    return future


def _sent(history: HistoryWriter, op: int, future: "Future[SendResult]") -> None:
    error = future.exception()
    if error is None:
        result = future.result()
        # The client reports no offset where the broker answers that it has the sequence number already.
        offset: int | None = result.queue_offset
        where = None if offset is None or offset < 0 else result.offset_msg_id
        history.end(lambda now_ns: End(type="ok", op=op, at_ns=now_ns, where=where, id=result.msg_id))
        return
    kind: Any = "info" if isinstance(error, SendTimeoutError) else "fail"
    history.end(lambda now_ns: End(type=kind, op=op, at_ns=now_ns, why=repr(error)[:200]))


# --- consuming -------------------------------------------------------------------------------------------------------


class _FailedError(Exception):
    """The listener fails with this message."""


def _deliver(
    history: HistoryWriter, group: str, message: MessageView, token: int | None, work: Callable[[], None]
) -> None:
    """Do a listener's work between the two lines of its call."""
    headers = dict(read_headers(message.record) or ()) if message.trusted else {}
    replay = headers.get(REPLAY_ID)
    op = history.invoke(
        lambda op, now_ns: Invoke(
            op=op, f="deliver", at_ns=now_ns, group=group, where=message.offset_msg_id, id=message.msg_id,
            attempt=message.reconsume_times, replay=replay.decode() if replay else None, token=token,
            key=encoded(message.key), digest=digest_of(message.body), headers=headers_to_json(message.headers),
        )
    )  # fmt: skip
    try:
        work()
    except Exception:
        then: Any = "retry" if token is None else "again"
        history.end(lambda now_ns: End(type="fail", op=op, at_ns=now_ns, then=then))
        raise
    history.end(lambda now_ns: End(type="ok", op=op, at_ns=now_ns))


def _number(message: MessageView) -> int:
    return int((message.body or b"0").partition(b" ")[0])


def _consume(history: HistoryWriter, name: str, bootstrap: str) -> None:
    consumer = PushConsumer(
        bootstrap, group=CONCURRENT.name, namespace=NAMES.namespace, client_id=name, delay_levels=LEVELS,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET, consume_thread_min=4, consume_thread_max=4,
        max_reconsume_times=CONCURRENT.limit or 0, persist_consumer_offset_interval_ms=500,
        client={"session.timeout.ms": int(SESSION_S * 1_000), "heartbeat.interval.ms": 500},
    )  # fmt: skip

    @consumer.listener(CONCURRENT.topics[0])
    def handle(message: MessageView) -> None:
        def work() -> None:
            time.sleep(0.002)
            if fails(_number(message), message.reconsume_times):
                raise _FailedError

        _deliver(history, CONCURRENT.name, message, None, work)

    _run(consumer)


def _consume_in_order(history: HistoryWriter, name: str, bootstrap: str, port: int) -> None:
    local = threading.local()
    consumer = PushConsumer(
        bootstrap, group=ORDERLY.name, namespace=NAMES.namespace, client_id=name, delay_levels=LEVELS,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET, consume_thread_min=4, consume_thread_max=4,
        max_reconsume_times=ORDERLY.limit or 0, persist_consumer_offset_interval_ms=500,
        suspend_current_queue_time_ms=50, lock_lease_ms=LEASE_MS, lock_hold_ms=3_000, lock_renew_ms=1_000,
    )  # fmt: skip

    @consumer.listener(ORDERLY.topics[0], orderly=True)
    def handle(message: MessageView, context: Any) -> None:
        def work() -> None:
            if not hasattr(local, "sink"):
                local.sink = socket.create_connection(("127.0.0.1", port)).makefile("rw")
            time.sleep(0.002)
            if fails(_number(message), message.reconsume_times):
                raise _FailedError
            local.sink.write(f"{message.offset_msg_id} {context.fencing_token} {name}\n")
            local.sink.flush()
            if local.sink.readline() != "ok\n":
                raise _FailedError

        _deliver(history, ORDERLY.name, message, context.fencing_token, work)

    _run(consumer)


def _run(consumer: PushConsumer) -> None:
    while True:
        try:
            consumer.run()
        except BrokerUnavailableError:  # the broker is being restarted: nothing was started
            time.sleep(0.2)
        else:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A program with transactions in a run under faults: its database says what has to be delivered, and what must not be.

It begins one transaction after the other. Some it commits, some it rolls back, and some it leaves to the check, which
it or its successor answers. When the senders end it begins no more.
"""

import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from proof.chaos.plan import LEVELS, Lane
from proof.index import Index
from proof.lines import End, Invoke, TimerCommand, digest_of, encoded, headers_to_json
from proof.reader import read_folder
from proof.transactions.service import GROUP, database, is_paid
from proof.writer import HistoryWriter
from rocketshim import Message
from rocketshim.errors import RocketshimError
from rocketshim.producer.result import SendResult
from rocketshim.stop_signals import StopSignals
from rocketshim.transactions import TransactionMQProducer

__all__ = ["problems", "run_shop"]

_EVERY_S: Final = 0.3
_SEND_S: Final = 30.0
_SUCCEEDS: Final = 100  # each number that is one above a multiple of this is handled at the first attempt
_UNLIKELY: Final = 0.15


class _Shop(TransactionMQProducer):
    """A producer that writes down its commands."""

    def __init__(self, history: HistoryWriter, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        self.history = history

    def send_now(self, topic: str, *, timer: str, timeout_s: float = _SEND_S) -> SendResult:
        """Send a COMMIT."""
        del timeout_s
        return self._recorded("NOW", topic, timer, lambda: super(_Shop, self).send_now(topic, timer=timer))

    def cancel(self, topic: str, *, timer: str, timeout_s: float = _SEND_S) -> SendResult:
        """Send a ROLLBACK."""
        del timeout_s
        return self._recorded("CANCEL", topic, timer, lambda: super(_Shop, self).cancel(topic, timer=timer))

    def _recorded(self, command: TimerCommand, topic: str, timer: str, send: Callable[[], SendResult]) -> SendResult:
        key = encoded(f"{topic}/{timer}".encode())
        op = self.history.invoke(
            lambda op, now_ns: Invoke(
                op=op, f="send", at_ns=now_ns, topic=topic, key=key, timer=timer, command=command
            )
        )  # fmt: skip
        try:
            sent = send()
        except RocketshimError as error:
            why = repr(error)[:200]
            self.history.end(lambda now_ns: End(type="info", op=op, at_ns=now_ns, why=why))
            raise
        self.history.end(lambda now_ns: End(type="ok", op=op, at_ns=now_ns))
        return sent


def run_shop(
    name: str, lane: Lane, history: HistoryWriter, *, bootstrap: str, client: dict[str, str], folder: Path, quiet: Path
) -> None:
    """Run until SIGTERM; begin no transaction any more when the file `quiet` exists."""
    path, dice = folder / "shop.db", random.Random(name)  # noqa: S311 - what is sent, no secret
    mine, number = database(path), 0
    with (
        StopSignals() as stopping,
        _Shop(
            history, bootstrap, group=GROUP, listener=is_paid(path), namespace=lane.name, delay_levels=LEVELS,
            client=client,
        ) as producer,
    ):  # fmt: skip
        while not stopping.asked:
            time.sleep(_EVERY_S)
            if not quiet.exists():
                number += 1
                body = f"{number * _SUCCEEDS + 1} {name}".encode()
                _transact(producer, mine, Message(lane.delayed[0], body, key=f"k{number % 20}"), dice)


def _transact(producer: _Shop, mine: sqlite3.Connection, message: Message, dice: random.Random) -> None:
    op = producer.history.invoke(
        lambda op, now_ns: Invoke(
            op=op, f="send", at_ns=now_ns, topic=message.topic, key=encoded(message.key_bytes),
            digest=digest_of(message.body), headers=headers_to_json(message.headers), command="SET",
        )
    )  # fmt: skip
    try:
        transaction = producer.transaction(message, timeout_s=_SEND_S)
    except (RocketshimError, BufferError) as error:
        why = repr(error)[:200]
        producer.history.end(lambda now_ns: End(type="info", op=op, at_ns=now_ns, why=why))
        return
    sent = transaction.send_result
    where = None if sent.queue_offset < 0 else sent.offset_msg_id
    producer.history.end(lambda now_ns: End(type="ok", op=op, at_ns=now_ns, where=where, id=sent.msg_id))
    try:
        if dice.random() < _UNLIKELY:
            transaction.rollback(timeout_s=_SEND_S)
            return
        mine.execute("INSERT INTO outcomes VALUES (?, 0, 1)", [transaction.msg_id])
        if dice.random() > _UNLIKELY:
            transaction.commit(timeout_s=_SEND_S)
    except (RocketshimError, sqlite3.IntegrityError):  # the check decides, or has decided
        pass


def problems(folder: Path, lane: Lane) -> Iterator[str]:
    """Yield which transactions of a lane were delivered without having committed, and the other way round."""
    index = Index(read_folder(folder))
    rows = dict(database(folder / "shop.db").execute("SELECT id, is_paid FROM outcomes").fetchall())
    records = [record for record in index.records.values() if record.it.committed]
    halves = {each.id for each in records if each.topic == index.names.timers and each.envelope.timer_asks}
    delivered = {each.id for each in records if each.topic == lane.delayed[0]}
    for each in sorted(halves & delivered):
        if not rows.get(each):
            yield f"phantom: transaction {each} of {lane.name} has not committed"
    for each in sorted(halves - delivered):
        if rows.get(each):
            yield f"lost: transaction {each} of {lane.name} has committed"

"""A service that pays orders: it writes a database and sends a message in one transaction, and dies at a given point.

Each process handles one order. What it has paid stands in the database with the id of the transaction. A process that
has loaded everything, and opens no client, starts them: `python -m proof.transactions.service BROKER DATABASE ORDERS
AT_ONCE`.
"""

import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from proof.timers.stage import TARGET
from rocketshim import MessageView
from rocketshim.transactions import LocalTransactionState, TransactionMQProducer

__all__ = ["GROUP", "Point", "database", "died", "is_paid", "paid_numbers", "pay", "point_of"]

GROUP: Final = "shop"
_AT_ONCE_S: Final = 0.004
_LOCK_S: Final = 60.0
_SEND_S: Final = 10.0


class Point(IntEnum):
    """Where a process dies. From `PAID` on, the local transaction has committed."""

    BEFORE = 1  # nothing is sent
    SENDING_HALF = 2
    HALF = 3  # it is stored
    PAYING = 4  # in the transaction of the database
    PAID = 5
    COMMITTING = 6  # the COMMIT is on its way
    COMMITTED = 7


def point_of(number: int) -> Point:
    """Return where the process of an order dies."""
    return list(Point)[number % len(Point)]


def database(path: Path) -> sqlite3.Connection:
    """Open the database: it outlives processes, not machines. It has one row for each transaction that has ended."""
    found = sqlite3.connect(path, timeout=_LOCK_S, isolation_level=None, check_same_thread=False)
    found.execute("PRAGMA synchronous = OFF")
    found.execute("CREATE TABLE IF NOT EXISTS outcomes (id TEXT PRIMARY KEY, number INTEGER, is_paid INTEGER)")
    return found


def is_paid(path: Path) -> Callable[[MessageView], LocalTransactionState]:
    """Return the listener. A transaction that has not committed when it is asked about cannot do so any more."""
    found = database(path)

    def check(message: MessageView) -> LocalTransactionState:
        found.execute("INSERT OR IGNORE INTO outcomes VALUES (?, NULL, 0)", [message.msg_id])
        (paid,) = found.execute("SELECT is_paid FROM outcomes WHERE id = ?", [message.msg_id]).fetchone()
        return LocalTransactionState.COMMIT_MESSAGE if paid else LocalTransactionState.ROLLBACK_MESSAGE

    return check


def paid_numbers(path: Path) -> set[int]:
    """Return the orders that are paid."""
    return {number for (number,) in database(path).execute("SELECT number FROM outcomes WHERE is_paid")}


def died(path: Path) -> Path:
    """Return the file with the numbers of orders whose processes have died at their point."""
    return path.with_suffix(".died")


def pay(bootstrap: str, path: Path, number: int, point: Point) -> None:
    """Pay one order, and die at a point."""

    def die(here: Point) -> None:
        if here is point:
            with died(path).open("a") as file:
                file.write(f"{number}\n")
            os.kill(os.getpid(), signal.SIGKILL)

    class Doomed(TransactionMQProducer):
        """A producer that may die while a record is on its way."""

        def _stored(self, *args: Any) -> Any:
            if point is on_its_way:
                time.sleep(random.uniform(0, _AT_ONCE_S))  # noqa: S311 - any moment
                die(point)
            return super()._stored(*args)

    on_its_way = Point.SENDING_HALF
    with Doomed(bootstrap, group=GROUP, listener=is_paid(path)) as producer:
        die(Point.BEFORE)
        transaction = producer.transaction(TARGET, b"%d" % number, timeout_s=_SEND_S)
        die(Point.HALF)
        mine = database(path)
        mine.execute("BEGIN IMMEDIATE")
        mine.execute("INSERT INTO outcomes VALUES (?, ?, 1)", [transaction.msg_id, number])
        die(Point.PAYING)
        mine.execute("COMMIT")
        die(Point.PAID)
        on_its_way = Point.COMMITTING
        transaction.commit(timeout_s=_LOCK_S)
        die(Point.COMMITTED)


def main(bootstrap: str, path: Path, orders: int, at_once: int) -> None:
    """Start a process for each order, some at the same time, and wait until all have died."""
    running = 0
    for number in range(orders):
        if running == at_once:
            os.wait()
            running -= 1
        running += 1
        if os.fork() == 0:
            pay(bootstrap, path, number, point_of(number))
            os._exit(1)  # it should have died
    for _ in range(running):
        os.wait()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))

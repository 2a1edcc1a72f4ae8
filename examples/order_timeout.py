"""Cancel an order that is not paid within 30 minutes. Runs in memory, in a second.

    python examples/order_timeout.py

When an order is placed, the shop sends itself a message with a delay of 30 minutes. When it arrives, the listener looks
whether the order was paid. If not, it cancels the order and releases the stock. Nothing has to be cancelled when the
customer pays: the listener finds a paid order and does nothing. It is safe to run twice, because only an order that
still waits is cancelled.
"""

import sqlite3

from rocketshim import Message, MessageView, Producer, PushConsumer
from rocketshim.harness import Harness

PAYMENT_TIME = "30m"

database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
database.executescript("""
    CREATE TABLE stock (item TEXT PRIMARY KEY, count INTEGER NOT NULL);
    CREATE TABLE orders (id TEXT PRIMARY KEY, item TEXT NOT NULL, status TEXT NOT NULL);
    INSERT INTO stock VALUES ('book', 2);
""")

consumer = PushConsumer("localhost:9092", group="order-timeout", consume_thread_min=1)


def place(producer: Producer, order_id: str, item: str) -> None:
    """Reserve an item, store the order, and ask to be reminded of it."""
    database.execute("UPDATE stock SET count = count - 1 WHERE item = ?", (item,))
    database.execute("INSERT INTO orders VALUES (?, ?, 'waiting')", (order_id, item))
    producer.send(Message("order-timeouts", order_id.encode(), key=order_id, delay=PAYMENT_TIME), timeout_s=30)


def pay(order_id: str) -> None:
    """Mark an order as paid, unless it is cancelled already."""
    database.execute("UPDATE orders SET status = 'paid' WHERE id = ? AND status = 'waiting'", (order_id,))


@consumer.listener("order-timeouts")
def cancel_if_unpaid(message: MessageView) -> None:
    """Cancel the order and release its item, in one transaction, if it still waits."""
    order_id = (message.body or b"").decode()
    database.execute("BEGIN IMMEDIATE")
    changed = database.execute(
        "UPDATE orders SET status = 'cancelled' WHERE id = ? AND status = 'waiting' RETURNING item", (order_id,)
    ).fetchone()
    if changed is not None:
        database.execute("UPDATE stock SET count = count + 1 WHERE item = ?", changed)
    database.execute("COMMIT")


def main() -> None:
    """Two orders: one is paid after ten minutes, one is not."""
    with Harness() as harness:
        harness.run(consumer)
        harness.topic("order-timeouts")
        place(harness.producer, "o-1", "book")
        place(harness.producer, "o-2", "book")
        harness.pass_time("10m")
        pay("o-1")
        harness.pass_time("19m")
        print("after 29 minutes:", *database.execute("SELECT id, status FROM orders"))
        harness.pass_time("1m")
        print("after 30 minutes:", *database.execute("SELECT id, status FROM orders"))
        (count,) = database.execute("SELECT count FROM stock").fetchone()
        print("books in stock:", count)
    statuses = dict(database.execute("SELECT id, status FROM orders"))
    if (statuses, count) != ({"o-1": "paid", "o-2": "cancelled"}, 1):
        raise SystemExit("not as it should be")


if __name__ == "__main__":
    main()

"""Cancel an order that is not paid within 30 minutes. Runs in memory, in a second.

    python examples/order_timeout.py

When an order is placed, the shop sends itself a message with a delay of 30 minutes, under the name of the order. When
the customer pays, the shop cancels the message, and nothing comes. When the customer asks for more time, it sends the
message again under the same name, and only the later one comes. The listener cancels the order and releases the stock.

The database decides, not the message: a payment at the last moment and a repeat of the message both find an order that
does not wait any more.
"""

import sqlite3

from rocketshim import Message, MessageView, Producer, PushConsumer
from rocketshim.harness import Harness

PAYMENT_TIME = "30m"

database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
database.executescript("""
    CREATE TABLE stock (item TEXT PRIMARY KEY, count INTEGER NOT NULL);
    CREATE TABLE orders (id TEXT PRIMARY KEY, item TEXT NOT NULL, status TEXT NOT NULL);
    INSERT INTO stock VALUES ('book', 3);
""")

consumer = PushConsumer("localhost:9092", group="order-timeout", consume_thread_min=1)


def wait_for_payment(producer: Producer, order_id: str) -> None:
    """Have the order looked at in 30 minutes; called again, the 30 minutes begin again."""
    message = Message("order-timeouts", order_id.encode(), key=order_id, delay=PAYMENT_TIME, timer=order_id)
    producer.send(message, timeout_s=30)


def place(producer: Producer, order_id: str, item: str) -> None:
    """Reserve an item and store the order. The time-out is sent first: without an order it does nothing."""
    wait_for_payment(producer, order_id)
    database.execute("UPDATE stock SET count = count - 1 WHERE item = ?", (item,))
    database.execute("INSERT INTO orders VALUES (?, ?, 'waiting')", (order_id, item))


def pay(producer: Producer, order_id: str) -> None:
    """Mark an order as paid, unless it is cancelled already, and cancel its time-out."""
    paid = database.execute("UPDATE orders SET status = 'paid' WHERE id = ? AND status = 'waiting'", (order_id,))
    if paid.rowcount:
        producer.cancel("order-timeouts", timer=order_id, timeout_s=30)


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


def show(moment: str) -> None:
    """Print the orders."""
    print(f"{moment}:", *database.execute("SELECT id, status FROM orders"))


def main() -> None:
    """Three orders: one is paid after ten minutes, one is not paid, and one customer asks for more time."""
    with Harness() as harness:
        harness.run(consumer)
        harness.topic("order-timeouts")
        for order_id in ("o-1", "o-2", "o-3"):
            place(harness.producer, order_id, "book")
        harness.pass_time("10m")
        pay(harness.producer, "o-1")
        wait_for_payment(harness.producer, "o-3")
        harness.pass_time("19m")
        show("after 29 minutes")
        harness.pass_time("1m")
        show("after 30 minutes")
        harness.pass_time("10m")
        show("after 40 minutes")
        (count,) = database.execute("SELECT count FROM stock").fetchone()
        delivered = [(record.value() or b"").decode() for record in harness.kafka.records("order-timeouts")]
        print("books in stock:", count)
        print("messages that came:", *delivered)
    statuses = dict(database.execute("SELECT id, status FROM orders"))
    if (statuses, count, delivered) != (
        {"o-1": "paid", "o-2": "cancelled", "o-3": "cancelled"}, 2, ["o-2", "o-3"],
    ):  # fmt: skip
        raise SystemExit("not as it should be")


if __name__ == "__main__":
    main()

"""A FastAPI application that sends orders and handles them in the same process. Runs by itself on a local broker.

    python examples/fastapi_orders.py

In a shop of your own: `rocketshim dev` in one terminal, and in another, in this folder, with FastAPI and uvicorn
installed:

    uvicorn fastapi_orders:app
    curl -d '{"id": "o-7", "amount": 20}' -H 'Content-Type: application/json' localhost:8000/orders

With ROCKETSHIM_BOOTSTRAP set it runs on that cluster.
"""

import os
import threading
import uuid
from typing import Annotated

from confluent_kafka.admin import AdminClient
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel

from rocketshim import (
    DelayLevels,
    Layout,
    Message,
    MessageView,
    Producer,
    PushConsumer,
    TopicNames,
    TopicSpec,
    ensure_topics,
)
from rocketshim.contrib.asgi import get_producer, lifespan, send
from rocketshim.local import any_broker


class Order(BaseModel):
    """The body of a request, and of a message."""

    id: str
    amount: int


charged: dict[str, int] = {}
one_more = threading.Semaphore(0)


def make_app(bootstrap: str, topic: str = "orders", namespace: str = "") -> FastAPI:
    """Return the application; its producer and its consumer run as long as it does."""
    consumer = PushConsumer(bootstrap, group="payments", namespace=namespace)

    @consumer.listener(topic)
    async def charge(message: MessageView) -> None:
        order = Order.model_validate_json(message.body or b"")
        charged[order.id] = order.amount
        one_more.release()

    producer = Producer(bootstrap, namespace=namespace)
    app = FastAPI(lifespan=lifespan(producer=producer, consumers=[consumer]))

    @app.post("/orders", status_code=202)
    async def place(order: Order, producer: Annotated[Producer, Depends(get_producer)]) -> dict[str, str]:
        sent = await send(producer, Message(topic, order.model_dump_json().encode(), key=order.id), timeout_s=30)
        return {"message": sent.msg_id}

    return app


app = make_app(os.environ.get("ROCKETSHIM_BOOTSTRAP", "localhost:9092"))


def main() -> None:
    """Start the application as a server does, place two orders, and wait until they are charged."""
    namespace = f"example{uuid.uuid4().hex[:6]}"
    topic = f"{namespace}.orders"
    with any_broker(report=print) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        ensure_topics(
            admin, [*Layout(TopicNames(namespace), DelayLevels.default()).shared(), TopicSpec(topic, partitions=1)]
        )
        with TestClient(make_app(broker.bootstrap, topic, namespace)) as shop:
            for number in (1, 2):
                answer = shop.post("/orders", json={"id": f"o-{number}", "amount": number})
                print(answer.status_code, answer.json())
            for _ in range(2):
                one_more.acquire()
        ours = [each for each in admin.list_topics().topics if each.startswith(namespace)]
        for future in admin.delete_topics(ours).values():
            future.result(30)
    print("charged:", charged)
    if charged != {"o-1": 1, "o-2": 2}:
        raise SystemExit("not as it should be")


if __name__ == "__main__":
    main()

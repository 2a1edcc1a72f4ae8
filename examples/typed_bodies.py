"""Bodies as objects: orders are sent and received as pydantic models. Runs in memory, in a second.

python examples/typed_bodies.py
"""

from pydantic import BaseModel, Field

from rocketshim import Message, MessageView, Producer, PushConsumer
from rocketshim.codecs import PydanticCodec
from rocketshim.errors import MessageError
from rocketshim.harness import Harness


class Order(BaseModel):
    """What the body of a message is."""

    id: int
    euros: float = Field(gt=0)


producer = Producer("localhost:9092", codec=PydanticCodec(Order))
consumer = PushConsumer("localhost:9092", group="payments")
charged: list[Order] = []


@consumer.listener("orders", body=Order)
def charge(message: MessageView[Order]) -> None:
    """Get an order; the first attempt fails, and the retry decodes it again."""
    if message.reconsume_times == 0:
        raise ConnectionError("the bank does not answer")
    charged.append(message.value)


def main() -> None:
    """Send one good order, one that is not an order, and one that somebody else sent without a codec."""
    with Harness() as harness:
        harness.connect(producer)
        harness.run(consumer)
        producer.send("orders", Order(id=7, euros=20), key="o-7")
        try:
            producer.send("orders", {"id": 8})
        except MessageError as error:
            print("not sent:", str(error).splitlines()[0])
        harness.send(Message("orders", b'{"id": 9, "euros": -1}'))
        harness.pass_time("10s")
        dead = [message.body for message in harness.dead("payments")]
    print("charged:", charged)
    print("dead:", dead)
    if (charged, dead) != ([Order(id=7, euros=20)], [b'{"id": 9, "euros": -1}']):
        raise SystemExit("not as it should be")


if __name__ == "__main__":
    main()

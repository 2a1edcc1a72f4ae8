"""Confluent's serializers as codecs, against a small schema registry that answers over HTTP."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer

from rocketshim import MessageView, Producer, PushConsumer
from rocketshim.codecs import Codec, SerializerCodec
from rocketshim.errors import MessageError
from rocketshim.harness import Harness
from rocketshim_topics.wire import decode

RECIPES = Path(__file__).parents[2] / "docs" / "recipes.md"
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
NEWER = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": "none"}]}  # type: ignore[misc]
JSON_ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "integer"}},
    "required": ["id"],
}
UNKNOWN_SCHEMA = b"\x00\x00\x00\x00\x63\x0e"  # in Confluent's framing: schema 99


class Registry(ThreadingHTTPServer):
    """A schema registry with the calls that serializers make: register a schema, get one by id or by GUID.

    Attributes:
        subjects: subject of each schema that was registered.
        is_away: whether every request is answered with 503.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.schemas: list[dict[str, Any]] = []
        self.subjects: list[str] = []
        self.is_away = False

    def client(self) -> SchemaRegistryClient:
        """Return a client that remembers nothing yet, as in a new process."""
        return SchemaRegistryClient({"url": f"http://127.0.0.1:{self.server_port}", "max.retries": 0})

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Return the status and the body of an answer."""
        if self.is_away:
            return 503, {"error_code": 50300, "message": "away"}
        match method, path.partition("?")[0].strip("/").split("/"):
            case "POST", ["subjects", subject, "versions"]:
                self.subjects.append(subject)
                if body not in self.schemas:
                    self.schemas.append(body)
                number = self.schemas.index(body) + 1
                return 200, {"id": number, "guid": guid(number), **body}
            case "GET", ["schemas", "ids", number] if 1 <= int(number) <= len(self.schemas):
                return 200, self.schemas[int(number) - 1]
            case "GET", ["schemas", "guids", asked]:
                return 200, next(each for at, each in enumerate(self.schemas, 1) if guid(at) == asked)
            case _:
                return 404, {"error_code": 40401, "message": "not found"}


class Request(BaseHTTPRequestHandler):
    """One request to the registry."""

    server: Registry

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        status, answer = self.server.answer(self.command, self.path, body)
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def guid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def harness() -> Iterator[Harness]:
    with Harness() as made:
        made.topic("orders")
        yield made


def avro(registry: Registry, *, reader: Any = None, is_id_in_header: bool = False) -> SerializerCodec:
    conf = {"schema.id.serializer": header_schema_id_serializer} if is_id_in_header else None
    return SerializerCodec(
        AvroSerializer(registry.client(), json.dumps(ORDER), conf=conf),
        AvroDeserializer(registry.client(), reader and json.dumps(reader)),
    )


def json_schema(registry: Registry) -> SerializerCodec:
    text = json.dumps(JSON_ORDER)
    return SerializerCodec(JSONSerializer(text, registry.client()), JSONDeserializer(text))


def connected(harness: Harness, codec: Codec[Any]) -> Producer:
    producer = Producer("localhost:9092", codec=codec)
    harness.connect(producer)
    return producer


def failing_once(codec: Codec[Any], seen: list[Any]) -> PushConsumer:
    consumer = PushConsumer("localhost:9092", group="payments", codec=codec)

    @consumer.listener("orders")
    def charge(message: MessageView[Any]) -> None:
        seen.append((message.value, message.reconsume_times))
        if message.reconsume_times == 0:
            raise ConnectionError("the bank does not answer")

    return consumer


def dead(harness: Harness) -> list[tuple[str | None, str | None, int | None]]:
    found = [decode(each.record.headers(), trusted=True) for each in harness.dead("payments")]
    return [(each.fail_class, each.fail_text, each.reconsume_times) for each in found]


def test_the_recipe_of_the_documentation(registry: Registry, harness: Harness) -> None:
    (program,) = re.findall(r"^## Avro.*?^```python\n(.*?)^```", RECIPES.read_text(), re.DOTALL | re.MULTILINE)
    seen: list[Any] = []
    scope: dict[str, Any] = {"charge": seen.append}
    address = f"http://127.0.0.1:{registry.server_port}"
    exec(compile(program.replace("http://localhost:8081", address), "recipe", "exec"), scope)  # noqa: S102 - our page
    harness.run(scope["consumer"])
    harness.connect(scope["producer"])
    scope["producer"].send("orders", {"id": 7})
    harness.pass_time(0)
    assert seen == [{"id": 7}]


@pytest.mark.parametrize("make", [avro, json_schema])
def test_a_value_arrives_and_arrives_again_on_its_retry_under_one_subject(
    make: Any, registry: Registry, harness: Harness
) -> None:
    seen: list[Any] = []
    harness.run(failing_once(make(registry), seen))
    connected(harness, make(registry)).send("orders", {"id": 7})
    harness.pass_time("1m")
    assert seen == [({"id": 7}, 0), ({"id": 7}, 1)]
    assert set(registry.subjects) == {"orders-value"}
    (record,) = harness.kafka.records("orders")
    assert record.value()[:5] == b"\x00\x00\x00\x00\x01"  # Confluent's framing: any other consumer can read it


def test_a_schema_id_in_a_header_survives_the_retry(registry: Registry, harness: Harness) -> None:
    seen: list[Any] = []
    order = {"id": 1 << 40}  # Confluent's deserializer refuses bodies below 6 bytes, wherever the id is
    harness.run(failing_once(avro(registry), seen))
    connected(harness, avro(registry, is_id_in_header=True)).send("orders", order)
    harness.pass_time("1m")
    assert seen == [(order, 0), (order, 1)]
    (record,) = harness.kafka.records("orders")
    assert record.value()[:1] != b"\x00"
    assert "__value_schema_id" in dict(record.headers())


def test_a_reader_with_a_newer_schema_gets_the_defaults_of_its_fields(registry: Registry, harness: Harness) -> None:
    seen: list[Any] = []
    harness.run(failing_once(avro(registry, reader=NEWER), seen))
    connected(harness, avro(registry)).send("orders", {"id": 7})
    harness.pass_time(0)
    assert seen == [({"id": 7, "note": "none"}, 0)]


@pytest.mark.parametrize(
    ("make", "value", "why"),
    [
        (avro, {"id": "seven"}, "an integer is required on field id"),
        (json_schema, {"id": "seven"}, "'seven' is not of"),
    ],
)
def test_a_value_that_does_not_fit_the_schema_is_not_sent(
    make: Any, value: Any, why: str, registry: Registry, harness: Harness
) -> None:
    with pytest.raises(MessageError, match=f"the codec refuses the body for 'orders'.*{why}"):
        connected(harness, make(registry)).send("orders", value)
    assert harness.kafka.records("orders") == []


@pytest.mark.parametrize("body", [b"plain text", b"", UNKNOWN_SCHEMA])
def test_a_body_that_no_schema_can_read_is_dead_at_its_first_attempt(
    body: bytes, registry: Registry, harness: Harness
) -> None:
    seen: list[Any] = []
    harness.run(failing_once(avro(registry), seen))
    connected(harness, Bytes()).send("orders", body)
    harness.pass_time(0)
    ((cause, text, attempts),) = dead(harness)
    assert (seen, cause, attempts) == ([], "UndecodableBody", 1)
    assert ("SchemaRegistryError" if body == UNKNOWN_SCHEMA else "SerializationError") in str(text)


def test_a_registry_that_does_not_answer_is_a_reason_to_try_again(registry: Registry, harness: Harness) -> None:
    seen: list[Any] = []
    producer = connected(harness, avro(registry))
    producer.send("orders", {"id": 7})
    registry.is_away = True
    harness.run(failing_once(avro(registry), seen))
    harness.pass_time("5s")
    assert (seen, dead(harness)) == ([], [])
    registry.is_away = False
    harness.pass_time("1m")
    assert seen == [({"id": 7}, 1)]


def test_a_send_raises_what_a_registry_that_does_not_answer_made_its_client_raise(
    registry: Registry, harness: Harness
) -> None:
    producer = connected(harness, avro(registry))
    registry.is_away = True
    with pytest.raises(SchemaRegistryError, match="503"):
        producer.send("orders", {"id": 7})
    assert harness.kafka.records("orders") == []


class Bytes:
    """A codec of bytes."""

    def encode(self, value: bytes, topic: str, headers: Any) -> bytes:
        del topic, headers
        return value

    def decode(self, body: bytes, topic: str, headers: Any) -> NoReturn:
        raise AssertionError((body, topic, headers))

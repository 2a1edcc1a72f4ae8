"""Create `dead_letters.json` again: dead letters of the real producers on a real broker, as stored in their topics.

    python -m shim.tests.admin.golden.make_golden [SpringLetters … ShareGroups]

The script fetches the producers by their Maven coordinates and compiles the programs beside this file. It runs each
program (or only those named; the others' records are kept) against its own broker, and stores the records of its
dead-letter and retry topics. It needs a JDK (javac) and takes some minutes. Dead letters of share groups are written by
the broker itself, so those come from a broker of that version.
"""

import base64
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jgo
from confluent_kafka import AcknowledgeType, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_local import any_broker
from test_support.share_groups import consume_shared, set_up_share_group
from tools.compat.brokers import old_broker

HERE = Path(__file__).parent
FINE = b'{"schema": null, "payload": null}'  # Connect's converter can read it
SPRING = "org.springframework.kafka:spring-kafka:3.3.10"
STREAMS = "org.apache.kafka:kafka-streams:4.3.0"
CONNECT = "+".join(f"org.apache.kafka:connect-{part}:4.3.0" for part in ("runtime", "file", "json"))
SMALLRYE = (
    "io.smallrye.reactive:smallrye-reactive-messaging-kafka:4.36.0"
    "+io.smallrye.config:smallrye-config:3.9.1"  # it is built with 3.18.1, which some registries lack
    "+org.eclipse.microprofile.config:microprofile-config-api:3.1"
    "+io.smallrye.reactive:mutiny-reactive-streams-operators:2.6.2"
    "+org.eclipse.microprofile.reactive-streams-operators:microprofile-reactive-streams-operators-api:3.0"
    "+org.jboss.weld.se:weld-se-core:5.1.3.Final"
)
SPRING_TOPICS = ("plain-dlt", "steps-retry-50", "steps-retry-100", "steps-dlt")
PROGRAMS = {
    "SpringLetters": (SPRING, ("plain", "steps"), SPRING_TOPICS),
    "StreamsLetters": (STREAMS, ("streams-in",), ("streams-dlq",)),
    "ConnectLetters": (CONNECT, ("connect-in",), ("connect-dlq",)),
    "SmallRyeLetters": (SMALLRYE, ("smallrye-in",), ("smallrye-dlq",)),
}
SHARE_GROUPS = "ShareGroups"
KAFKA = "4.4.0"


def main() -> None:
    wanted, place = sys.argv[1:] or [*PROGRAMS, SHARE_GROUPS], HERE / "dead_letters.json"
    letters = [each for each in json.loads(place.read_text(encoding="utf-8")) if each["program"] not in wanted]
    with tempfile.TemporaryDirectory() as folder:
        if programs := [name for name in wanted if name != SHARE_GROUPS]:
            letters += of_programs(programs, Path(folder))
        if SHARE_GROUPS in wanted:
            letters += of_share_groups(Path(folder) / "broker")
    place.write_text(json.dumps(letters, indent=1) + "\n", encoding="utf-8")


def of_programs(names: list[str], folder: Path) -> list[dict[str, Any]]:
    letters = []
    with any_broker(report=print) as broker:
        for name in names:
            coordinates, inputs, outputs = PROGRAMS[name]
            create(broker.bootstrap, [*inputs, *outputs])
            if name != "SpringLetters":
                send(broker.bootstrap, inputs[0])
            run(name, coordinates, broker.bootstrap, folder, outputs[-1])
            letters += [as_json(name, coordinates, each) for each in read(broker.bootstrap, outputs)]
    return letters


def of_share_groups(folder: Path) -> list[dict[str, Any]]:
    """One message that its group rejects, and one that it gives back twice; only of the second the record is copied."""

    def only_others(answer: AcknowledgeType) -> Callable[[Message], AcknowledgeType]:
        return lambda message: AcknowledgeType.ACCEPT if message.value() == FINE else answer

    topics = ("dlq.rejected", "dlq.copied")
    with old_broker(KAFKA, folder) as bootstrap:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        create(bootstrap, ["share-in"])
        send(bootstrap, "share-in")
        set_up_share_group(admin, "share-rejecters", topics[0])
        consume_shared(bootstrap, "share-rejecters", "share-in", only_others(AcknowledgeType.REJECT), deliveries=3)
        set_up_share_group(admin, "share-releasers", topics[1], copies_records=True)
        consume_shared(bootstrap, "share-releasers", "share-in", only_others(AcknowledgeType.RELEASE), deliveries=4)
        while len(letters := read(bootstrap, topics)) < len(topics):
            time.sleep(1)
    return [as_json(SHARE_GROUPS, f"org.apache.kafka:kafka_2.13:{KAFKA}", each) for each in letters]


def create(bootstrap: str, topics: list[str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # keep a reference: its futures end with it
    for future in admin.create_topics([NewTopic(each, 2) for each in topics]).values():
        future.result(30)


def send(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for body in (FINE, FINE, b"order 7"):
        producer.produce(topic, body, b"o-7", partition=1, headers=[("traceparent", b"00-1-2-01")])
    producer.flush(30)


def run(name: str, coordinates: str, bootstrap: str, folder: Path, output: str) -> None:
    """Run a program until its dead letter has arrived, for at most two minutes."""
    path = ":".join(str(jar) for jar in jgo.build(coordinates).all_jars)
    subprocess.run(["javac", "-cp", path, "-d", folder, HERE / f"{name}.java"], check=True)  # noqa: S603, S607
    opened = ("--add-opens", "java.base/java.lang=ALL-UNNAMED")  # Weld generates classes
    process = subprocess.Popen(["java", *opened, "-cp", f"{path}:{folder}", name, bootstrap, str(folder)])  # noqa: S603, S607
    deadline = time.monotonic() + 120
    while not read(bootstrap, (output,)):
        if process.poll() not in {None, 0} or time.monotonic() > deadline:
            raise SystemExit(f"{name} wrote nothing to {output}")
        time.sleep(1)
    process.terminate()
    process.wait(30)


def read(bootstrap: str, topics: tuple[str, ...]) -> list[Any]:
    with TopicReader(bootstrap) as reader:
        return list(reader.read(topics))


def as_json(program: str, coordinates: str, message: Any) -> dict[str, Any]:
    return {
        "made_by": coordinates,
        "program": program,
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": message.timestamp()[1],
        "key": encoded(message.key()),
        "value": encoded(message.value()),
        "headers": [[name, encoded(value)] for name, value in message.headers() or ()],
    }


def encoded(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


if __name__ == "__main__":
    main()

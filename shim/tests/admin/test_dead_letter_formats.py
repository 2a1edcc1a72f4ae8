"""Other projects' dead letters are decoded like our own.

`golden/dead_letters.json` has records of the real producers; `golden/make_golden.py` creates it. Some producers have no
Maven coordinate or need a framework around them: their dialects are tested by their documented format (`DOCUMENTED`).
"""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message as Record
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.admin.dead_letter_formats import DIALECTS, Decoder, Dialect, read_foreign
from rocketshim.admin.record_view import RecordView
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics import TopicNames
from rocketshim_topics.hops import redriven

GOLDEN = json.loads((Path(__file__).parent / "golden" / "dead_letters.json").read_text(encoding="utf-8"))
NAMES = TopicNames()
Headers = list[tuple[str, bytes | None]]


def unpacked(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def golden(topic: str) -> Record:
    (found,) = [each for each in GOLDEN if each["topic"] == topic]
    return Record(
        topic=topic, partition=found["partition"], offset=found["offset"], key=unpacked(found["key"]),
        value=unpacked(found["value"]), headers=[(name, unpacked(value)) for name, value in found["headers"]],
        timestamp=(1, found["timestamp_ms"]),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("topic", "dialect", "says"),
    [
        (
            "plain-dlt",
            "Spring Kafka dead-letter topic",
            (
                "plain",
                "spring-plain",
                "SpringLetters$NoStockException",
                "Listener method 'public void SpringLetters$Listeners.plain(java.lang.String)' threw exception",
                None,
            ),
        ),
        *(
            (
                topic,
                "Spring Kafka retry topics",
                (
                    "steps",
                    "spring-steps",
                    "SpringLetters$NoStockException",
                    "Listener failed; no stock for order 7",
                    failures,
                ),
            )
            for topic, failures in (("steps-retry-50", 1), ("steps-retry-100", 2), ("steps-dlt", 3))
        ),
        (
            "streams-dlq",
            "Kafka Streams",
            ("streams-in", None, "java.lang.IllegalArgumentException", "no stock for order 7", None),
        ),
        (
            "connect-dlq",
            "Kafka Connect",
            (
                "connect-in",
                "file-sink",
                "org.apache.kafka.connect.errors.DataException",
                "Converting byte[] to Kafka Connect data failed due to serialization error: ",
                None,
            ),
        ),
        (
            "smallrye-dlq",
            "SmallRye",
            (
                "smallrye-in",
                None,
                "io.smallrye.reactive.messaging.providers.ProcessingException",
                "SRMSG00103: Exception thrown when calling the method SmallRyeLetters$Shop#sell",
                None,
            ),
        ),
    ],
)
def test_dead_letters_of_the_real_producers_are_decoded(
    topic: str, dialect: str, says: tuple[str, str | None, str, str, int | None]
) -> None:
    source, group, cause, text, failures = says
    record = golden(topic)
    letter = Decoder(NAMES, topic).open(record)
    envelope = letter.envelope
    assert (letter.dialect, letter.malformed) == (dialect, None)
    assert (envelope.retry_topic, envelope.origin_message_id, envelope.uniq_key) == (
        source, f"{source}/1/2", f"{source}/1/2",
    )  # fmt: skip
    assert (envelope.consumer_group, envelope.fail_class) == (group, cause)
    assert (envelope.fail_text or "").startswith(text)
    assert envelope.reconsume_times == failures
    assert envelope.user == (("traceparent", b"00-1-2-01"),)
    out = redriven(record, NAMES, replay_id="r", to_source=True, envelope=envelope)
    assert (out.topic, out.key, out.value) == (source, b"o-7", b"order 7")
    names = [name for name, _ in out.headers]
    assert names == ["UNIQ_KEY", "BORN_TIMESTAMP", "HOP_ID", "REPLAY_ID", "REPLAY_COUNT", "traceparent"]


SHARE_GROUPS = [
    ("dlq.rejected", "share-rejecters", "Offset rejected by client.", 1, None),
    ("dlq.copied", "share-releasers", "Offset delivery count exceeded the threshold.", 2, b"order 7"),
]


@pytest.mark.parametrize(("topic", "group", "text", "deliveries", "body"), SHARE_GROUPS)
def test_dead_letters_that_kafka_writes_for_share_groups_are_decoded_and_completed(
    topic: str, group: str, text: str, deliveries: int, body: bytes | None
) -> None:
    record = golden(topic)
    source = Record(
        topic="share-in", partition=1, offset=2, key=b"o-7", value=b"order 7", headers=[("traceparent", b"00-1-2-01")],
        timestamp=(1, record.timestamp()[1] - 1),
    )  # fmt: skip
    letter = Decoder(NAMES, topic, fetch=lambda *at: {("share-in", 1, 2): source}[at]).open(record)
    envelope = letter.envelope
    assert (letter.dialect, letter.malformed) == ("Kafka share group", None)
    assert (envelope.consumer_group, envelope.fail_text, envelope.reconsume_times) == (group, text, deliveries)
    assert (envelope.retry_topic, envelope.origin_message_id, envelope.fail_class) == ("share-in", "share-in/1/2", None)
    out = redriven(letter.record, NAMES, replay_id="r", to_source=True, envelope=envelope)
    assert (out.topic, out.key, out.value) == ("share-in", b"o-7", b"order 7")
    assert dict(out.headers)["HOP_ID"] == f"{topic}/1/0".encode()
    assert out.headers[-1] == ("traceparent", b"00-1-2-01")

    gone = Decoder(NAMES, topic, fetch=lambda *_: None).open(record)
    assert (gone.record.value(), gone.malformed) == (body, "source-gone" if body is None else None)


def test_there_is_a_golden_record_of_each_topic() -> None:
    assert {each["topic"] for each in GOLDEN} == {
        "plain-dlt", "steps-dlt", "steps-retry-50", "steps-retry-100", "streams-dlq", "connect-dlq",
        "smallrye-dlq", "dlq.rejected", "dlq.copied",
    }  # fmt: skip


DOCUMENTED: list[tuple[str, Headers, dict[str, Any]]] = [
    (
        "Spring Kafka retry topics",  # before 2.8.?: attempts in one byte
        [
            ("kafka_original-topic", b"orders"),
            ("kafka_original-partition", (3).to_bytes(4, "big")),
            ("kafka_original-offset", (2**40).to_bytes(8, "big")),
            ("retry_topic-attempts", b"\x05"),
        ],
        {"retry_topic": "orders", "origin_message_id": f"orders/3/{2**40}", "reconsume_times": 4},
    ),
    (
        "SmallRye",
        [
            ("dead-letter-exception-class-name", b"java.lang.IllegalStateException"),
            ("dead-letter-reason", b"closed"),
            ("dead-letter-topic", b"orders"),
            ("dead-letter-partition", b"3"),
            ("dead-letter-offset", b"41"),
            ("mine", b"1"),
            ("dead-letter-reason", b"of an earlier death, whose headers the record came with"),
        ],
        {"fail_class": "java.lang.IllegalStateException", "fail_text": "closed", "user": (("mine", b"1"),)},
    ),
    (
        "x-original",  # Spring Cloud Stream: binary
        [
            ("x-original-topic", b"orders"),
            ("x-original-partition", (3).to_bytes(4, "big")),
            ("x-original-offset", (41).to_bytes(8, "big")),
            ("x-exception-fqcn", b"E"),
            ("x-exception-message", b"m"),
        ],
        {"origin_message_id": "orders/3/41", "fail_class": "E", "fail_text": "m"},
    ),
    (
        "x-original",  # many others: text
        [
            ("x-original-topic", b"orders"),
            ("x-original-partition", b"3"),
            ("x-original-offset", b"41"),
            ("x-error-class", b"E"),
            ("x-error-message", b"m"),
            ("x-attempts", b"4"),
            ("x-failed-at", b"2026-11-21T20:00:00Z"),
        ],
        {"origin_message_id": "orders/3/41", "reconsume_times": 4, "fail_at_ms": 1_795_291_200_000, "user": ()},
    ),
    (
        "django-kafka",
        [
            ("RETRY_MESSAGE", b"x"),
            ("RETRY_TIMESTAMP", b"1795291200.5"),
            ("DEAD_LETTER_MESSAGE_TOPIC", b"orders"),
            ("DEAD_LETTER_MESSAGE_PARTITION", b"3"),
            ("DEAD_LETTER_MESSAGE_OFFSET", b"41"),
            ("DEAD_LETTER_SUMMARY", b"no"),
            ("DEAD_LETTER_DETAIL", b"Traceback"),
        ],
        {"origin_message_id": "orders/3/41", "fail_text": "no", "user": ()},
    ),
    (
        "Karafka",
        [
            ("source_topic", b"orders"),
            ("source_partition", b"3"),
            ("source_offset", b"41"),
            ("source_consumer_group", b"g"),
            ("source_attempts", b"2"),
            ("source_of_truth", b"the user's own"),
        ],
        {"consumer_group": "g", "reconsume_times": 2, "user": (("source_of_truth", b"the user's own"),)},
    ),
]


@pytest.mark.parametrize(("dialect", "headers", "expected"), DOCUMENTED)
def test_dead_letters_in_a_documented_format_are_decoded(
    dialect: str, headers: Headers, expected: dict[str, Any]
) -> None:
    found = read_foreign(headers)
    assert found is not None
    assert found.dialect.name == dialect
    assert {name: getattr(found.envelope, name) for name in expected} == expected


def test_every_dialect_is_tested() -> None:
    by_golden = {
        "Spring Kafka dead-letter topic", "Spring Kafka retry topics", "Kafka Streams", "Kafka Connect", "SmallRye",
        "Kafka share group",
    }  # fmt: skip
    assert by_golden | {name for name, _, _ in DOCUMENTED} == {dialect.name for dialect in DIALECTS}


def test_our_own_headers_in_another_projects_dead_letter_keep_their_meaning() -> None:
    found = read_foreign([("dead-letter-topic", b"orders"), ("UNIQ_KEY", b"m1"), ("TAGS", b"t"), ("FAIL_CLASS", b"x")])
    assert found is not None
    assert (found.envelope.uniq_key, found.envelope.tags, found.envelope.fail_class) == ("m1", "t", None)
    assert found.envelope.user == (("USER.FAIL_CLASS", b"x"),)


@pytest.mark.parametrize(
    "headers",
    [
        [("dead-letter-topic", b"orders"), ("dead-letter-partition", b"-1"), ("dead-letter-offset", b"1")],
        [("dead-letter-topic", b"orders"), ("dead-letter-partition", b"1"), ("dead-letter-offset", b"9" * 19)],
        [("dead-letter-topic", b"orders"), ("dead-letter-partition", None), ("dead-letter-offset", b"1")],
        [("kafka_dlt-original-topic", b"orders"), ("kafka_dlt-original-partition", b"\xff" * 4)],
        [("kafka_dlt-original-topic", b"orders"), ("kafka_dlt-original-partition", b"")],
    ],
)
def test_an_invalid_number_is_ignored(headers: Headers) -> None:
    found = read_foreign(headers)
    assert found is not None
    assert (found.source, found.envelope.origin_message_id, found.envelope.retry_topic) == (None, None, "orders")


def names_of(dialect: Dialect) -> tuple[str, ...]:
    numbers = (*dialect.partition, *dialect.offset, *dialect.attempts, *dialect.failed_at)
    return (*dialect.topic, *dialect.group, *dialect.cause, *dialect.text, *numbers)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted({name for each in DIALECTS for name in names_of(each)})),
            st.none() | st.binary(max_size=20) | st.integers(-9, 2**65).map(lambda n: b"%d" % n),
        ),
        max_size=8,
    )
)
def test_decoding_fails_for_no_headers(headers: Headers) -> None:
    entry = RecordView.opened(Decoder(NAMES, "orders-dlt").open(Record(topic="orders-dlt", headers=headers, value=b"")))
    json.dumps(entry.as_json())
    assert entry.id
    assert isinstance(entry.properties, tuple)


@pytest.mark.parametrize("text", [b"-5.0", b"nan", b"1e400", b"9" * 19, b"9" * 5_000, b"2026-13-01", b"x", b"-"])
def test_an_invalid_time_is_ignored(text: bytes) -> None:
    found = read_foreign([("x-original-topic", b"orders"), ("x-failed-at", text)])
    assert found is not None
    assert found.envelope.fail_at_ms is None


def test_a_failure_s_text_is_cut_so_that_the_headers_stay_small() -> None:
    found = read_foreign([("dead-letter-topic", b"orders"), ("dead-letter-reason", "é".encode() * 9_000)])
    assert found is not None
    assert len((found.envelope.fail_text or "").encode()) <= 1_024


def test_a_record_of_no_dialect_is_shown_as_unknown() -> None:
    letter = Decoder(NAMES, "orders-dlt").open(Record(topic="orders-dlt", headers=[("TAGS", b"t")], value=b"v"))
    assert (letter.dialect, letter.envelope.tags, letter.malformed) == ("unknown", "t", None)


SHARED: Headers = [("__dlq.errors.topic", b"orders"), ("__dlq.errors.partition", b"3"), ("__dlq.errors.offset", b"41")]


def test_a_share_groups_dead_letter_keeps_the_identity_of_its_source() -> None:
    source = Record(
        topic="orders", partition=3, offset=41, key=b"k", value=b"", headers=[("UNIQ_KEY", b"m1"), ("mine", None)],
        timestamp=(1, 7),
    )  # fmt: skip
    message = Record(topic="dlq.payers", partition=0, offset=5, headers=SHARED, timestamp=(1, 9))
    letter = Decoder(NAMES, "dlq.payers", fetch=lambda *_: source).open(message)
    out = redriven(letter.record, NAMES, replay_id="r", to_source=True, envelope=letter.envelope)
    assert (out.key, out.value, dict(out.headers)["UNIQ_KEY"], out.headers[-1]) == (b"k", b"", b"m1", ("mine", None))


@pytest.mark.parametrize(
    ("topic", "partition"),
    [
        (b"deleted", b"0"),
        (b"orders", b"9999999999"),
        (b"not/legal\x00", b"0"),
        (b"", b"0"),
        (b"<UNKNOWN>", b"0"),  # Kafka's word for a topic that was deleted
    ],
)
def test_a_share_groups_dead_letter_whose_source_cannot_exist_is_source_gone(topic: bytes, partition: bytes) -> None:
    kafka = InMemoryKafka(VirtualClock())
    kafka.create_topic("orders", 1)
    headers: Headers = [
        ("__dlq.errors.topic", topic), ("__dlq.errors.partition", partition), ("__dlq.errors.offset", b"0"),
    ]  # fmt: skip
    message = Record(topic="dlq.payers", partition=0, offset=5, value=None, headers=headers, timestamp=(1, 9))
    with TopicReader("memory:1", clients=kafka.clients()) as sources:
        assert Decoder(NAMES, "dlq.payers", fetch=sources.fetch).open(message).malformed == "source-gone"

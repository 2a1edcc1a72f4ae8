"""The content of an offset file: decoding returns what was encoded, and an incomplete file is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.consumer.reader.local_offsets import OffsetFile, decode, encode
from rocketshim_topics.coordinates import TopicPartitionKey

TEXT = st.text(max_size=20)
POSITIONS = st.dictionaries(
    st.builds(TopicPartitionKey, TEXT, st.integers(0, 5)),
    st.tuples(st.integers(0, 2**63 - 1), TEXT),
    max_size=8,
)


@st.composite
def contents(draw: st.DrawFn) -> OffsetFile:
    positions = draw(POSITIONS)
    ids = {topic: draw(st.text(min_size=1, max_size=8)) for topic, _ in positions if draw(st.booleans())}
    return OffsetFile(draw(TEXT), ids, positions)


@given(contents())
def test_decode_returns_what_was_encoded(content: OffsetFile) -> None:
    assert decode(encode(content)) == content


@given(contents(), st.data())
def test_a_truncated_file_is_refused(content: OffsetFile, data: st.DataObject) -> None:
    whole = encode(content)
    with pytest.raises(ValueError, match="checksum"):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(contents(), st.data())
def test_a_file_with_one_changed_bit_is_refused(content: OffsetFile, data: st.DataObject) -> None:
    whole = bytearray(encode(content))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError, match="checksum"):
        decode(bytes(whole))


@pytest.mark.parametrize("data", [b"", b"\n", b"{}\n", b"\x00" * 100, b"\xff\xfe\n"])
def test_other_content_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="checksum"):
        decode(data)


@pytest.mark.parametrize("text", ['{"v": 2}', "[]", '{"v": 1}', '{"v": 1, "cluster": "", "topics": {"t": {}}}', "no"])
def test_a_document_of_another_form_is_refused_although_its_checksum_matches(text: str) -> None:
    from hashlib import sha256

    with pytest.raises(ValueError):  # noqa: PT011 - each has its own text
        decode(f"{text}\nsha256 {sha256(text.encode()).hexdigest()}\n".encode())


def test_moving_some_positions_keeps_all_others() -> None:
    content = OffsetFile("c", {"t": "i"}, {TopicPartitionKey("t", 0): (1, ""), TopicPartitionKey("u", 0): (5, "")})
    moved = content.moved({TopicPartitionKey("t", 0): (2, ""), TopicPartitionKey("t", 1): (3, "")})
    assert moved.positions == {
        TopicPartitionKey("t", 0): (2, ""),
        TopicPartitionKey("t", 1): (3, ""),
        TopicPartitionKey("u", 0): (5, ""),
    }
    assert content.positions[TopicPartitionKey("t", 0)] == (1, "")


def test_a_topic_that_was_created_again_is_read_from_its_beginning() -> None:
    content = OffsetFile("c", {"t": "old"}, {TopicPartitionKey("t", 0): (9, "m"), TopicPartitionKey("u", 0): (5, "")})
    assert content.identified("t", "old") is content
    assert content.identified("t", "") is content
    identified = content.identified("t", "new")
    assert identified.positions == {TopicPartitionKey("t", 0): (0, "m"), TopicPartitionKey("u", 0): (5, "")}
    assert identified.topic_ids == {"t": "new"}


def test_a_previously_unknown_id_changes_no_position() -> None:
    content = OffsetFile("c", {}, {TopicPartitionKey("t", 0): (9, "")})
    assert content.identified("t", "new").positions == {TopicPartitionKey("t", 0): (9, "")}

"""The partition of a key, as the Java client and `partitioner=murmur2_random` of librdkafka choose it.

The worker uses it to send a record to the partition of its key, senders use it to choose a lane.
"""

from typing import Final

from rocketshim_topics.errors import ConfigError

__all__ = ["TIMER_PARTITIONS", "lane_for", "murmur2", "partition_for", "timer_partition"]

TIMER_PARTITIONS: Final = 8
"""The partitions of the timer log that names use. It never changes: a name would move, and its cancel would miss it."""

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 of Kafka's default partitioner, as an unsigned number.

    Source: `org.apache.kafka.common.utils.Utils#murmur2` (which returns the same bits as a signed int).
    """
    length = len(data)
    hashed = _SEED ^ length
    whole = length & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        hashed = hashed * _MULTIPLIER & _MASK ^ word
    if whole != length:
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    hashed = (hashed ^ hashed >> 13) * _MULTIPLIER & _MASK
    return hashed ^ hashed >> 15


def partition_for(key: bytes, count: int) -> int:
    """Return the partition of a key among `count` (at least 1) partitions: `toPositive(murmur2(key)) % count`.

    Raises:
        ConfigError: `count` is not positive.
    """
    if count < 1:
        raise ConfigError(f"no partition can be chosen among {count}")
    return (murmur2(key) & 0x7FFFFFFF) % count


def lane_for(key: bytes, lanes: int) -> int:
    """Return the lane of a keyed record among `lanes` (at least 1) lanes. Records without a key go round robin.

    Raises:
        ConfigError: `lanes` is not positive.
    """
    return 0 if lanes == 1 else partition_for(key, lanes)


def timer_partition(topic: str, name: str) -> int:
    """Return the partition of the timer log for a name of a target topic: that of the key `topic/name`."""
    return partition_for(f"{topic}/{name}".encode("utf-8", "surrogateescape"), TIMER_PARTITIONS)

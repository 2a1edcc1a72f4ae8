"""What a run consists of: topics, groups and settings, the same for the harness and for every process."""

from typing import Final

from proof.lines import Group
from rocketshim_topics.names import TopicNames

__all__ = ["CONCURRENT", "GROUPS", "LEVELS", "NAMES", "ORDERLY", "SESSION_S", "TOPICS"]

NAMES: Final = TopicNames("proof")
LEVELS: Final = "1s 2s 3s 4s 5s"
TOPICS: Final = {"orders": 4, "bills": 3}
SESSION_S: Final = 6.0
LEASE_MS: Final = 6_000

CONCURRENT: Final = Group(name="pay", mode="concurrent", topics=("orders",), limit=3)
ORDERLY: Final = Group(name="bill", mode="orderly", topics=("bills",), limit=2)
GROUPS: Final = (CONCURRENT, ORDERLY)


def fails(number: int, attempt: int) -> bool:
    """Whether a listener fails with a message: one in seven once or twice, one in fifty always."""
    return number % 50 == 49 or (number % 7 == 3 and attempt <= number % 2)

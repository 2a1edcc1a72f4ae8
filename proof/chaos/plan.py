"""What a run consists of: lanes, topics, groups and settings, the same for the harness and for every process.

A *lane* is a namespace with workers of one delivery mode, its topics and groups, and a history of its own. Both lanes
share the brokers, and so what is done to these.
"""

from dataclasses import dataclass, replace
from typing import Final

from proof.lines import Group
from rocketshim_topics.names import TopicNames

__all__ = [
    "FLEETING",
    "LANES",
    "LEASE_MS",
    "LEVELS",
    "MODES",
    "SESSION_S",
    "TRANSACTION_MS",
    "Lane",
    "Variant",
    "fails",
]

LEVELS: Final = "1s 2s 3s 4s 5s"
SESSION_S: Final = 6.0
LEASE_MS: Final = 6_000
TRANSACTION_MS: Final = 10_000
MODES: Final = {"consumer": "concurrent", "orderly": "orderly", "broadcast": "broadcasting", "dropin": "drop-in"}
"""How the members of a role consume."""
FLEETING: Final = "fleeting"
"""A topic that is deleted and emptied while it is sent to and consumed from."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One half of a run.

    Attributes:
        name: its namespace, and the name of its folder.
        exactly_once: the delivery mode of its workers.
        topics: partitions by topic.
        shares: how often each topic is sent to, relative to the others.
        delayed: topics some messages of which have a delay.
        groups: its consumer groups. A member of the former version has no listener for the last of several topics.
        members: how many processes of each role run.
    """

    name: str
    exactly_once: bool
    topics: dict[str, int]
    shares: dict[str, int]
    delayed: tuple[str, ...]
    groups: tuple[Group, ...]
    members: dict[str, int]

    @property
    def names(self) -> TopicNames:
        """Its topics."""
        return TopicNames(self.name)

    @property
    def allow(self) -> tuple[str, ...]:
        """The topics that its workers may write to."""
        return self.delayed

    @property
    def fleeting(self) -> tuple[str, ...]:
        """Those of its topics that are deleted and emptied."""
        return tuple(topic for topic in self.topics if topic == FLEETING)

    def group_of(self, role: str) -> Group:
        """The group whose members are the processes of a role."""
        return self.group(MODES[role])

    def group(self, mode: str) -> Group:
        """Its group of this mode."""
        return next(group for group in self.groups if group.mode == mode)


LANES: Final = (
    Lane(
        name="least", exactly_once=False,
        topics={"orders": 4, "bills": 3, "returns": 2, FLEETING: 1},
        shares={"orders": 66, "bills": 24, "returns": 8, FLEETING: 2},
        delayed=("orders", FLEETING),
        groups=(
            Group(name="pay", mode="concurrent", topics=("orders", "returns"), limit=3),
            Group(name="bill", mode="orderly", topics=("bills", "returns"), limit=2),
        ),
        members={"worker": 2, "consumer": 2, "orderly": 2, "sender": 1, "shop": 1},
    ),
    Lane(
        name="once", exactly_once=True,
        topics={"claims": 4, "parcels": 3, "notices": 2, "news": 2},
        shares={"claims": 76, "parcels": 12, "notices": 8, "news": 4},
        delayed=("claims", "parcels"),
        groups=(
            Group(name="refund", mode="concurrent", topics=("claims", "notices"), limit=3),
            Group(name="ship", mode="drop-in", topics=("parcels", "notices"), limit=3),
            Group(name="tell", mode="broadcasting", topics=("news",)),
        ),
        members={"worker": 2, "consumer": 2, "dropin": 2, "broadcast": 2, "sender": 1, "shop": 1},
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variant:
    """In what ways the groups of a run consume.

    Attributes:
        kip_848: the lane in whose groups the brokers assign the partitions; in the other one the members do.
        by_key: whether the orderly group keeps the order of each key; otherwise of each queue.
    """

    kip_848: Lane
    by_key: bool

    @classmethod
    def of(cls, seed: int) -> "Variant":
        """Choose: each of four seeds in a row has another one."""
        return cls(kip_848=LANES[seed % 2], by_key=seed // 2 % 2 == 1)

    def groups(self, lane: Lane) -> tuple[Group, ...]:
        """The groups of a lane, with the order that the orderly one keeps."""
        if not self.by_key:
            return lane.groups
        return tuple(replace(each, mode="orderly-by-key") if each.mode == "orderly" else each for each in lane.groups)


def fails(number: int, attempt: int) -> bool:
    """Whether a listener fails with a message: one in 25 once or twice, one in a hundred always."""
    return number % 100 == 99 or (number % 25 == 3 and attempt <= number % 2)

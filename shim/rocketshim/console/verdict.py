"""What became of the dead letters that a plan has sent: by the records in Kafka, so that any process can tell.

* Sent or discarded: the marks of this plan in the redrive log.
* Dead again: records of the dead-letter topic that carry this plan's `REPLAY_ID`. They are younger than the plan.
* Read: the group's committed positions in the topics that the plan sends to, against the ends of these topics.
"""

from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from rocketshim.admin.redrive import read_log
from rocketshim.console.context import Console
from rocketshim.console.reading import ReadRecords, read_newest
from rocketshim.errors import RocketshimError
from rocketshim.kafka.client_config import merge
from rocketshim.kafka.clients import confluent_clients
from rocketshim.kafka.positions import committed_positions
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics.redrive_plan import RedrivePlan
from rocketshim_topics.wire import REPLAY_ID, USER_PREFIX, headers_shown

__all__ = ["Behind", "Verdict", "verdict"]

_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Behind:
    """How far a group is in a topic that a plan sends to.

    Attributes:
        group: the group.
        topic: physical name.
        offsets: offsets that it has not read; None: it has committed nothing, or its positions cannot be read.
    """

    group: str
    topic: str
    offsets: int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a plan's dead letters.

    Attributes:
        done: number that this plan has sent or discarded.
        elsewhere: number that another plan has sent or discarded.
        left: number of the others.
        dead_again: number of records that are dead letters again after this plan sent them.
        read: how the search for them ended; None: nothing was searched (discarded or parked records, or nothing done).
        behind: the groups that get what was sent.
    """

    done: int
    elsewhere: int
    left: int
    dead_again: int
    read: ReadRecords | None
    behind: list[Behind]


def verdict(console: Console, plan: RedrivePlan) -> Verdict:
    """Read what became of a plan's dead letters."""
    with console.reader() as reader:
        log = read_log(reader, console.names.redrive_log)
        done = sum(log.is_done(plan.id, plan.source, letter.partition, letter.offset) for letter in plan.letters)
        settled = 0
        for letter in plan.letters:
            settled += log.settled(plan.source, letter.partition, letter.offset, letter.digest) is not None
        read, behind = None, []
        if done and plan.rules.action == "redrive" and plan.source != console.names.parked:
            read = _dead_again(console, reader, plan)
            behind = _behind(console, reader, plan)
        again = 0 if read is None else len({_replay_id(record) for record in read.records})
        is_repeated = plan.rules.again
        elsewhere = 0 if is_repeated else settled - done
        return Verdict(done, elsewhere, len(plan.letters) - done - elsewhere, again, read, behind)


def _dead_again(console: Console, reader: TopicReader, plan: RedrivePlan) -> ReadRecords:
    prefix = f"{plan.id}.".encode()
    return read_newest(
        console,
        reader,
        [plan.source],
        lambda record: _replay_id(record).startswith(prefix),
        results=len(plan.letters),
        since_ms=plan.created_ms,
    )


def _replay_id(record: Any) -> bytes:
    headers = dict(headers_shown(record))
    return headers.get(REPLAY_ID) or headers.get(USER_PREFIX + REPLAY_ID) or b""


def _behind(console: Console, reader: TopicReader, plan: RedrivePlan) -> list[Behind]:
    """Return the groups whose retry topics get what was sent; a source topic may have any number of groups."""
    prefix = console.names.retry("g").removesuffix("g")
    found = []
    for topic in sorted({letter.target for letter in plan.letters if letter.target.startswith(prefix)}):
        group = plan.rules.group or topic.removeprefix(prefix)
        found.append(Behind(group, topic, _offsets_behind(console, reader, group, topic)))
    return found


def _offsets_behind(console: Console, reader: TopicReader, group: str, topic: str) -> int | None:
    config = merge(
        console.settings.client,
        defaults={"client.id": "rocketshim-read"},
        required={"bootstrap.servers": console.settings.bootstrap, "group.id": group, "enable.auto.commit": False},
    )
    consumer = (console.clients or confluent_clients()).consumer(config)
    try:
        wanted = [TopicPartition(topic, number) for number in range(reader.topics().get(topic, 0))]
        positions = committed_positions(consumer, wanted, _TIMEOUT_S)
        if all(item.offset < 0 for item in positions):
            return None
        behind = 0
        for item in positions:
            low, high = reader.bounds(topic, item.partition)
            behind += max(0, high - max(low, item.offset))
    except (KafkaException, RocketshimError):  # its rights may not suffice: the rest of the verdict is still right
        return None
    else:
        return behind
    finally:
        consumer.close()

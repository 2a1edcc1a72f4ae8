"""Faults of what both lanes share: brokers, their links, disks and clocks, rights, topics."""

import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the stubs lack these names
    AclOperation,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from proof.chaos.fault import ClusterFault
from proof.chaos.plan import FLEETING, LANES
from proof.chaos.proxy import How, is_of_brokers, is_of_clients
from proof.chaos.stage import BROKERS, SMALL_DISK, Stage
from rocketshim.errors import LocalBrokerError

__all__ = ["CLOCK_FAULTS", "CLUSTER_FAULTS"]

Do = Callable[[Stage, random.Random], str]
_ANSWER_S: Final = 30.0
_IN_SYNC_S: Final = 90.0
_LINK_S: Final = 4.0
_CLUSTER: Final = "cluster"
_STEP_MS: Final = 20_000
_MOST_PARTITIONS: Final = 8


def _in_sync(stage: Stage) -> None:
    """Wait until the next fault of a broker leaves a majority of replicas."""
    with suppress(LocalBrokerError, KafkaException):  # the brokers are too busy to answer
        stage.cluster.await_in_sync(_IN_SYNC_S)


def _kill_broker(stage: Stage, dice: random.Random) -> str:
    node = dice.randint(1, BROKERS)
    stage.cluster.kill(node)
    time.sleep(dice.random() * 3)
    stage.cluster.restart(node)
    _in_sync(stage)
    return f"broker-{node}"


def _restart_broker(stage: Stage, dice: random.Random) -> str:
    """A leader change in order: the broker hands its partitions over and ends."""
    node = dice.randint(1, BROKERS)
    stage.cluster.restart(node)
    _in_sync(stage)
    return f"broker-{node}"


def _pause_broker(stage: Stage, dice: random.Random) -> str:
    """A broker stands still for longer than its session: the others take over, and then it wakes."""
    node = dice.randint(1, BROKERS)
    stage.cluster.pause(node)
    time.sleep(8.0)
    stage.cluster.resume(node)
    _in_sync(stage)
    return f"broker-{node}"


def _slow_broker(stage: Stage, dice: random.Random) -> str:
    """A broker stands still for most of each quarter of a second."""
    node = dice.randint(1, BROKERS)
    for _ in range(24):
        stage.cluster.pause(node)
        time.sleep(0.18)
        stage.cluster.resume(node)
        time.sleep(0.07)
    return f"broker-{node}"


def _links(how: How, *, of_brokers: bool = False) -> Do:
    """The links of all clients to one broker, or of one broker from the others."""
    hits = is_of_brokers if of_brokers else is_of_clients

    def disturb(stage: Stage, dice: random.Random) -> str:
        node = dice.randint(1, BROKERS)
        with stage.proxies.fault(how, lambda link: link.broker == node and hits(link)):
            time.sleep(_LINK_S + dice.random() * 4)
        _in_sync(stage)
        return f"broker-{node}"

    return disturb


def _fill_disk(stage: Stage, dice: random.Random) -> str:
    """A broker ends when it cannot write. Then there is room again, and it is started."""
    del dice
    if stage.disk is None:
        return "nobody"
    filler = stage.disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 1_048_576):
            pass
    end = time.monotonic() + 20
    while SMALL_DISK not in stage.cluster.ended and time.monotonic() < end:
        time.sleep(0.2)
    filler.unlink()
    stage.cluster.restart(SMALL_DISK)
    _in_sync(stage)
    return f"broker-{SMALL_DISK}"


def _deny_write(stage: Stage, dice: random.Random) -> str:
    lane = dice.choice(LANES)
    topic = dice.choice([lane.names.schedule, *lane.allow])
    with stage.denied(ResourceType.TOPIC, topic, AclOperation.WRITE):
        time.sleep(4.0)
    return _CLUSTER


def _deny_group(stage: Stage, dice: random.Random) -> str:
    lane = dice.choice(LANES)
    groups = [group.name for group in lane.groups if group.mode != "broadcasting"]
    group = dice.choice([*groups, lane.names.worker_group])
    with stage.denied(ResourceType.GROUP, group, AclOperation.READ):
        time.sleep(4.0)
    return _CLUSTER


def _delete_topic(stage: Stage, dice: random.Random) -> str:
    """A topic is deleted while it is sent to and consumed from, and created again."""
    try:
        stage.admin.delete_topics([FLEETING])[FLEETING].result(_ANSWER_S)
    except KafkaException as error:  # it was deleted, but the answer was lost, and the client asked again
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
    time.sleep(1 + dice.random() * 3)
    stamped = {"message.timestamp.type": "LogAppendTime"}
    end = time.monotonic() + _ANSWER_S
    while True:
        try:
            stage.admin.create_topics([NewTopic(FLEETING, 1, config=stamped)])[FLEETING].result(_ANSWER_S)
        except KafkaException:  # the old one is still being deleted
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
        else:
            return _CLUSTER


def _expire_topic(stage: Stage, dice: random.Random) -> str:
    """Every record of a topic is removed, as by its retention."""
    del dice
    end = time.monotonic() + _ANSWER_S
    while True:
        (answer,) = stage.admin.delete_records([TopicPartition(FLEETING, 0, OFFSET_END)]).values()
        try:
            answer.result(_ANSWER_S)
        except KafkaException:  # its leader has just changed
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
            stage.admin.list_topics(FLEETING, timeout=_ANSWER_S)  # otherwise the client asks the former leader again
        else:
            return _CLUSTER


def _grow_topic(stage: Stage, dice: random.Random) -> str:
    """A topic gets another partition."""
    lane = dice.choice(LANES)
    topic = lane.group("concurrent").topics[0]  # no orderly group reads it: a key would change its queue
    count = len(stage.admin.list_topics(topic, timeout=_ANSWER_S).topics[topic].partitions)
    if count < _MOST_PARTITIONS:
        stage.admin.create_partitions([NewPartitions(topic, count + 1)])[topic].result(_ANSWER_S)
    return _CLUSTER


def _set_clocks(sign: int) -> Do:
    """The clocks of all brokers are set, and set right again: each is set forward once, so none is `clock-back`."""

    def step(stage: Stage, dice: random.Random) -> str:
        del dice
        if stage.clocks is not None:
            stage.clocks.set(sign * _STEP_MS)
            time.sleep(5.0)
            stage.clocks.set(0)
        return _CLUSTER

    return step


CLUSTER_FAULTS: Final = (
    ClusterFault("broker-kill", 3, _kill_broker),
    ClusterFault("broker-restart", 2, _restart_broker),
    ClusterFault("broker-pause", 2, _pause_broker),
    ClusterFault("broker-slow", 2, _slow_broker),
    ClusterFault("broker-disk-full", 1, _fill_disk),
    ClusterFault("broker-cut", 1, _links("cut")),
    ClusterFault("broker-held", 1, _links("held")),
    ClusterFault("broker-replies-held", 2, _links("replies-held")),
    ClusterFault("broker-requests-held", 1, _links("requests-held")),
    ClusterFault("broker-slow-links", 1, _links("slow")),
    ClusterFault("broker-replies-late", 1, _links("replies-late")),
    ClusterFault("broker-isolated", 1, _links("cut", of_brokers=True)),
    ClusterFault("right-to-write-denied", 2, _deny_write),
    ClusterFault("right-to-group-denied", 2, _deny_group),
    ClusterFault("topic-deleted", 1, _delete_topic),
    ClusterFault("topic-expired", 1, _expire_topic),
    ClusterFault("topic-grown", 1, _grow_topic),
)

CLOCK_FAULTS: Final = (
    ClusterFault("clock-forward", 1, _set_clocks(1)),
    ClusterFault("clock-behind", 1, _set_clocks(-1)),
)

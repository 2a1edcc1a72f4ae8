"""The topics that a consumer group needs on the cluster: its own, the schedule topic, and those it consumes."""

from typing import Any

from confluent_kafka import KafkaException

from rocketshim.errors import ConsumerError, TopicMissingError
from rocketshim_topics import DelayLevels, TopicNames
from rocketshim_topics.layout import Layout

__all__ = ["GroupTopics"]


class GroupTopics:
    """Looks whether they are there, and creates the group's own.

    Args:
        admin: a `confluent_kafka.admin.AdminClient`.
        names: of the namespace.
        group: the consumer group.

    Thread-safety: any thread.
    """

    def __init__(self, admin: Any, names: TopicNames, group: str) -> None:
        self._admin = admin
        self._names = names
        self._group = group

    def ensure(self, levels: DelayLevels, *, with_log: bool, create: bool) -> None:
        """Have the group's own topics; errors as `provision.ensure_topics`.

        Args:
            levels: the level table.
            with_log: the group has locks, and so a log.
            create: create what is missing.
        """
        from rocketshim_topics import provision  # noqa: PLC0415 - the one module of the contract that loads Kafka

        specs = Layout(self._names, levels).for_group(self._group, with_log=with_log)
        provision.ensure_topics(self._admin, specs, create=create)

    def look_up_with_lanes(self, needed: list[str]) -> int:
        """As `look_up`, for a group with retries; how many lanes the schedule topic has, 1 or more."""
        schedule = self._names.schedule
        partitions = self.look_up(needed, schedule)
        if schedule not in partitions:
            raise TopicMissingError(
                f"missing: {schedule}. Retries travel through it: run rocketshim init, and a worker"
            )
        return max(1, partitions[schedule] // DelayLevels.STRIDE)

    def look_up(self, needed: list[str], *others: str) -> dict[str, int]:
        """The partition counts of the topics that are needed, and of those others that are there.

        Raises:
            TopicMissingError, ConsumerError: one that is needed is not there, or the cluster did not answer.
        """
        from rocketshim_topics import provision  # noqa: PLC0415 - as above

        try:
            found = provision.read_topics(self._admin, [*others, *needed])
        except KafkaException as error:
            raise ConsumerError(f"the topics of group {self._group!r} could not be looked up: {error}") from error
        missing = [name for name in needed if name not in found]
        if missing:
            raise TopicMissingError(f"missing: {', '.join(missing)}. Create what you consume before you consume it")
        return {name: state.partitions for name, state in found.items()}

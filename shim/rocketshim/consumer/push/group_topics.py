"""The topics that a consumer group needs: its own topics, the schedule topic, and the topics that it consumes."""

from typing import Any

from confluent_kafka import KafkaException

from rocketshim.errors import ConsumerError, TopicMissingError
from rocketshim.kafka.queue_lookup import no_such_topics
from rocketshim.logs import safe_logger
from rocketshim_topics import DelayLevels, TopicNames, provision
from rocketshim_topics.layout import Layout

__all__ = ["GroupTopics"]

_LOG = safe_logger("rocketshim.consumer")


class GroupTopics:
    """Checks that the topics of a group exist. Thread-safe.

    With `create` it creates missing topics: those of the group always, consumed ones where the cluster creates topics
    on use.
    """

    def __init__(self, admin: Any, names: TopicNames, group: str, *, create: bool) -> None:
        self._admin = admin
        self._names = names
        self._group = group
        self._create = create

    def close(self) -> None:
        """Release the admin client: an error may keep this object alive. Nothing can be looked up any more."""
        self._admin = None

    def ensure(self, levels: DelayLevels, *, with_log: bool) -> None:
        """Create or check the group's own topics, and `with_log` its log. Raises as `provision.ensure_topics`."""
        specs = Layout(self._names, levels).for_group(self._group, with_log=with_log)
        provision.ensure_topics(self._admin, specs, create=self._create)

    def look_up_with_lanes(self, needed: list[str]) -> int:
        """Look up topics like `look_up`, for a group with retries; return the number of lanes, 1 or more."""
        schedule = self._names.schedule
        partitions = self.look_up(needed, schedule)
        if schedule not in partitions:
            raise TopicMissingError(f"missing: {schedule}. Retries need it: run `rocketshim init`, and start a worker")
        return max(1, partitions[schedule] // DelayLevels.STRIDE)

    def look_up(self, needed: list[str], *others: str) -> dict[str, int]:
        """Return the partition counts of the needed topics, and of those other topics that exist.

        Raises:
            TopicMissingError: a needed topic does not exist.
            ConsumerError: the cluster did not answer.
        """
        try:
            found = provision.read_topics(self._admin, [*others, *needed])
            missing = [name for name in needed if name not in found]
            if missing and self._create and provision.create_on_use(self._admin, missing):
                _LOG.warning("consumer.topics-created", extra={"group": self._group, "topics": missing})
                return self.look_up(needed, *others)
        except KafkaException as error:
            raise ConsumerError(f"the topics of group {self._group!r} could not be looked up: {error}") from error
        if missing:
            raise no_such_topics(missing)
        return {name: state.partitions for name, state in found.items()}

"""Detects that a topic was re-created, by its id; asks an admin client without waiting."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import TopicCollection

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["TopicId"]

from rocketshim.logs import safe_logger

_LOG = safe_logger("rocketshim.group")
_TIMEOUT_S: Final = 5.0
_NO_ID: Final = "A" * 22  # 16 zero bytes: a broker before Kafka 2.8, or one that does not know the id yet


class TopicId:
    """The id that Kafka gave a topic when it was created. One owner thread. The admin client is kept while it asks."""

    def __init__(self, admin: Any, topic: str) -> None:
        self._admin = admin
        self._topic = topic
        self._asked: Future[Any] | None = None
        self._known: str | None = None

    def now(self) -> str | None:
        """Request the id and wait for it, 5 s at most; None: no such topic, no id, or no answer."""
        self._known = None
        self._ask()
        if self._asked is not None:
            with suppress(TimeoutError):
                self._asked.exception(_TIMEOUT_S)
        return self.latest()

    def latest(self) -> str | None:
        """Return the latest answer and request the id again; never wait. None: no answer yet."""
        asked = self._asked
        if asked is not None and asked.done():
            self._asked = None
            error = asked.exception()  # not raised: its traceback would keep the client alive
            if error is None:
                found = str(asked.result().topic_id)
                self._known = self._known if found == _NO_ID else found
            else:  # deleted, no rights or broker unavailable: nothing new is known
                _LOG.debug("group.topic-id-unknown", extra={"topic": self._topic, "error": str(error)})
        if self._asked is None:
            self._ask()
        return self._known

    def _ask(self) -> None:
        futures = self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=_TIMEOUT_S)
        self._asked = futures[self._topic]

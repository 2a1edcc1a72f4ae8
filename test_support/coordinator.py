"""An admin client that is asked about consumer groups, and whose answers a test gives."""

from concurrent.futures import Future
from typing import Any


class AskedAdmin:
    """`asked` has the questions, in their order."""

    def __init__(self) -> None:
        self.asked: list[Future[Any]] = []

    def describe_consumer_groups(self, groups: list[str], request_timeout: float) -> dict[str, Future[Any]]:
        """Take a question about each group."""
        assert request_timeout == 3_600, "librdkafka may crash later if this limit is reached"
        asked: dict[str, Future[Any]] = {group: Future() for group in groups}
        self.asked += asked.values()
        return asked

    def poll(self, _: float) -> int:
        """Serve no callback."""
        return 0

    def __len__(self) -> int:
        """As a real one: the number of its waiting events."""
        return 0

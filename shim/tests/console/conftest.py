"""A cluster in memory with dead letters of two causes, and consoles on it."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rocketshim.cli.console import send
from rocketshim.console.server_app import make_app
from rocketshim.console.settings import ConsoleSettings
from rocketshim.kafka.clients import Clients
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics import DelayLevels, Envelope, Layout, TopicNames, encode

HOST = "http://127.0.0.1:8085"
OUR_PAGE = {"sec-fetch-site": "same-origin"}
NAMES = TopicNames()
DEAD = NAMES.dead_letter("payments")
RETRY = NAMES.retry("payments")
TOKEN = "a" * 40


def dead_letter(number: int, **fields: Any) -> list[tuple[str, bytes | None]]:
    cause = "Timeout" if number % 3 else "KeyError"
    facts: dict[str, Any] = {
        "shim": 1,
        "uniq_key": f"m{number}",
        "retry_topic": "orders",
        "origin_message_id": f"orders/0/{number}",
        "reconsume_times": 17,
        "consumer_group": "payments",
        "fail_class": cause,
        "fail_text": f"{cause} of order {number}",
        "fail_at_ms": 1,
        "user": (("n", b"%d" % number),),
    }
    return encode(Envelope(**{**facts, **fields}))


class Stage:
    """The cluster, and the console that is asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kafka = InMemoryKafka(VirtualClock())
        layout = Layout(NAMES, DelayLevels.default(), retry_partitions=2, dead_letter_partitions=2)
        self.kafka.create_topics([*layout.shared(), layout.redrive_log(), *layout.for_group("payments", with_log=True)])
        self.kafka.create_topic("orders", 1)
        self.made = 0
        self.consoles: list[Any] = []

    def add_dead(self, count: int, **fields: Any) -> None:
        for number in range(self.made, self.made + count):
            self.kafka.append(
                DEAD,
                b"body %d" % number,
                key=b"k%d" % (number % 5),
                partition=number % 2,
                headers=dead_letter(number, **fields),
            )
        self.made += count

    def settings(self, **given: Any) -> ConsoleSettings:
        return ConsoleSettings.make(**{"bootstrap": "memory:1", "state_dir": self.folder, **given})

    def client(self, clients: Clients | None = None, **given: Any) -> TestClient:
        """Return a browser without a login."""
        found = clients or self.kafka.clients(blocking=False)
        settings = self.settings(**given)
        app = make_app(settings, clients=found, token=TOKEN, send=partial(send, settings, clients=found))
        self.consoles.append(app.state.console)
        return TestClient(app, base_url=HOST, follow_redirects=False)

    def browser(self, clients: Clients | None = None, **given: Any) -> TestClient:
        """Return a browser that has logged in."""
        client = self.client(clients, **given)
        assert client.get("/login", params={"token": TOKEN}).status_code == 303
        client.headers.update(OUR_PAGE)
        return client


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    for limit in ("_PAGE_S", "_SNAPSHOT_S", "_SOON_S"):
        monkeypatch.setattr(f"rocketshim.console.context.{limit}", 60.0)
    made = Stage(tmp_path / "plans")
    yield made
    for console in made.consoles:
        console.close()


@pytest.fixture
def wait_for(stage: Stage) -> Callable[[Callable[[], bool]], None]:
    return stage.kafka.wait_until

"""The Django application, on the in-memory Kafka and an SQLite file."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection, transaction

from rocketshim import Message, MessageView
from rocketshim.codecs import JsonCodec
from rocketshim.contrib.django import consumer, listener, producer, send_on_commit
from rocketshim.contrib.django.apps import GROUP_VARIABLE
from rocketshim.contrib.django.apps import run_consumer as run_command_of_group
from rocketshim.errors import ConfigError, MessageError
from rocketshim.harness import Harness

LISTENERS = """
from rocketshim.contrib.django import listener

calls = []

@listener("orders", group="payments", tags="created")
def charge(message):
    from django.db import connection
    calls.append((message.body, connection.connection is None))
    connection.ensure_connection()
"""
KAFKA = {"bootstrap": "memory:1", "producer": {"linger_ms": 0}, "groups": {"payments": {"consume_thread_min": 1}}}


@pytest.fixture(scope="session")
def shop() -> Iterator[Any]:
    """The listeners of the application `discovered`, in a project of its own; Django is set up once in a process."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "discovered")
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "listeners.py").write_text(LISTENERS)
        sys.path.append(folder)
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(Path(folder, "db.sqlite3"))}
        settings.configure(
            INSTALLED_APPS=["rocketshim.contrib.django", "discovered"],
            DATABASES={"default": database},
            ROCKETSHIM=KAFKA,
        )
        django.setup()
        yield sys.modules["discovered.listeners"]
        connection.close()
        sys.path.remove(folder)


@pytest.fixture
def harness(shop: Any) -> Iterator[Harness]:
    shop.calls.clear()
    with Harness() as harness:
        harness.topic("orders")
        harness.connect(producer())
        yield harness
    connection.close()


def test_listeners_of_every_application_are_found(harness: Harness, shop: Any) -> None:
    harness.run(consumer("payments"))
    harness.send(Message("orders", b"1", tag="created"), Message("orders", b"2", tag="paid"))
    assert [body for body, _ in shop.calls] == [b"1"]
    assert consumer("payments").settings.consume_thread_min == 1


def test_an_option_that_does_not_exist_is_refused(harness: Harness) -> None:
    del harness  # Django is set up
    unknown: dict[str, Any] = {"tag": "created"}
    with pytest.raises(ConfigError, match=r"a listener has no option tag: did you mean tags\?"):
        listener("orders", group="payments", **unknown)


def test_old_connections_are_closed_around_each_call(harness: Harness, shop: Any) -> None:
    harness.run(consumer("payments"))
    harness.send(*(Message("orders", b"x", tag="created") for _ in range(3)))
    assert [is_closed for _, is_closed in shop.calls] == [True] * 3


def test_a_listener_takes_every_option_of_a_push_consumer(harness: Harness) -> None:
    seen = []
    harness.topic("refunds")

    @listener("refunds", group="refunds", codec=JsonCodec(), dead_on=(KeyError,))
    def refund(message: MessageView[Any]) -> None:
        seen.append(message.value)

    harness.run(consumer("refunds"))
    harness.send(Message("refunds", b'{"id": 7}'), Message("refunds", b"{"))
    assert seen == [{"id": 7}]
    assert [dead.body for dead in harness.dead("refunds")] == [b"{"]


def test_a_message_is_sent_when_the_transaction_commits(harness: Harness) -> None:
    with transaction.atomic():
        send_on_commit(Message("orders", b"1"), timeout_s=30)
        assert harness.kafka.records("orders") == []
    assert [record.value() for record in harness.kafka.records("orders")] == [b"1"]
    assert producer().settings.linger_ms == 0


def test_no_message_is_sent_when_the_transaction_is_rolled_back(harness: Harness) -> None:
    with transaction.atomic():
        send_on_commit(Message("orders", b"1"))
        transaction.set_rollback(True)
    assert harness.kafka.records("orders") == []


def test_what_is_no_message_is_refused_before_the_commit(harness: Harness) -> None:
    with pytest.raises(MessageError, match="Message"), transaction.atomic():
        send_on_commit(b"1")  # type: ignore[arg-type]
    assert harness.kafka.records("orders") == []


def test_without_a_transaction_a_message_is_sent_immediately(harness: Harness) -> None:
    send_on_commit(Message("orders", b"1"), timeout_s=30)
    assert len(harness.kafka.records("orders")) == 1


def test_a_forked_process_gets_a_producer_of_its_own(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    before = producer()
    assert producer() is before
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert producer() is not before
    assert not harness.kafka.records("orders")


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("configured", "wrong"),
    [
        (None, "ROCKETSHIM"),
        ({"bootstrap": "memory:1", "groups": "payments"}, r"ROCKETSHIM\['groups'\]"),
        ({"bootstrap": "memory:1", "name_space": "x"}, "name_space"),
        ({"bootstrap": "memory:1", "groups": {"new": {"threads": 1}}}, "threads"),
    ],
)
def test_wrong_settings_are_named(configured: Any, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "ROCKETSHIM", configured)
    with pytest.raises(ConfigError, match=wrong):

        @listener("orders", group="new")
        def listen(_message: MessageView) -> None: ...


@pytest.mark.usefixtures("shop")
def test_the_command_names_the_groups_that_have_listeners(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (GROUP_VARIABLE, "PYTHONPATH"):
        monkeypatch.setenv(name, "")
    with pytest.raises(SystemExit) as ended:
        call_command("rocketshim_consume", group="billing")
    assert ended.value.code == 1
    assert "no listener has group='billing'; groups with listeners in <app>/listeners.py: payments" in (
        capsys.readouterr().err
    )


def test_settings_of_a_group_that_is_a_typo_are_refused(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would have no effect. A group that resembles none may have its listeners in another deployment."""
    del harness
    monkeypatch.setenv(GROUP_VARIABLE, "payments")
    monkeypatch.setattr(settings, "ROCKETSHIM", {"bootstrap": "memory:1", "groups": {"reports": {}}})
    assert run_command_of_group().settings.group == "payments"
    monkeypatch.setattr(settings, "ROCKETSHIM", {"bootstrap": "memory:1", "groups": {"payment": {}}})
    with pytest.raises(ConfigError, match=r"'payment', and no listener has this group: did you mean payments\?"):
        run_command_of_group()

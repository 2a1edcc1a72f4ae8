"""Landings by machines whose clocks are a day off: no report is wrong because of it, or it names the clock."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer as PlainProducer
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from rocketshim import Message, Producer
from rocketshim.kafka.reports import DeliveryReports, store
from rocketshim_local import Broker
from rocketshim_spark import land
from rocketshim_spark.cli import main
from rocketshim_topics import DelayLevels, Layout, TopicNames, provision
from rocketshim_topics.hops import clock_probe

from .waiting import wait_until

pytestmark = pytest.mark.usefixtures("interpreted")

LEVELS = "1s 1h"
DAY = dt.timedelta(days=1)


def test_what_is_stuck_is_told_by_the_brokers_clock_whatever_clock_landed_before(  # noqa: PLR0917 - called by pytest
    spark: SparkSession,
    broker: Broker,
    admin: AdminClient,
    namespace: str,
    topic: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One message is due, and no worker runs; another one is due in an hour."""
    del spark  # the one that the commands find
    orders = topic(1)
    names = TopicNames(namespace)
    provision.ensure_topics(admin, Layout(names, DelayLevels.parse(LEVELS)).shared())

    def ask(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main([*words, "--lake", tmp_path.as_uri(), "--namespace", namespace])
        return code, capsys.readouterr().out

    def await_due() -> None:
        """Wait until the brokers' clock, which probes show, is a second further: before the others are sent."""
        plain, out = PlainProducer({"bootstrap.servers": broker.bootstrap}), clock_probe(names, partition=0)
        shown_ms: list[int] = []

        def has_passed() -> bool:
            report = store(plain, DeliveryReports(), 60.0, out.topic, out.value, out.key, 0, headers=out.headers)
            shown_ms.append(report.timestamp()[1])
            return shown_ms[-1] - shown_ms[0] > 1_000

        wait_until(has_passed, "the message is due", within_s=60.0)

    def stuck_after_landing(ahead: dt.timedelta) -> tuple[str, bool]:
        """Send another message, land by a clock that is ahead; return what is stuck, and whether a note names it."""
        producer.send(Message(orders, b"later", delay_level=2), timeout_s=60)
        with monkeypatch.context() as patched:
            patched.setattr(land, "_now", lambda: dt.datetime.now(dt.UTC) + ahead)
            assert ask("land", orders, "--bootstrap", broker.bootstrap)[0] == 0
        code, out = ask("delays", "--grace", "0s", "--delay-levels", LEVELS)
        assert code == 2
        (line,) = (line for line in out.splitlines() if "stuck" in line and line.startswith("delays:"))
        return line, "the clock of the machine that landed is ahead" in out

    with Producer(broker.bootstrap, namespace=namespace, delay_levels=LEVELS) as producer:
        producer.send(Message(orders, b"due", delay_level=1), timeout_s=60)
        await_due()
        right, is_named = stuck_after_landing(dt.timedelta())
        assert "1 stuck" in right, right
        assert not is_named
        assert stuck_after_landing(DAY)[1], "all are called stuck, with the clock"
        assert stuck_after_landing(dt.timedelta()) == (right, False)
        assert stuck_after_landing(-DAY) == (right, False)
        assert "5 lifecycles" in ask("lineage")[1]

"""Landings by machines whose clocks are a day off: no report is wrong because of it, or it names the clock."""

import datetime as dt
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from rocketshim import Message, Producer
from rocketshim_local import Broker
from rocketshim_spark import land
from rocketshim_spark.cli import main
from rocketshim_topics import DelayLevels, Layout, TopicNames, provision

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
    provision.ensure_topics(admin, Layout(TopicNames(namespace), DelayLevels.parse(LEVELS)).shared())

    def ask(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main([*words, "--lake", tmp_path.as_uri(), "--namespace", namespace])
        return code, capsys.readouterr().out

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
        time.sleep(1.2)  # it is due before the others are sent
        right, is_named = stuck_after_landing(dt.timedelta())
        assert "1 stuck" in right, right
        assert not is_named
        assert stuck_after_landing(DAY)[1], "all are called stuck, with the clock"
        assert stuck_after_landing(dt.timedelta()) == (right, False)
        assert stuck_after_landing(-DAY) == (right, False)
        assert "5 lifecycles" in ask("lineage")[1]

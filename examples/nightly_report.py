"""A report every working day at nine, once in a fleet of programs. Runs in memory, in a second.

    python examples/nightly_report.py

Each program of the fleet sends the same recurring message when it starts: it has a name, so that it replaces itself,
and the message comes once. Any one of the listeners gets it, and if that one fails, it is retried. The clocks of Berlin
are set forward in between, and nine o'clock stays nine o'clock. In production the line of cron stands better in a file:
`rocketshim timers apply cron.toml`.
"""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from rocketshim import MessageView, Producer, PushConsumer
from rocketshim.harness import Harness
from rocketshim.testing import InMemoryKafka, VirtualClock

BERLIN = ZoneInfo("Europe/Berlin")

consumer = PushConsumer("localhost:9092", group="reports")
reported: list[str] = []


def declare(producer: Producer) -> None:
    """Send what recurs; each program does it when it starts."""
    producer.send("reports", b"sales", timer="sales", cron="0 9 * * 1-5", tz="Europe/Berlin", timeout_s=30)


@consumer.listener("reports")
def report(message: MessageView) -> None:
    """Write the report of the day."""
    reported.append((message.body or b"").decode())


def main() -> None:
    """Three programs start on a Friday; clocks are set forward on Sunday; on Tuesday evening the report is stopped."""
    start = datetime(2027, 3, 26, 18, tzinfo=BERLIN)
    clock = VirtualClock(start_wall_ms=round(start.timestamp() * 1_000))
    with Harness(kafka=InMemoryKafka(clock)) as harness:
        harness.topic("reports")
        harness.run(consumer)
        for _ in range(3):
            declare(harness.producer)
        harness.pass_time("4d")
        harness.cancel("reports", timer="sales")
        harness.pass_time("7d")
        times = [
            datetime.fromtimestamp(record.timestamp()[1] / 1_000, UTC) for record in harness.kafka.records("reports")
        ]
    for each in times:
        print(f"{each.astimezone(BERLIN):%A %H:%M} in Berlin, {each:%H:%M} UTC")
    if ([each.hour for each in times], reported) != ([7, 7], ["sales"] * 2):
        raise SystemExit("not as it should be")


if __name__ == "__main__":
    main()

"""What the processes of a soak do until SIGTERM: `python -m proof.soak.program ROLE NAME BOOTSTRAP FOLDER RATE`.

When it ends, a process writes into FOLDER how many messages it sent, or handled.
"""

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException

from proof.soak.plan import LANES, LEVELS, LIMIT, ROLES, fails
from rocketshim import (
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    MessageModel,
    MessageView,
    Producer,
    PushConsumer,
    dropin,
)
from rocketshim.errors import StaleMessageError
from rocketshim.stop_signals import StopSignals

if TYPE_CHECKING:
    from concurrent.futures import Future

    from rocketshim.producer.result import SendResult

_TICK_S: Final = 0.02
_MOST_PENDING: Final = 1_000
_DELAYED: Final = 0.15


class _FailedError(Exception):
    """The listener fails with this message."""


class _Program:
    """One process.

    Args:
        role: by its name in the plan.
        name: of the process.
        bootstrap: addresses of the brokers.
        folder: of the run.
        rate: messages a second, for a sender.
    """

    def __init__(self, role: str, name: str, bootstrap: str, folder: Path, rate: float) -> None:
        self._name, self._bootstrap, self._folder, self._rate = name, bootstrap, folder, rate
        self._role_name, self._role = role, ROLES[role]
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        """Run until SIGTERM."""
        match self._role_name:
            case "sender-least" | "sender-once":
                self._send(LANES[self._role.lane].shares)
            case "concurrent":
                self._consume({})
            case "orderly":
                self._consume({"suspend_current_queue_time_ms": 50}, is_orderly=True)
            case "broadcast":
                stored = str(self._folder / "positions" / self._name)
                self._consume({"message_model": MessageModel.BROADCASTING, "offset_store_dir": stored})
            case "pull":
                self._pull()
            case "dropin":
                self._drop_in()
            case role:
                raise SystemExit(f"no such role: {role}")

    def _send(self, shares: Mapping[str, int]) -> None:
        dice, number, began_s = random.Random(self._name), 0, time.monotonic()  # noqa: S311 - what is sent, no secret
        pending: set[Future[SendResult]] = set()
        with (
            StopSignals() as stopping,
            Producer(self._bootstrap, namespace=self._role.lane, delay_levels=LEVELS) as producer,
        ):
            while not stopping.asked:
                time.sleep(_TICK_S)
                due = int((time.monotonic() - began_s) * self._rate)
                while number < due and len(pending) < _MOST_PENDING:
                    pending.add(producer.send_async(self._message(dice, shares, number)))
                    number += 1
                pending = {each for each in pending if not self._is_sent(each)}
        for each in pending:  # the producer has waited for them
            self._is_sent(each)

    def _is_sent(self, future: "Future[SendResult]") -> bool:
        if not future.done():
            return False
        self.counts["sent" if future.exception() is None else "refused"] += 1
        return True

    def _message(self, dice: random.Random, shares: Mapping[str, int], number: int) -> Message:
        topic = dice.choices(list(shares), list(shares.values()))[0]
        delay: dict[str, Any] = {}
        if dice.random() < _DELAYED:
            self.counts["delayed"] += 1
            delay = dice.choice([{"delay_level": dice.randint(1, 6)}, {"delay": f"{dice.randint(100, 60_000)}ms"}])
        body = b"%d " % number + dice.randbytes(dice.randint(0, 200))
        return Message(topic, body, key=f"k{dice.randrange(1_000)}", properties=[("trace", b"%d" % number)], **delay)

    def _handle(self, body: bytes | None, attempt: int) -> None:
        """Do what a listener does.

        Raises:
            _FailedError: the listener fails with this message.
        """
        time.sleep(0.001)
        if fails(int((body or b"0").partition(b" ")[0]), attempt):
            self.counts["failed"] += 1
            raise _FailedError
        self.counts["handled"] += 1

    def _consume(self, settings: dict[str, Any], *, is_orderly: bool = False) -> None:
        consumer = PushConsumer(
            self._bootstrap, group=self._role.group, namespace=self._role.lane, client_id=self._name,
            delay_levels=LEVELS, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=LIMIT,
            **settings,
        )  # fmt: skip

        @consumer.listener(self._role.topic, orderly=is_orderly)
        def handle(message: MessageView) -> None:
            self._handle(message.body, message.reconsume_times)

        consumer.run()

    def _pull(self) -> None:
        with (
            StopSignals() as stopping,
            LitePullConsumer(
                self._bootstrap, group=self._role.group, namespace=self._role.lane,
                consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            ) as consumer,
        ):  # fmt: skip
            consumer.subscribe(self._role.topic)
            while not stopping.asked:
                self.counts["handled"] += len(consumer.poll(200))

    def _drop_in(self) -> None:
        config = {
            "bootstrap.servers": self._bootstrap, "group.id": self._role.group, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "rocketshim.retry.enable": True, "rocketshim.namespace": self._role.lane,
            "rocketshim.delay.levels": LEVELS, "rocketshim.max.reconsume.times": LIMIT,
        }  # fmt: skip
        with StopSignals() as stopping:
            consumer = dropin.Consumer(config)
            consumer.subscribe([self._role.topic])
            while not stopping.asked:
                message = consumer.poll(0.2)
                if message is None or message.error() is not None:
                    continue
                try:
                    self._handle(message.value(), consumer.reconsume_times(message))
                except _FailedError:
                    try:
                        consumer.reconsume_later(message, "the carrier is closed")
                    except StaleMessageError:  # another member has the partition by now
                        continue
                try:
                    consumer.commit(message=message)
                except KafkaException:  # likewise
                    self.counts["not committed"] += 1
            consumer.close()


def main(role: str, name: str, bootstrap: str, folder: str, rate: str) -> None:
    """Run one process until it is ended."""
    program = _Program(role, name, bootstrap, Path(folder), float(rate))
    program.run()
    (Path(folder) / "counts" / f"{name}.json").write_text(json.dumps(program.counts), encoding="ascii")


if __name__ == "__main__":
    main(*sys.argv[1:])

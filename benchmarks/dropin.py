"""What the drop-in consumer costs, beside the original: `python -m benchmarks.dropin`.

Three consumers in one process: the original, the drop-in switched off, the drop-in with retry on and nothing failing.
Each has fetched everything into its own memory before the clock starts, so that only the calls count and not the
broker. Then they take turns, a few thousand messages each, in an order that rotates; a ratio is taken within its turn,
the figure is the median of the ratios with the quartiles. Every loop looks at `error()` and `value()`. Settings are the
client's own defaults: offsets are stored and committed automatically.
"""

import argparse
import gc
import statistics
import time
import uuid
from collections.abc import Callable

import confluent_kafka
from confluent_kafka import Consumer

from benchmarks.consumer import PREFETCHED, fill
from rocketshim import dropin
from rocketshim_local import any_broker

TURNS = 100
PER_TURN = 2_000
BATCH = 500
PREFETCH_S = 12.0
REACH = {"off": 0.93, "on": 0.80}


def consumers(bootstrap: str, topic: str) -> dict[str, Consumer]:
    """Assigned, with everything fetched."""
    config = {**PREFETCHED, "bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"}
    namespace = f"bench{uuid.uuid4().hex[:6]}"
    on = {"rocketshim.retry.enable": True, "rocketshim.namespace": namespace}
    made = {
        "original": Consumer({**config, "group.id": uuid.uuid4().hex}),
        "off": dropin.Consumer({**config, "group.id": uuid.uuid4().hex, "rocketshim.retry.enable": False}),
        "on": dropin.Consumer({**config, "group.id": uuid.uuid4().hex, **on}),
    }
    for consumer in made.values():
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.01)
    time.sleep(PREFETCH_S)
    return made


def by_poll(consumer: Consumer) -> None:
    for _ in range(PER_TURN):
        message = consumer.poll(1.0)
        if message is None or message.error() is not None:
            continue
        message.value()


def by_consume(consumer: Consumer) -> None:
    for _ in range(PER_TURN // BATCH):
        for message in consumer.consume(BATCH, 1.0):
            if message.error() is None:
                message.value()


def seconds(loop: Callable[[Consumer], None], consumer: Consumer) -> tuple[float, float]:
    """What a turn takes by the clock, and of its thread's own CPU, which other programs disturb less."""
    began, own = time.perf_counter(), time.thread_time()
    loop(consumer)
    return time.perf_counter() - began, time.thread_time() - own


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1_000)
    print(
        f"confluent-kafka {confluent_kafka.__version__}, {TURNS} turns of {PER_TURN:,} messages of 1 KiB, 4 partitions"
    )
    with any_broker(report=print) as broker:
        topic = fill(broker.bootstrap, (TURNS + 2) * PER_TURN)
        for name, loop in (("poll()", by_poll), (f"consume({BATCH})", by_consume)):
            made = consumers(broker.bootstrap, topic)
            order = list(made)
            turns = []
            for number in range(TURNS + 1):
                order.append(order.pop(0))
                turn = {each: seconds(loop, made[each]) for each in order}
                if number:
                    turns.append(turn)
            for each, reach in REACH.items():
                clock, own = (
                    statistics.quantiles((turn["original"][unit] / turn[each][unit] for turn in turns), n=4)
                    for unit in (0, 1)
                )
                cost = statistics.median(turn[each][1] - turn["original"][1] for turn in turns) / PER_TURN * 1e6
                rate = PER_TURN / statistics.median(turn["original"][0] for turn in turns)
                print(
                    f"{name}, retry {each} (reach {reach}): by CPU {own[1]:.2f} [{own[0]:.2f} to {own[2]:.2f}], "
                    f"by the clock {clock[1]:.2f} [{clock[0]:.2f} to {clock[2]:.2f}] x original; "
                    f"{cost:+.2f} us CPU a message; the original {rate:,.0f}/s"
                )
            for consumer in made.values():
                consumer.close()


if __name__ == "__main__":
    main()

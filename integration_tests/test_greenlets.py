"""Programs under gevent and eventlet: refused by name, or served if their threads were not replaced."""

import subprocess
import sys
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from rocketshim import TopicNames
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, provision
from rocketshim_topics.layout import Layout

GUARD_S = 90.0
MADE = {
    "producer": "rocketshim.Producer(B)",
    "async producer": "rocketshim.aio.AsyncProducer(B)",
    "push consumer": "rocketshim.PushConsumer(B, group='g')",
    "lite pull consumer": "rocketshim.LitePullConsumer(B, group='g')",
    "pull consumer": "rocketshim.PullConsumer(B, group='g')",
    "worker": "rocketshim.DelayWorker(rocketshim.WorkerSettings(bootstrap=B, allow=['orders']))",
    "drop-in consumer": "dropin.Consumer({'bootstrap.servers': B, 'group.id': 'g', 'rocketshim.retry.enabled': True})",
    "drop-in producer": "dropin.Producer({'bootstrap.servers': B, 'rocketshim.namespace': 'n'})",
}
GEVENT = "from gevent import monkey; monkey.patch_all()"
PATCHED = {"gevent": GEVENT, "eventlet": "import eventlet; eventlet.monkey_patch()"}
WITHOUT_THREADS = {
    "gevent": ("monkey.patch_all(thread=False, queue=False)", "from gevent import monkey, joinall, spawn"),
    "eventlet": (
        "eventlet.monkey_patch(thread=False)",
        "import eventlet; from eventlet import spawn\ndef joinall(all, raise_error): [each.wait() for each in all]",
    ),
}


def run(program: str, *words: str) -> str:
    """Run a program, and return its last line of output."""
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=GUARD_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("library", PATCHED)
@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_greenlets_in_place_of_threads_are_refused_by_name(made: str, library: str) -> None:
    """Before, the first send and `start` never returned, whatever time they were given."""
    said = run(
        f"{PATCHED[library]}\n"
        "import rocketshim, rocketshim.aio\nfrom rocketshim import dropin\n"
        "from rocketshim.errors import ConfigError\nB = '127.0.0.1:1'\n"
        f"try: {made}\nexcept ConfigError as error: print(error)"
    )
    assert said.startswith(f"{library} has replaced the threads of this process by greenlets")
    assert said.endswith(WITHOUT_THREADS[library][0])


def test_a_drop_in_without_our_settings_runs_under_gevent_as_the_original() -> None:
    said = run(
        f"{GEVENT}\nfrom rocketshim import dropin\n"
        "consumer = dropin.Consumer({'bootstrap.servers': '127.0.0.1:1', 'group.id': 'g'})\n"
        "print(consumer.poll(0.0)); consumer.close()"
    )
    assert said == "None"


@pytest.mark.parametrize("library", WITHOUT_THREADS)
def test_with_threads_left_alone_a_program_of_greenlets_sends_and_handles(
    library: str, broker: Broker, admin: AdminClient, topic: Callable[..., str], group: Callable[..., str]
) -> None:
    patch, imports = WITHOUT_THREADS[library]
    namespace = group()
    provision.ensure_topics(admin, Layout(TopicNames(namespace), DelayLevels.default()).shared(), create=True)
    program = (
        f"{imports}\n{patch}\n"
        "import sys, threading\nfrom rocketshim import Producer, PushConsumer\n"
        "B, T, G, N = sys.argv[1:]\nhandled = threading.Semaphore(0)\n"
        "consumer = PushConsumer(B, group=G, namespace=N, consume_from_where='CONSUME_FROM_FIRST_OFFSET')\n"
        "consumer.register_message_listener(T, lambda message: handled.release())\n"
        "consumer.start()\n"
        "with Producer(B, namespace=N) as producer:\n"
        "    joinall([spawn(producer.send, T, b'x') for _ in range(20)], raise_error=True)\n"
        "print(sum(handled.acquire() for _ in range(20))); consumer.stop()\n"
    )
    assert run(program, broker.bootstrap, topic(), group(), namespace) == "20"

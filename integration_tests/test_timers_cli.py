"""Named timers as users have them: producer, worker and `rocketshim timers` on a real broker."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from rocketshim import Producer
from rocketshim.cli import main
from rocketshim_local import Broker

from .running import patient_worker, running
from .waiting import wait_until

WAIT_S = 60.0


class Stage:
    """A namespace with its topics, a target, and the commands."""

    def __init__(self, broker: Broker, namespace: str, target: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.bootstrap = broker.bootstrap
        self.namespace = namespace
        self.target = target
        self._capsys = capsys
        self._there = ["--bootstrap", broker.bootstrap, "--namespace", namespace]
        assert main(["init", *self._there]) == 0
        capsys.readouterr()

    def shell(self, *words: str) -> tuple[int, str]:
        code = main([*words, *self._there])
        shown = self._capsys.readouterr()
        assert code in {0, 2}, shown.err
        return code, shown.out

    def state(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.shell("timers", "show", self.target, name, "--json")[1])
        return found

    def pending(self, *words: str) -> list[str]:
        _, out = self.shell("timers", "ls", "--json", *words)
        return [json.loads(line)["timer"] for line in out.splitlines()]

    def received(self, wanted: set[bytes]) -> list[bytes]:
        """Wait until the target has these bodies; return all that it has by then."""
        reader = Consumer({
            "bootstrap.servers": self.bootstrap, "group.id": self.namespace, "isolation.level": "read_committed",
        })  # fmt: skip
        reader.assign([TopicPartition(self.target, 0, 0)])
        bodies: list[bytes] = []

        def is_there() -> bool:
            bodies.extend(each.value() or b"" for each in reader.consume(10, timeout=0.1))
            return wanted <= set(bodies)

        wait_until(is_there, f"{wanted}", within_s=WAIT_S)
        reader.close()
        return bodies

    @contextmanager
    def worker(self, *, exactly_once: bool) -> Iterator[None]:
        made = patient_worker(
            self.bootstrap, self.namespace, "1s 2s", allow=(self.target,), exactly_once=exactly_once,
            instance=self.namespace,
        )  # fmt: skip
        with running(made):
            yield


@pytest.fixture
def stage(broker: Broker, namespace: str, topic: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> Stage:
    return Stage(broker, namespace, topic(1), capsys)


def test_declared_messages_are_sent_once_and_recur(stage: Stage, tmp_path: Path) -> None:
    """The second run finds them in the log, before a worker has read them; the third one in what the worker stores."""
    path = tmp_path / "cron.toml"
    entry = '[[message]]\ntopic = "%s"\ntimer = "%s"\nevery = "%s"\nbody = "%s"\n'
    path.write_text(entry % (stage.target, "tick", "1s", "tick") + entry % (stage.target, "far", "1h", "far"))

    def apply(*words: str) -> dict[str, str]:
        _, out = stage.shell("timers", "apply", str(path), "--json", *words)
        return {each["timer"]: each["action"] for each in map(json.loads, out.splitlines())}

    assert apply("--dry-run") == apply() == {"tick": "new", "far": "new"}
    assert apply() == {"tick": "unchanged", "far": "unchanged"}
    with stage.worker(exactly_once=True):
        stage.received({b"tick"})
        wait_until(lambda: stage.pending("--name", "tick") == ["tick"], "the worker has stored it", within_s=WAIT_S)
        assert apply() == {"tick": "unchanged", "far": "unchanged"}
        path.write_text(entry % (stage.target, "soon", "1s", "soon"))
        assert apply("--remove-others") == {"soon": "new", "tick": "remove", "far": "remove"}
        stage.received({b"soon"})
        wait_until(lambda: stage.pending() == ["soon"], "the others are cancelled", within_s=WAIT_S)


@pytest.mark.parametrize("exactly_once", [False, True])
def test_the_log_decides_and_the_commands_tell_how(stage: Stage, exactly_once: bool) -> None:
    """The worker starts behind all commands: the log has decided already. The last message comes behind all others."""
    target = stage.target
    with Producer(stage.bootstrap, namespace=stage.namespace) as producer:
        for name in ("fires", "cancelled"):
            assert stage.shell("send", target, name, "--delay", "2s", "--timer", name)[0] == 0
        producer.send(target, b"first", delay="2s", timer="moved", timeout_s=WAIT_S)
        producer.send(target, b"second", delay="1s", timer="moved", timeout_s=WAIT_S)
        for node in (b"node 1", b"node 2"):
            producer.send(target, node, delay="1s", timer="job", if_absent=True, timeout_s=WAIT_S)
        for change in range(5):
            producer.send(target, b"change %d" % change, delay="1s", timer="debounced", at_most="2s", timeout_s=WAIT_S)
        producer.send(target, b"now", delay="2h", timer="asked", timeout_s=WAIT_S)
        producer.send(target, b"hour", delay="1h", timer="waits", timeout_s=WAIT_S)
        in_time = producer.cancel(target, timer="cancelled", timeout_s=WAIT_S)
        producer.send(target, b"again", delay="2s", timer="cancelled", timeout_s=WAIT_S)
        code, out = stage.shell("timers", "cancel", target, "cancelled", "--apply")
        assert (code, "in time" in out) == (0, True)
        assert stage.shell("timers", "now", target, "asked", "--apply")[0] == 0
        wanted = {b"second", b"node 1", b"change 4", b"now", b"fires"}
        with stage.worker(exactly_once=exactly_once):
            stage.received(wanted)
            producer.send(target, b"last", delay="3s", timer="last", timeout_s=WAIT_S)
            bodies = stage.received({b"last"})
        too_late = producer.cancel(target, timer="fires", timeout_s=WAIT_S)
        found = producer.outcome(target, timer="fires", of=too_late, timeout_s=WAIT_S)
        assert (found.fate, found.is_cancel_late) == ("fired", True)
        assert producer.outcome(target, timer="cancelled", of=in_time, timeout_s=WAIT_S).fate == "cancelled"
    assert sorted(bodies if exactly_once else set(bodies)) == sorted(wanted | {b"last"})
    states = {name: stage.state(name)["fate"] for name in ("fires", "cancelled", "moved", "asked", "waits", "none")}
    assert states == {
        "fires": "fired", "cancelled": "cancelled", "moved": "fired", "asked": "delivered-now", "waits": "pending",
        "none": "unknown",
    }  # fmt: skip
    with Producer(stage.bootstrap, namespace=stage.namespace) as producer:
        assert {name: producer.outcome(target, timer=name, timeout_s=WAIT_S).fate for name in states} == states
    assert stage.pending() == ["waits"]
    assert stage.pending("--due-before", "30m") == []
    code, out = stage.shell("timers", "cancel", target, "fires", "--apply")
    assert (code, "too late" in out) == (2, True)

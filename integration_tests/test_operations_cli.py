"""Facts about the commands of a person on call, on a real broker: what is missing is reported, records are counted
and not offsets, Ctrl-C leaves things as they were, exit codes.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from rocketshim.cli import main
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, Envelope, TopicNames, encode, provision
from rocketshim_topics.layout import Layout

from .waiting import await_ends_of_transactions

Run = Callable[..., str]
Headers = list[tuple[str, bytes | None]]


class Place:
    """A namespace with a group's topics and one source topic; records in it are made by hand."""

    def __init__(self, broker: Broker, admin: AdminClient, namespace: str, group: str, source: str) -> None:
        self.admin, self.group, self.source = admin, group, source
        self.names = TopicNames(namespace)
        self.there = ["--bootstrap", broker.bootstrap, "--namespace", namespace]
        self.bootstrap = broker.bootstrap
        layout = Layout(self.names, DelayLevels.default())
        provision.ensure_topics(admin, [*layout.shared(), *layout.for_group(group, with_log=False)])

    def write(self, topic: str, partition: int = 0, **facts: Any) -> str:
        """One record; its coordinates."""
        stored: list[Any] = []
        producer = KafkaProducer({"bootstrap.servers": self.bootstrap})
        headers: Any = encode(Envelope(shim=1, **facts))
        producer.produce(
            topic, b"body", partition=partition, headers=headers, on_delivery=lambda _, message: stored.append(message)
        )
        assert producer.flush(60) == 0
        return f"{topic}/{partition}/{stored[0].offset()}"

    def truncate(self, *places: str) -> None:
        """Retention takes these records, and what lies before them."""
        ends = [each.rsplit("/", 2) for each in places]
        cut = [TopicPartition(topic, int(partition), int(offset) + 1) for topic, partition, offset in ends]
        for future in self.admin.delete_records(cut).values():
            future.result(60)


@pytest.fixture
def place(
    broker: Broker, admin: AdminClient, namespace: str, group: Callable[..., str], topic: Callable[..., str]
) -> Place:
    return Place(broker, admin, namespace, group(), topic(1))


@pytest.fixture
def run(admin: AdminClient, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main(list(words)) == code
        if words[1] == "apply":
            await_ends_of_transactions(admin)
        return capsys.readouterr().out

    return call


def test_a_trace_says_what_retention_took_by_id_and_by_coordinates(place: Place, run: Run) -> None:
    """A message that failed three times. Its first record and those of its first two attempts are taken away."""
    names, group = place.names, place.group
    common: dict[str, Any] = {
        "uniq_key": "m1",
        "retry_topic": place.source,
        "consumer_group": group,
        "fail_class": "Timeout",
    }
    first = place.write(place.source, uniq_key="m1")
    common["origin_message_id"] = first
    back: dict[str, Any] = {"real_topic": f"%RETRY%{group}", "delay_ms": 10_000}
    hops = [first]
    for attempt, partition in ((1, 2), (2, 3)):
        facts: dict[str, Any] = {**common, "reconsume_times": attempt}
        hops.append(place.write(names.schedule, partition, hop_id=hops[-1], **facts, **back))
        hops.append(place.write(names.retry(group), hop_id=hops[-1], **facts))
    dead = place.write(names.dead_letter(group), hop_id=hops[-1], reconsume_times=3, **common)
    everything = json.loads(run("trace", "m1", *place.there, "--json"))
    assert [f"{each['topic']}/{each['partition']}/{each['offset']}" for each in everything] == [*hops, dead]

    place.truncate(first, hops[1], hops[2], hops[3])
    left = json.loads(run("trace", "m1", *place.there, "--json"))
    assert [each["at"] for each in left if each.get("is_missing")] == [first, hops[3]]
    assert [each.get("attempts") for each in left] == [None, [1, 1], None, None]
    assert all(each.get("expired", True) for each in left)
    for what in (dead, hops[4], hops[3], first):
        assert json.loads(run("trace", what, *place.there, "--json")) == left, "also by what is there no more"
    shown = " ".join(run("trace", first, *place.there).split())
    assert f"? {first} missing: retention has deleted it" in shown
    assert "retention has deleted it; no record is left of attempt 1" in shown

    assert "missing" not in run("trace", f"{place.source}/0/99", *place.there, code=2)
    run("trace", "no-such-id", *place.there, code=2)
    run("trace", f"{place.source}/x/99", *place.there, code=1)


def test_a_trace_finds_the_record_that_it_has_read_at_an_address(
    place: Place, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that was never delayed and never failed: no topic of rocketshim names its topic."""
    fetched, fetch = [], TopicReader.fetch

    def watched(reader: TopicReader, *where: Any) -> Any:
        fetched.append(where)
        return fetch(reader, *where)

    monkeypatch.setattr(TopicReader, "fetch", watched)
    for message_id in ("m7", None):
        at = place.write(place.source, uniq_key=message_id)
        [found] = json.loads(run("trace", at, *place.there, "--json"))
        assert f"{found['topic']}/{found['partition']}/{found['offset']}" == at
    assert len(fetched) == 2, "each once"


def test_counts_are_of_records_and_not_of_offsets(place: Place, run: Run) -> None:
    """Transaction markers, aborted records, what retention took, the worker's probes: none of them is counted."""
    letters, names = place.names.dead_letter(place.group), place.names
    producer = KafkaProducer({"bootstrap.servers": place.bootstrap, "transactional.id": place.group})
    producer.init_transactions(60)
    dead: Headers = encode(Envelope(shim=1, fail_class="Timeout"))
    waits: Headers = encode(Envelope(shim=1, real_topic=place.source, delay_ms=10_000))
    for commits in (True, False, True, True):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(letters, b"x", headers=dead)  # type: ignore[arg-type]
            producer.produce(names.schedule, b"x", headers=waits, partition=2)  # type: ignore[arg-type]
            producer.produce(names.schedule, None, headers=[("CLOCK", b"1")], partition=2)
        producer.commit_transaction(60) if commits else producer.abort_transaction(60)
    await_ends_of_transactions(place.admin)
    place.truncate(f"{letters}/0/0")
    [counted] = json.loads(run("dlq", "stats", "--group", place.group, *place.there, "--json"))
    assert counted["count"] == 8
    assert len(run("dlq", "ls", "--group", place.group, *place.there, "--json").splitlines()) == 8
    [queue] = json.loads(run("delayed", "stats", *place.there, "--json"))
    assert (queue["partition"], queue["waiting"]) == (2, 9)
    assert (
        json.loads(run("dlq", "plan", "--group", place.group, "--to-source", *place.there, "--json"))["letters"] == []
    )


def test_a_repeat_of_a_letter_that_was_sent_before_is_not_sent_too(place: Place, run: Run, tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    facts: dict[str, Any] = {"uniq_key": "m", "origin_message_id": f"{place.source}/0/7", "consumer_group": place.group}
    for cause in ("Timeout", "Killed"):
        place.write(place.names.dead_letter(place.group), fail_class=cause, **facts)
    make = ["dlq", "plan", "--group", place.group, *place.there, "--out", plan, "--json"]
    assert json.loads(run(*make, "--where", "FAIL_CLASS = 'Killed'"))["letters"] == 1
    assert "sent: 1" in run("dlq", "apply", plan, "--bootstrap", place.bootstrap)
    for choice in ([], ["--where", "FAIL_CLASS = 'Timeout'"], ["--since", "1d"]):
        made = json.loads(run(*make, *choice))
        assert (made["letters"], made["held_back"]["repeat-of"]) == (0, 1), choice


def test_parked_records_are_planned_and_sent_once_by_a_plan(place: Place, run: Run, tmp_path: Path) -> None:
    for target in ("orders", "orders", ""):
        place.write(place.names.parked, park_reason="target-refused", real_topic=target or None, uniq_key="m")

    def planned(file: str, *words: str, code: int = 0) -> int:
        facts = run("parked", "plan", *words, *place.there, "--out", str(tmp_path / file), "--json", code=code)
        return int(json.loads(facts)["letters"])

    def applied(file: str, *words: str) -> list[int]:
        facts = json.loads(run("dlq", "apply", str(tmp_path / file), "--bootstrap", place.bootstrap, "--json", *words))
        return [facts[each] for each in ("sent", "settled_before", "left")]

    assert planned("both", "0/0", "0/1", "0/7", code=2) == 2, "0/7 is not there"
    assert planned("one", "0/0") == 1
    assert applied("both", "--dry-run") == [0, 0, 2]
    assert applied("one") == [1, 0, 0]
    assert applied("both") == [1, 1, 0]
    assert planned("none", "--topic", "orders") == 0
    assert planned("again", "--topic", "orders", "--again") == 2
    assert applied("again") == [2, 0, 0]
    assert applied("again") == [0, 2, 0], "as after a kill"
    assert planned("rest", "--reason", "", "--again", code=2) == 2, "the third names no target"
    with TopicReader(place.bootstrap) as reader:
        assert len(list(reader.read([place.names.schedule]))) == 4
    place.write(place.names.parked, park_reason="target-missing", real_topic="%RETRY%g", uniq_key="m")
    for number, name in enumerate(("%RETRY%g", place.names.retry("g"))):
        assert planned(f"retry-{number}", "--topic", name) == 1, "the logical and the physical name"


def test_a_group_that_is_not_known_is_said_to_be_so(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["dlq", "stats"], ["dlq", "plan"], ["retry", "ls"]):
        assert main([*words, "--group", f"{place.group}x", *place.there]) == 1
        told = capsys.readouterr().err
        assert f"the group '{place.group}x' is not known here" in told
        assert "init" not in told
        assert place.group + " " in told.replace("?", " "), "what it may be"
    assert main(["dlq", "ls", "--topic", "nowhere", *place.there]) == 1
    told = capsys.readouterr().err
    assert "there is no topic nowhere" in told
    assert "rocketshim acls" in told, "a missing right looks the same"
    for words in (["trace", "x"], ["delayed", "ls"], ["delayed", "show", "0/0"], ["parked", "ls"]):
        assert main([*words, "--bootstrap", place.bootstrap, "--namespace", "nobodys"]) == 1
        assert "rocketshim acls" in capsys.readouterr().err


def test_no_command_shows_a_none_where_there_is_nothing(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a group that has never done anything, and of records without key, value, headers and target."""
    names, group = place.names, place.group
    layout = Layout(names, DelayLevels.default())
    provision.ensure_topics(place.admin, [layout.redrive_log(), layout.group_log(group)])
    verbs: list[list[str]] = [
        ["group", "members", group], ["group", "locks", group], ["group", "release", group, "orders/0"],
        ["group", "subscriptions", group], ["dlq", "stats", "--group", group], ["dlq", "ls", "--group", group],
        ["dlq", "plan", "--group", group], ["dlq", "discard", "--group", group], ["dlq", "export", "--group", group],
        ["dlq", "show", "0/0", "--group", group], ["retry", "ls", "--group", group], ["delayed", "ls"],
        ["delayed", "stats"], ["delayed", "show", "2/0"], ["parked", "ls"], ["parked", "show", "0/0"],
        ["parked", "plan", "0/0"], ["trace", f"{place.source}/0/0"], ["doctor"], ["init", "--dry-run"],
    ]  # fmt: skip

    def shown(words: list[str]) -> str:
        main([*words, *place.there])
        out, err = capsys.readouterr()
        return f"{out}{err}"

    for words in verbs:
        told = shown(words)
        assert "None" not in told, words
        assert told or words[1] == "export", words
    assert "the log holds no record" in shown(["group", "members", group])
    main(["group", "lag", group, "--bootstrap", place.bootstrap])
    assert "None" not in capsys.readouterr().err

    producer = KafkaProducer({"bootstrap.servers": place.bootstrap})
    for topic, partition in ((names.schedule, 2), (names.parked, 0), (names.dead_letter(group), 0), (place.source, 0)):
        producer.produce(topic, None, partition=partition)
    assert producer.flush(60) == 0
    for words in verbs:
        told = shown(words).replace("@None", "")
        assert "None" not in told, (words, told)


INTERRUPTED = """
import os, signal, sys
from rocketshim.cli import main
from rocketshim.kafka.topic_reader import TopicReader

real = TopicReader.read

def read(self, topics, **settings):
    for number, message in enumerate(real(self, topics, **settings)):
        if number == 5 and topics == [sys.argv[1]]:
            os.kill(os.getpid(), signal.SIGINT)
        yield message

TopicReader.read = read
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("words", [["ls"], ["stats"], ["export"], ["plan", "--out"], ["discard", "--out"]])
def test_ctrl_c_while_reading_leaves_things_as_they_were(place: Place, words: list[str], tmp_path: Path) -> None:
    for number in range(10):
        place.write(place.names.dead_letter(place.group), uniq_key=f"m{number}", fail_class="Timeout")
    out = [str(tmp_path / "plan.json")] if "--out" in words else []
    command = ["dlq", *words, *out, "--group", place.group, *place.there]
    before = sorted(place.admin.list_topics(timeout=60).topics)
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, place.names.dead_letter(place.group), *command],
        check=False, timeout=120, env=os.environ, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "")
    assert list(tmp_path.iterdir()) == [], "no half plan"
    assert sorted(place.admin.list_topics(timeout=60).topics) == before


def test_exit_codes(place: Place, run: Run, tmp_path: Path) -> None:
    """0 fine, 1 it could not be done, 2 a finding: of each group of commands, as far as it can end so."""
    names, there, group = place.names, place.there, place.group
    dead = place.write(names.dead_letter(group), uniq_key="m1", fail_class="Timeout", retry_topic=place.source)
    place.write(names.parked, park_reason="forbidden-target")
    plan = str(tmp_path / "plan.json")
    for words, code in [
        (["dlq", "stats", "--group", group], 0), (["dlq", "ls", "--group", group], 0),
        (["dlq", "show", "m1", "--group", group], 0), (["dlq", "show", "m2", "--group", group], 2),
        (["dlq", "ls"], 1), (["dlq", "ls", "--group", "nobody"], 1),
        (["dlq", "ls", "--group", group, "--since", "x"], 1),
        (["dlq", "plan", "--group", group, "--out", plan], 0), (["dlq", "apply", "nowhere.json"], 1),
        (["retry", "ls", "--group", group], 0), (["retry", "show", "m1", "--group", group], 2),
        (["topic", "show", place.source, "0/99"], 2),
        (["retry", "ls", "--group", "nobody"], 1),
        (["trace", dead], 0), (["trace", "m2"], 2), (["trace", "a/b/c"], 1),
        (["delayed", "ls"], 0), (["delayed", "stats"], 0), (["delayed", "show", "0/0"], 2),
        (["delayed", "show", "x"], 2),
        (["parked", "ls"], 0), (["parked", "show", "0/0"], 0), (["parked", "show", "0/9"], 2),
        (["parked", "show", "x"], 2),
        (["parked", "plan"], 1), (["parked", "plan", "0/0"], 2),
        (["group", "subscriptions", group], 2), (["group", "locks", group], 1), (["group", "members", group], 1),
        (["init", "--group", group, "--dry-run"], 0), (["init", "--partitions", "3"], 1),
        (["send", place.source, "x"], 0), (["send", place.source, "x", "--property", "x"], 1),
        (["doctor", "--topic", "nowhere"], 2),
    ]:  # fmt: skip
        run(*words, *there, code=code)
    apply = ["dlq", "apply", plan, "--bootstrap", place.bootstrap]
    assert "sent: 1" in run(*apply)
    run("acls", "--role", "consumer", code=1)
    run("acls", "--role", "worker")
    run("group", "lag", "nobody", "--bootstrap", place.bootstrap, code=2)
    run("group", "lag", "nobody", "--bootstrap", place.bootstrap, "--every", "x", code=1)

"""Apply plans on the in-memory Kafka: each letter is sent once, whatever fails and whichever redrive interferes."""

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketshim.admin.redrive import Journal, Redriver, read_log
from rocketshim.core.redrive_progress import RedriveProgress
from rocketshim.errors import ConfigError, MalformedRecordError, NotAuthorizedError, RedriveError, TopicMissingError
from rocketshim.kafka.clients import Clients
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim.testing.consumer import InMemoryConsumer
from rocketshim.testing.producer import InMemoryProducer
from rocketshim_topics import OutgoingRecord
from rocketshim_topics.redrive_log import MarkRecord, RedriveLog, decode_redrive_record, record_digest
from rocketshim_topics.redrive_plan import PlannedLetter

LOG, DLQ, TARGET = "rmq.redrive", "dlq", "retry"


class DiedError(Exception):
    """The process has died."""


class Stage:
    """A dead-letter topic with two partitions, its target, the redrive log, and a way to apply plans."""

    def __init__(self, count: int, *, keys: int = 5) -> None:
        self.clock = VirtualClock()
        self.made: list[Any] = []
        self.kafka = InMemoryKafka(self.clock)
        self.kafka.create_topic(LOG, config={"message.timestamp.type": "LogAppendTime"})
        self.kafka.create_topic(DLQ, 2)
        self.kafka.create_topic(TARGET, 3)
        for number in range(count):
            self.kafka.append(DLQ, b"%d" % number, key=b"k%d" % (number % keys), partition=number % 5 % 2)
        self.letters = [
            PlannedLetter(record.partition() or 0, record.offset() or 0, record_digest(record), TARGET, "", "")
            for record in self.kafka.records(DLQ)
        ]

    def run(self, plan: str = "p", *, make: Callable[..., Any] | None = None, **settings: Any) -> RedriveProgress:
        own = {name: settings.pop(name) for name in ("rate_per_s", "most", "stop_ratio") if name in settings}
        progress = RedriveProgress(settings.pop("letters", self.letters), **own)
        redriver = self.redriver(progress, plan, make=make, **settings)
        try:
            redriver.run()
        finally:
            redriver.close()
        return progress

    def redriver(
        self, progress: RedriveProgress, plan: str = "p", *, make: Callable[..., Any] | None = None, **settings: Any
    ) -> Redriver:
        in_log = {name: settings.pop(name) for name in ("again", "log_end", "by") if name in settings}
        return Redriver(
            "memory:1",
            Journal(LOG, source=DLQ, plan=plan, state="redriven", **in_log),
            progress,
            make=make or (lambda record, _: OutgoingRecord(TARGET, None, record.key(), record.value(), [])),
            clients=self.clients,
            clock=self.clock,
            wait=lambda seconds: self.clock.advance(seconds * 1_000),
            **settings,
        )

    @property
    def clients(self) -> Clients:
        return Clients(consumer=self._keep(self.kafka.consumer), producer=self._keep(self.kafka.producer))

    def _keep(self, make: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
        def keep(config: dict[str, Any]) -> Any:
            self.made.append(make(config))
            return self.made[-1]

        return keep

    def die(self) -> None:
        """Kill the process of every client; its later calls have no effect."""
        for client in self.made:
            self.kafka.kill(client)
            for call in ("abort_transaction", "purge", "flush", "unassign", "close"):
                setattr(client, call, lambda *_: 0)
        raise DiedError

    @property
    def arrived(self) -> Counter[bytes]:
        return Counter(record.value() for record in self.kafka.records(TARGET))

    def everything_once(self) -> bool:
        per_key: dict[bytes, list[int]] = {}
        for record in self.kafka.records(TARGET):
            per_key.setdefault(record.key() or b"", []).append(int(record.value() or b""))
        in_order = all(numbers == sorted(numbers) for numbers in per_key.values())
        return in_order and self.arrived == {record.value(): 1 for record in self.kafka.records(DLQ)}


def failing(code: int, *, fatal: bool = False, abort: bool = False) -> KafkaError:
    return KafkaError(code, "ordered", fatal, False, abort)  # noqa: FBT003 - its signature takes positional flags


def test_all_letters_are_sent_once_and_a_second_run_sends_nothing() -> None:
    stage = Stage(1_200)
    assert stage.run().sent == 1_200
    assert stage.everything_once()
    again = stage.run()
    assert (again.sent, again.settled) == (0, 1_200)
    other = stage.run("another plan")
    assert (other.sent, other.settled) == (0, 1_200), "letters that another plan has sent are not sent again"
    assert stage.everything_once()
    assert stage.run("again", again=True).sent == 1_200
    assert stage.run("again", again=True).sent == 0


def log_of(stage: Stage) -> RedriveLog:
    with TopicReader("memory:1", clients=stage.clients) as reader:
        return read_log(reader, LOG, DLQ)


def test_a_plan_is_not_applied_again_when_marks_since_it_was_made_are_gone() -> None:
    stage = Stage(20)
    assert stage.run().sent == 20
    stage.kafka.truncate(LOG, before_offset=3)
    for again in (False, True):
        with pytest.raises(RedriveError, match=r"begins at offset 3.*Make a new plan"):
            stage.run(again=again)
    with pytest.raises(RedriveError, match="begins at offset 3"):
        stage.redriver(RedriveProgress(stage.letters)).dry_run()
    assert stage.everything_once()
    assert stage.run("newer", log_end=log_of(stage).end, again=True).sent == 20
    assert stage.run("newer", log_end=log_of(stage).end, again=True).sent == 0


def test_a_plan_is_not_applied_when_the_log_was_created_again_since_it_was_made() -> None:
    stage = Stage(20)
    stage.run()
    end = log_of(stage).end
    stage.kafka.delete_topic(LOG)
    with pytest.raises(RedriveError, match="it was created again"):
        stage.redriver(RedriveProgress(stage.letters), log_end=end).dry_run()
    stage.kafka.create_topic(LOG, config={"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(RedriveError, match="it was created again"):
        stage.run("p", log_end=end)


def test_discarding_needs_no_marks_and_ends_the_doubt() -> None:
    stage = Stage(20)
    stage.run()
    stage.clock.advance(10_000)
    stage.kafka.truncate(LOG, before_offset=10**6)
    log = log_of(stage)
    assert all(log.may_have_lost(record) for record in stage.kafka.records(DLQ))
    redriver = Redriver(
        "memory:1", Journal(LOG, source=DLQ, plan="d", state="discarded"), RedriveProgress(stage.letters),
        make=lambda *_: None, clients=stage.clients, clock=stage.clock,
    )  # fmt: skip
    redriver.run()
    redriver.close()
    log = log_of(stage)
    assert all(log.settled_record(record) is not None for record in stage.kafka.records(DLQ))
    stage.clock.advance(120_000)
    later = stage.kafka.append(DLQ, b"later")
    assert not log_of(stage).may_have_lost(later)


@pytest.mark.parametrize("ahead_ms", [-86_400_000, 7_200_000, 86_400_000])
def test_letters_are_sent_at_the_brokers_time_whatever_the_clock_of_the_machine(ahead_ms: int) -> None:
    stage = Stage(600)
    stage.kafka.set_leader_clock(-ahead_ms)
    progress = stage.run()
    assert (progress.sent, progress.failed) == (600, 0)
    assert stage.everything_once()
    for record in stage.kafka.records(TARGET):
        assert 0 <= stage.clock.wall_ms() - ahead_ms - record.timestamp()[1] < 60_000


def test_the_producer_is_connected_before_it_begins_transactions_and_asks_for_no_topic_that_may_be_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    list_topics = InMemoryProducer.list_topics

    def list_noted(producer: InMemoryProducer, topic: str, timeout: float) -> Any:
        asked.append(topic)
        return list_topics(producer, topic, timeout)

    monkeypatch.setattr(InMemoryProducer, "list_topics", list_noted)
    Stage(5).run()
    assert asked[:2] == [LOG, LOG]
    assert DLQ not in asked


def test_a_redrive_that_is_stopped_ends_its_transaction_and_names_the_user_in_the_log() -> None:
    stage = Stage(1_200)
    progress = RedriveProgress(stage.letters)
    redriver = stage.redriver(progress, report=lambda _: progress.stop() if progress.sent else None, by="ada")
    redriver.run()
    redriver.close()
    assert (progress.sent, progress.waiting, progress.stopped_by) == (500, 700, "user")
    with TopicReader("memory:1", clients=stage.clients) as reader:
        begin = read_log(reader, LOG, DLQ).last_begin
    assert begin is not None
    assert begin.by == "ada"
    assert stage.run().sent == 700
    assert stage.everything_once()


@settings(deadline=None)
@given(
    deaths=st.lists(
        st.tuples(st.sampled_from(["produced", "committed"]), st.integers(1, 4), st.integers(0, 2)), max_size=4
    )
)
def test_each_letter_is_sent_once_and_in_order_wherever_a_process_dies(deaths: list[tuple[str, int, int]]) -> None:
    stage = Stage(60)
    for point, nth, fault in deaths:
        passed: list[str] = []

        def die(name: str, point: str = point, nth: int = nth, passed: list[str] = passed) -> None:
            passed.append(name)
            if passed.count(point) == nth:
                stage.die()

        if fault:
            is_applied = fault == 2
            stage.kafka.fail_transaction(failing(KafkaError._TIMED_OUT), count=1, applied=is_applied)
        with contextlib.suppress(DiedError):
            stage.run(report=die, rate_per_s=20)
    last = stage.run(rate_per_s=20)
    assert last.waiting == last.failed == 0
    assert stage.everything_once()


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize(
    "error", [failing(KafkaError._TIMED_OUT), failing(KafkaError._STATE, abort=True), failing(KafkaError._TRANSPORT)]
)
def test_the_log_decides_whether_an_uncertain_commit_succeeded(error: KafkaError, applied: bool) -> None:
    stage = Stage(30)
    passed: list[str] = []

    def spoil(name: str) -> None:
        passed.append(name)
        if passed == ["produced"]:
            stage.kafka.fail_transaction(error, applied=applied)

    progress = stage.run(report=spoil, rate_per_s=10)
    assert (progress.sent, progress.waiting) == (30, 0)
    assert stage.everything_once()


@pytest.mark.parametrize("topic", [TARGET, LOG], ids=["letters", "mark"])
def test_a_transaction_with_a_record_that_is_reported_without_an_offset_is_done_again(topic: str) -> None:
    stage = Stage(20)
    begin = topic == LOG

    def make(record: Any, _: Any) -> OutgoingRecord:
        nonlocal begin
        if begin:  # the log has our beginning, what comes next is the mark
            stage.kafka.fail_produce(None, topic=LOG)
            begin = False
        return OutgoingRecord(TARGET, None, record.key(), record.value(), [])

    if not begin:
        stage.kafka.fail_produce(None, topic=TARGET, count=3)
    assert stage.run(make=make).sent == 20
    assert stage.everything_once()
    assert stage.run().settled == 20


def test_a_fenced_redrive_stops_and_names_the_other_one() -> None:
    stage = Stage(30)
    begun = iter([True])

    def interfere(name: str) -> None:
        if name == "produced" and next(begun, False):
            stage.run("other")

    with pytest.raises(RedriveError, match="plan other"):
        stage.run(report=interfere, rate_per_s=10)
    assert stage.everything_once()


@pytest.mark.parametrize("applied", [True, False])
def test_our_own_begin_with_an_uncertain_commit_is_not_mistaken_for_another_redrive(applied: bool) -> None:
    stage = Stage(30)
    stage.run("earlier", most=10)
    stage.kafka.fail_transaction(failing(KafkaError._TIMED_OUT), applied=applied)
    progress = stage.run(rate_per_s=10)
    assert (progress.sent, progress.settled) == (20, 10)
    assert stage.everything_once()


def test_a_redrive_gives_up_if_the_cluster_keeps_failing() -> None:
    stage = Stage(3)
    stage.kafka.fail_transaction(failing(KafkaError._TIMED_OUT), count=1_000)
    with pytest.raises(RedriveError, match=r"no transaction could be committed in 5 attempts .* nothing of dlq"):
        stage.run()
    assert stage.arrived == Counter()


def test_a_cluster_that_fails_in_the_middle_is_not_said_to_lack_transactions() -> None:
    stage = Stage(3)

    def fail(step: str) -> None:
        if step == "resumed":
            stage.kafka.fail_transaction(failing(KafkaError._TIMED_OUT), count=1_000)

    with pytest.raises(RedriveError, match="cannot continue after 5 attempts"):
        stage.run(report=fail)


def test_a_slow_cluster_gets_more_time_and_smaller_transactions_and_these_grow_again() -> None:
    stage, given_ms = Stage(1_000), []
    make = stage.kafka.producer

    def noted(config: Mapping[str, Any]) -> InMemoryProducer:
        given_ms.append(config["transaction.timeout.ms"])
        assert config["delivery.timeout.ms"] == config["transaction.timeout.ms"]
        return make(config)

    stage.kafka.producer = noted  # type: ignore[method-assign]
    stage.kafka.fail_transaction(failing(KafkaError._TIMED_OUT), count=3)
    assert stage.run().sent == 1_000
    assert given_ms == [15_000, 30_000, 60_000, 60_000]
    marks = [decode_redrive_record(record.value()) for record in stage.kafka.records(LOG)]
    assert [len(mark.letters) for mark in marks if isinstance(mark, MarkRecord)] == [7, 15, 31, 62, 125, 250, 500, 10]
    assert stage.everything_once()


@pytest.mark.parametrize(
    "code",
    [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED],
)
def test_a_missing_acl_ends_the_redrive_immediately(code: int) -> None:
    stage = Stage(3)
    stage.kafka.fail_transaction(failing(code, abort=True))
    with pytest.raises(NotAuthorizedError, match="; 0 letters were sent in this run"):
        stage.run()
    assert stage.run().sent == 3
    assert stage.everything_once()


def test_letters_that_are_gone_changed_or_unsendable_fail_and_the_others_are_sent() -> None:
    stage = Stage(40)
    stage.kafka.truncate(DLQ, 0, before_offset=2)
    changed = stage.letters[-1]._replace(digest="f" * 16)
    refused = stage.letters[-2]

    def make(record: Any, letter: PlannedLetter) -> OutgoingRecord:
        if letter == refused:
            raise MalformedRecordError("by-reference", "no body")
        return OutgoingRecord(TARGET, None, record.key(), record.value(), [])

    progress = stage.run(letters=[*stage.letters[:-1], changed], make=make)
    assert progress.failures == {"gone": 2, "changed": 1, "by-reference": 1}
    assert progress.sent == 36 == stage.arrived.total()


def test_a_letter_that_is_too_large_fails_alone() -> None:
    stage = Stage(40)
    stage.kafka.create_topic("small", config={"max.message.bytes": "500"})

    def make(_: Any, letter: PlannedLetter) -> OutgoingRecord:
        return OutgoingRecord("small", None, None, b"x" * (1_000 if letter.offset == 3 else 1), [])

    progress = stage.run(make=make)
    assert progress.failures == {"refused:MSG_SIZE_TOO_LARGE": 2}
    assert progress.sent == len(stage.kafka.records("small")) == 38


def test_many_letters_that_are_too_large_need_few_sessions() -> None:
    """A session fences the topic and reads the log, so a redrive must not need one session for each refused letter."""
    stage = Stage(400, keys=400)
    stage.kafka.create_topic("small", config={"max.message.bytes": "500"})
    asked: list[str] = []

    def make(record: Any, _: PlannedLetter) -> OutgoingRecord:
        number = int(record.value())
        size = 1_000 + number % 7 * 100 if number % 3 == 0 or number > 300 else 1
        return OutgoingRecord("small", None, record.key(), b"x" * size, [("n", record.value())])

    progress = stage.run(make=make, stop_ratio=1, report=asked.append)
    bad = len([number for number in range(400) if number % 3 == 0 or number > 300])
    assert progress.failures == {"refused:MSG_SIZE_TOO_LARGE": bad}
    assert progress.sent == len(stage.kafka.records("small")) == 400 - bad
    begun = [record for record in stage.kafka.records(LOG) if b'"begin"' in (record.value() or b"")]
    assert len(begun) <= 9, "one session finds a refusal, at most seven (one per size) follow, and one ends it"
    assert sum(step in {"produced", "committed"} for step in asked) < 60, (
        "a letter as large as a refused one is not sent"
    )


def test_many_letters_for_a_missing_topic_need_few_sessions() -> None:
    stage = Stage(100, keys=100)

    def make(record: Any, _: PlannedLetter) -> OutgoingRecord:
        topic = "deleted" if int(record.value()) % 2 else TARGET
        return OutgoingRecord(topic, None, record.key(), record.value(), [])

    progress = stage.run(make=make, stop_ratio=1)
    ((reason, count),) = progress.failures.items()
    assert (reason.startswith("refused:"), count, progress.sent) == (True, 50, 50)
    begun = [record for record in stage.kafka.records(LOG) if b'"begin"' in (record.value() or b"")]
    assert len(begun) <= 3, "one session finds a refusal, the next one names it, the last one sends the rest"


def test_many_letters_without_a_key_for_a_compacted_topic_need_few_sessions() -> None:
    stage = Stage(100, keys=100)
    stage.kafka.create_topic("compacted", config={"cleanup.policy": "compact"})

    def make(record: Any, _: PlannedLetter) -> OutgoingRecord:
        key = record.key() if int(record.value()) % 2 else None
        return OutgoingRecord("compacted", None, key, record.value(), [])

    progress = stage.run(make=make, stop_ratio=1)
    assert (progress.failures, progress.sent) == ({"refused:INVALID_RECORD": 50}, 50)
    begun = [record for record in stage.kafka.records(LOG) if b'"begin"' in (record.value() or b"")]
    assert len(begun) <= 3, "one session finds a refusal, the next one names it, the last one sends the rest"


@pytest.mark.parametrize("refused", [True, False])
def test_later_letters_wait_behind_a_failed_one_with_the_same_key(refused: bool) -> None:
    stage = Stage(30)
    stage.kafka.create_topic("small", config={"max.message.bytes": "500"})
    is_fixed = False

    def make(record: Any, letter: PlannedLetter) -> OutgoingRecord:
        is_bad = not is_fixed and record.value() == b"6"
        if is_bad and not refused:
            raise MalformedRecordError("source-gone", f"{letter.offset}")
        headers: list[Any] = [("x", b"x" * 1_000)] if is_bad else []
        return OutgoingRecord("small", None, record.key(), record.value(), headers)

    first = stage.run(make=make, stop_ratio=0.5)
    reason = "refused:MSG_SIZE_TOO_LARGE" if refused else "source-gone"
    assert first.failures == {reason: 1, "behind-failed": 4}, "11, 16, 21 and 26 have the key of 6"
    is_fixed = True
    assert stage.run(make=make).sent == 5
    of_its_key = [record.value() for record in stage.kafka.records("small") if record.key() == b"k1"]
    assert of_its_key == [b"1", b"6", b"11", b"16", b"21", b"26"]


@settings(deadline=None)
@given(
    refused=st.sets(st.integers(0, 39), max_size=4),
    unsendable=st.sets(st.integers(0, 39), max_size=4),
    rate_per_s=st.none() | st.integers(3, 15),
)
def test_each_letter_is_sent_once_in_the_order_of_its_key_after_failures_are_fixed(
    refused: set[int], unsendable: set[int], rate_per_s: int | None
) -> None:
    stage = Stage(40)
    stage.kafka.create_topic("small", config={"max.message.bytes": "500"})
    is_fixed = False

    def make(record: Any, letter: PlannedLetter) -> OutgoingRecord:
        number = int(record.value())
        if number in unsendable and not is_fixed:
            raise MalformedRecordError("source-gone", f"{letter.offset}")
        headers: list[Any] = [("x", b"x" * 1_000)] if number in refused and not is_fixed else []
        return OutgoingRecord("small", None, record.key(), record.value(), headers)

    first = stage.run(make=make, stop_ratio=1, rate_per_s=rate_per_s)
    bad = refused | unsendable
    behind = {number for number in range(40) if any(each % 5 == number % 5 and each < number for each in bad)}
    assert first.failed == len(bad | behind)
    assert len(behind - bad) <= first.failures["behind-failed"] <= len(behind - unsendable), "refused: either"
    assert first.sent == 40 - len(bad | behind)
    is_fixed = True
    assert stage.run(make=make).sent == len(bad | behind)
    arrived = [int(record.value() or b"") for record in stage.kafka.records("small")]
    assert sorted(arrived) == list(range(40))
    for key in range(5):
        of_its_key = [number for number in arrived if number % 5 == key]
        assert of_its_key == sorted(of_its_key)


def test_nothing_waits_for_a_letter_that_can_never_be_sent() -> None:
    stage = Stage(30)
    changed = [stage.letters[0]._replace(digest="f" * 16), *stage.letters[1:]]
    assert stage.run(letters=changed).sent == 29


@pytest.mark.parametrize("rate_per_s", [None, 5.0])
def test_twenty_bad_letters_before_many_good_ones_do_not_stop_the_redrive(rate_per_s: float | None) -> None:
    stage = Stage(400, keys=400)
    bad = set(stage.letters[:20])

    def make(record: Any, letter: PlannedLetter) -> OutgoingRecord:
        if letter in bad:
            raise MalformedRecordError("by-reference", "no body")
        return OutgoingRecord(TARGET, None, None, record.value(), [])

    progress = stage.run(make=make, rate_per_s=rate_per_s)
    assert (progress.stopped_by, progress.sent) == (None, 380)


def test_too_many_failures_stop_the_redrive_and_the_other_letters_keep_waiting() -> None:
    stage = Stage(100)

    def make(record: Any, letter: PlannedLetter) -> OutgoingRecord:
        raise MalformedRecordError("by-reference", f"{record.offset()} {letter.offset}")

    progress = stage.run(make=make)
    assert (progress.stopped_by, progress.failed, progress.sent) == ("failures", 11, 0)


@pytest.mark.parametrize("name", ["REPLAY_ID", "USER.REPLAY_ID"])
def test_a_redrive_stops_if_its_letters_are_dead_again(name: str) -> None:
    stage = Stage(100)
    offsets = iter(range(100))

    def die_again(point: str) -> None:
        if point == "committed":
            for plan in ("p", "other"):
                stage.kafka.append(DLQ, headers=[(name, f"{plan}.0.{next(offsets) // 2}".encode())])

    progress = stage.run(rate_per_s=5, report=die_again)
    assert (progress.stopped_by, progress.sent, progress.dead_again) == ("failures", 20, 3)


def test_letters_that_are_dead_again_also_stop_a_redrive_without_a_rate() -> None:
    stage = Stage(1_200)

    def die_again(point: str) -> None:
        if point == "committed":
            for letter in stage.letters[:60]:
                stage.kafka.append(DLQ, headers=[("REPLAY_ID", f"p.{letter.partition}.{letter.offset}".encode())])

    progress = stage.run(report=die_again)
    assert (progress.stopped_by, progress.sent, progress.dead_again) == ("failures", 500, 51)


def test_a_redrive_respects_its_rate_and_its_maximum() -> None:
    stage = Stage(100)
    began_ns = stage.clock.monotonic_ns()
    progress = stage.run(rate_per_s=10, most=35)
    assert (progress.sent, progress.stopped_by) == (35, "most")
    assert stage.clock.monotonic_ns() - began_ns >= 3_000_000_000
    assert stage.run().sent == 65
    assert stage.everything_once()


def test_a_dry_run_sends_nothing_and_finds_the_same_failures() -> None:
    stage = Stage(10)
    changed = [stage.letters[0]._replace(digest="f" * 16), *stage.letters[1:]]
    progress = RedriveProgress(changed)
    redriver = Redriver(
        "memory:1", Journal(LOG, source=DLQ, plan="p", state="redriven"), progress, make=lambda record, _: record,
        clients=stage.kafka.clients(),
    )  # fmt: skip
    redriver.dry_run()
    redriver.close()
    assert (progress.failures, progress.waiting) == ({"changed": 1}, 9)
    assert stage.kafka.records(LOG) == []
    assert stage.arrived == Counter()


@pytest.mark.parametrize("setting", ["transaction.timeout.ms", "delivery.timeout.ms", "message.timeout.ms"])
def test_a_time_limit_of_the_redrive_is_refused_not_ignored(setting: str) -> None:
    stage = Stage(1)
    with pytest.raises(ConfigError, match=f"'{setting}' must be 15000 here"):
        stage.redriver(RedriveProgress(stage.letters), client={setting: "900000"})


def test_a_dry_run_reads_no_further_than_a_run_with_the_same_maximum() -> None:
    stage = Stage(100)
    changed = [*stage.letters[:-1], stage.letters[-1]._replace(digest="f" * 16)]
    progress = RedriveProgress(changed, most=10)
    redriver = stage.redriver(progress)
    redriver.dry_run()
    redriver.close()
    assert progress.failures == {}


def test_a_mark_waits_while_the_clients_queue_is_full() -> None:
    stage = Stage(100)
    assert stage.run(client={"queue.buffering.max.messages": 10}).sent == 100
    assert stage.everything_once()


def test_a_forged_replay_id_with_thousands_of_digits_is_ignored() -> None:
    stage = Stage(100)
    forged = [("REPLAY_ID", b"p.0." + b"9" * 5_000)]

    def forge(_: str) -> None:
        if len(stage.kafka.records(DLQ)) == 100:
            stage.kafka.append(DLQ, b"forged", headers=forged)

    assert stage.run(rate_per_s=10, report=forge).sent == 100


def test_discarding_marks_letters_and_sends_nothing() -> None:
    stage = Stage(10)
    assert stage.run(make=lambda _record, _letter: None).sent == 10
    assert stage.arrived == Counter()
    with TopicReader("memory:1", clients=stage.kafka.clients()) as reader:
        log = read_log(reader, LOG, DLQ)
        assert all(log.settled(*letter[:3]) is not None for letter in stage.letters)
        assert read_log(reader, "no-such-topic", DLQ).last_begin is None
        other = read_log(reader, LOG, "dlq-of-another-group")
        assert not other.has_marks(), "what is not asked for is not kept in memory"


def test_a_log_that_takes_minutes_to_read_does_not_stop_a_redrive(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, consume = Stage(5), InMemoryConsumer.consume
    for _ in range(5_000):
        stage.kafka.append(LOG, b"{}")

    def slowly(self: InMemoryConsumer, *arguments: Any) -> list[Any]:
        found = consume(self, *arguments)
        if any(message.topic() == LOG for message in found):
            stage.clock.advance(20_000)
        return found

    monkeypatch.setattr(InMemoryConsumer, "consume", slowly)
    assert stage.run().sent == 5
    assert stage.everything_once()


def test_an_open_transaction_in_the_log_ends_the_redrive_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, poll = Stage(5), InMemoryConsumer.poll

    def waits(self: InMemoryConsumer, *arguments: Any) -> Any:
        stage.clock.advance(1_000)
        return poll(self, *arguments)

    monkeypatch.setattr(InMemoryConsumer, "poll", waits)
    other = stage.kafka.producer({"transactional.id": "of another topic", "transaction.timeout.ms": 900_000})
    other.init_transactions(10)
    other.begin_transaction()
    other.produce(LOG, b"{}")
    other.flush(10)
    with pytest.raises(RedriveError, match="because a transaction is open in that topic"):
        stage.run()
    assert stage.arrived == {}


def test_a_missing_log_is_an_error() -> None:
    stage = Stage(1)
    stage.kafka.delete_topic(LOG)
    with pytest.raises(TopicMissingError, match="rocketshim init"):
        stage.run()

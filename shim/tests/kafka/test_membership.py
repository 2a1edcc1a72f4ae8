"""A coordinator is asked about its group by a client that is dropped, whatever it answers."""

import gc
import threading
import weakref
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException

from rocketshim.kafka.membership import WorkerWatch, described_groups
from test_support.coordinator import AskedAdmin


def group(*members: Any) -> Any:
    return SimpleNamespace(state=ConsumerGroupState.STABLE, members=list(members))


def test_groups_are_described_by_a_client_that_is_dropped_whatever_it_answers() -> None:
    made: list[Any] = []

    def make() -> AskedAdmin:
        admin = AskedAdmin()
        made.append(weakref.ref(admin))
        asked = admin.describe_consumer_groups

        def describe(groups: list[str], request_timeout: float) -> dict[str, Future[Any]]:
            futures = asked(groups, request_timeout)
            futures["told"].set_result(group())
            futures["refused"].set_exception(KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)))
            return futures

        admin.describe_consumer_groups = describe  # type: ignore[method-assign]
        return admin

    found = described_groups(make, ["told", "refused", "late"], 0.001)
    assert found["told"].state is ConsumerGroupState.STABLE
    assert found["refused"].args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    assert found["late"].args[0].code() == KafkaError._TIMED_OUT
    gc.collect()
    assert made[0]() is None
    assert described_groups(make, [], 0.001) == {}


class Asked:
    """A question whose answers a test gives; `None`: none has arrived."""

    def __init__(self) -> None:
        self.given: Any = None
        self.times = self.dropped = 0
        self.error: Exception | None = None

    def answer(self, now_ms: int) -> Any | None:
        del now_ms
        self.times += 1
        if self.error is not None:
            raise self.error
        return self.given

    def drop_client(self) -> None:
        self.dropped += 1


class Watched:
    def __init__(self) -> None:
        self.asked, self.logged = Asked(), list[int]()
        self.now_ms = 0
        self.watch = WorkerWatch(self.asked, lambda: self.logged.append(self.now_ms))  # type: ignore[arg-type]

    def pass_time(self, until_ms: int, step_ms: int = 100) -> None:
        while self.now_ms < until_ms:
            self.watch.turn(self.now_ms)
            self.now_ms += step_ms


def test_a_missing_worker_is_logged_after_five_seconds_and_every_ten_minutes() -> None:
    here = Watched()
    here.asked.given = group()
    here.pass_time(4_900)
    assert (here.watch.is_missing, here.logged, here.asked.times) == (False, [], 1)
    here.pass_time(1_300_000)
    assert here.watch.is_missing
    assert here.logged == [5_000, 605_000, 1_205_000]
    here.asked.given = group("a worker")
    here.pass_time(1_340_000)
    assert not here.watch.is_missing
    assert here.asked.dropped == here.asked.times, "each answer ends its client"


def test_a_log_handler_may_close_the_watch_that_logs() -> None:
    here = Watched()
    here.asked.given = group()
    here.watch._log = lambda: (here.logged.append(here.now_ms), here.watch.close())  # type: ignore[assignment, return-value]
    here.pass_time(6_000)
    assert here.logged == [5_000]


def test_a_thread_passes_by_while_another_one_turns_the_watch() -> None:
    here = Watched()
    here.asked.given = group("a worker")
    answer, others = here.asked.answer, [threading.Thread(target=here.watch.turn, args=(0,))]

    def answered_late(now_ms: int) -> Any:
        if others:
            other = others.pop()
            other.start()
            other.join()
        return answer(now_ms)

    here.asked.answer = answered_late  # type: ignore[method-assign]
    here.watch.turn(0)
    assert (here.asked.times, others) == (1, [])


def test_a_worker_that_runs_is_asked_for_every_ten_minutes_only() -> None:
    here = Watched()
    here.asked.given = group("a worker")
    here.pass_time(1_199_000)
    assert (here.asked.times, here.logged) == (2, [])


def test_a_hand_over_between_workers_is_no_missing_worker() -> None:
    here = Watched()
    here.asked.given = group()
    here.pass_time(4_000)
    here.asked.given = group("a worker")
    here.pass_time(500_000)
    assert (here.watch.is_missing, here.logged) == (False, [])


def test_without_an_answer_or_a_client_nothing_is_logged_and_it_is_asked_again_after_ten_minutes() -> None:
    for error in (None, KafkaException(KafkaError(KafkaError._INVALID_ARG))):
        here = Watched()
        here.asked.error = error
        here.pass_time(500_000)
        assert (here.watch.is_missing, here.logged) == (False, [])
        assert here.asked.times <= 21, "twice a second for 10 s"
        assert here.asked.dropped == 1
        here.asked.error, here.asked.given = None, group()
        here.pass_time(700_000)
        assert here.watch.is_missing

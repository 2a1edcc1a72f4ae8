"""The last hour of a sampler: what counts, what does not, and how much is kept."""

from rocketshim.observe.history import EVERY_MS, HOUR_MS, History
from rocketshim.observe.snapshot import DelayQueue, GroupStanding, PartitionStanding, Snapshot, TopicSnapshot
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.names import TopicNames

NAMES = TopicNames("")
RETRY, DEAD = NAMES.retry("payments"), NAMES.dead_letter("payments")


def at(
    step: float,
    *,
    positions: tuple[int | None, ...] = (0, 0),
    end: int = 1_000,
    retry_end: int = 0,
    dead: int = 0,
    parked: int = 0,
    waiting: int = 0,
    unknown: tuple[TopicPartitionKey, ...] = (),
) -> Snapshot:
    """A snapshot at a step of 30 s; a position that is None: its leader does not answer."""
    standings = [
        PartitionStanding("orders", number, position, 0, end)
        for number, position in enumerate(positions)
        if position is not None
    ]
    retries = PartitionStanding(RETRY, 0, 0, 0, retry_end)
    queue = PartitionStanding(NAMES.schedule, 0, 0, 0, waiting)
    return Snapshot(
        at_ms=1_000_000 + int(step * EVERY_MS),
        queues=(DelayQueue(0, 1_000, queue),),
        groups=(GroupStanding("payments", partitions=(*standings, retries)),),
        dead=(TopicSnapshot(DEAD, "payments", dead, dead),),
        parked=TopicSnapshot(NAMES.parked, None, parked, parked),
        unknown=unknown,
    )


def history(*snapshots: Snapshot) -> History:
    made = History(NAMES)
    for each in snapshots:
        made.add(each)
    return made


def values(made: History, *of: str) -> list[float]:
    return [value for _, value in made.series(*of)]  # type: ignore[arg-type]


def test_counts_are_given_a_second_or_a_minute_and_the_rest_as_it_is() -> None:
    made = history(
        at(0, positions=(10, 20), retry_end=5, dead=7, parked=1, waiting=4),
        at(1, positions=(40, 50), end=1_100, retry_end=8, dead=9, parked=2, waiting=6),
        at(2, positions=(40, 65), end=1_100, retry_end=8, dead=9, parked=2, waiting=3),
    )
    for group in ((), ("payments",)):
        assert values(made, "read", *group) == [2.0, 0.5]
        assert values(made, "retries", *group) == [6.0, 0.0]
        assert values(made, "dead", *group) == [4.0, 0.0]
        assert values(made, "behind", *group) == [2_118, 2_103]
    assert values(made, "parked") == [2.0, 0.0]
    assert values(made, "waiting") == [6, 3]
    assert made.series("waiting")[0][0] == at(1).at_ms
    assert made.series("read", "other") == []


def test_there_is_one_point_in_30_s_however_often_a_snapshot_is_taken() -> None:
    made = history(*(at(step / 15, positions=(step, 0)) for step in range(46)))
    assert values(made, "read") == [0.5, 0.5, 0.5]


def test_what_comes_or_goes_for_a_while_is_not_counted_as_a_jump() -> None:
    away = TopicPartitionKey(DEAD, 0)
    made = history(
        at(0, positions=(100, 200), dead=50),
        at(1, positions=(100, None), dead=0, unknown=(away,)),
        at(2, positions=(100, 215), dead=50),
        at(3, positions=(130, 215), dead=51),
    )
    assert values(made, "read") == [0.0, 0.0, 1.0]
    assert values(made, "dead") == [0.0, 0.0, 2.0]
    new = Snapshot(at(4).at_ms, groups=(GroupStanding("new", partitions=(PartitionStanding("orders", 0, 9, 0, 9),)),))
    made.add(new)
    assert values(made, "read", "new") == [0.0]
    assert values(made, "read", "payments") == [0.0, 0.0, 1.0]
    assert values(made, "read")[-1] == 0.0


def test_a_group_that_was_set_back_or_a_topic_that_was_made_again_counts_nothing() -> None:
    made = history(at(0, positions=(100, 9), retry_end=70, dead=9), at(1, positions=(0, 9), retry_end=2, dead=0))
    assert (values(made, "read"), values(made, "retries"), values(made, "dead")) == ([0.0], [0.0], [0.0])


def test_what_happened_while_nobody_watched_is_in_no_point() -> None:
    rested = at(41, positions=(1_230, 0))
    made = history(at(0), at(1, positions=(30, 0)), rested, at(42, positions=(1_260, 0)))
    assert values(made, "read") == [1.0, 1.0]
    assert [at_ms for at_ms, _ in made.series("read", since_ms=rested.at_ms)] == [at(42).at_ms]


def test_a_clock_that_was_set_back_begins_again() -> None:
    made = history(at(5), at(6), at(2))
    assert made.series("waiting") == []
    made.add(at(3, waiting=8))
    assert values(made, "waiting") == [8]


def test_no_more_than_an_hour_is_kept_and_its_times_rise() -> None:
    made = history(*(at(step * 1.5) for step in range(300)))
    times = [at_ms for at_ms, _ in made.series("waiting")]
    assert times == sorted(set(times))
    assert times[-1] - times[0] == HOUR_MS
    assert len(times) == 81

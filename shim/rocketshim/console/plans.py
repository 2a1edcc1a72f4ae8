"""Plans: make one, review it, send some, look at the verdict, send the rest.

A button acts on a plan: on partitions, offsets and digests. It never acts on a filter, which could select other
records a minute later.

The verdict shows what became of the dead letters that a plan has sent, by the records in Kafka, so that any process can
find it:

* Sent or discarded: the marks of this plan in the redrive log.
* Dead again: records of the dead-letter topic with this plan's `REPLAY_ID`. They are younger than its first record
  in the redrive log. Both times are the brokers', since this machine's clock may differ.
* Failed again: records with that header that wait in the delay queues for another attempt. With RocketMQ's default
  delays they are dead letters only after 4 h 46 min, so a verdict without them would be wrong until then.
* Read: the group's committed positions in the topics that the plan sends to, against the ends of these topics.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rocketshim.admin.dead_letter_formats import Decoder
from rocketshim.admin.plan_from_topic import make_plan
from rocketshim.admin.redrive import log_records, replay_id_of
from rocketshim.console.context import Console, signature
from rocketshim.console.forms import Form, Selection, decimal, given, whole
from rocketshim.console.reading import BoundedReading, Ending, read_newest
from rocketshim.core.redrive_progress import DEFAULT_STOP_RATIO
from rocketshim.errors import ConfigError, RocketshimError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.observe.snapshot import has_that_group
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.redrive_log import RedriveLog
from rocketshim_topics.redrive_plan import DEFAULT_MAX_REPLAYS, PlannedLetter, RedrivePlan, RedriveRules

__all__ = ["apply", "file", "listed", "make", "progress", "show", "stop"]

_CLOCKS_MS = 60_000  # the clocks of two brokers differ by less


@dataclass(frozen=True, slots=True)
class Behind:
    """How far a group is in a topic that a plan sends to.

    * `offsets`: offsets that it has not read; None: it has committed nothing, its positions cannot be read, or the
      leader of a partition does not answer.
    """

    group: str
    topic: str
    offsets: int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a plan's dead letters.

    * `read`: how the search for both ended; None: nothing was searched (discarded or parked records, or nothing done).
    """

    done: int  # number that this plan has sent or discarded
    elsewhere: int  # number that another plan has sent or discarded
    left: int  # number of the others
    begun_ms: int  # append time of the plan's first record in the redrive log, epoch ms; 0: it was never applied
    dead_again: int = 0  # number that are dead letters again after this plan sent them
    failing: int = 0  # number that failed again after this plan sent them, and wait for another attempt
    read: BoundedReading | None = None
    behind: tuple[Behind, ...] = ()  # the groups that get what was sent
    at_ms: int = 0  # when this was looked up, epoch ms

    @property
    def has_failed(self) -> bool:
        """Return whether something that was sent failed again."""
        return bool(self.dead_again or self.failing)

    @property
    def is_unread(self) -> bool:
        """Return whether a group has still to read something that was sent."""
        return any(each.offsets for each in self.behind)

    @property
    def is_open(self) -> bool:
        """Return whether the verdict may still change: something is not read, or waits for another attempt."""
        return self.is_unread or bool(self.failing)

    @property
    def is_good(self) -> bool:
        """Return whether the groups have handled everything that was sent, and none of it failed again.

        Decides: When does the console call a plan good? Nothing is dead again or waits for another attempt, and each
            group has read what it got.
        """
        is_known = self.read is not None and self.read.ending is Ending.END
        is_read = bool(self.behind) and all(each.offsets == 0 for each in self.behind)
        return is_known and is_read and not self.has_failed


def left_of(console: Console, plan: RedrivePlan) -> int:
    """Return how many dead letters of a plan were neither sent nor discarded."""
    with console.reader() as reader:
        return _marked(console, reader, plan).left


def _marked(console: Console, reader: TopicReader, plan: RedrivePlan) -> Verdict:
    """Return what the redrive log knows of a plan."""
    log, begun_ms = RedriveLog(plan.source), 0
    for at_ms, record in log_records(reader, console.names.redrive_log):
        log.add(record)
        if record is not None and (record.source, record.plan) == (plan.source, plan.id):
            begun_ms = begun_ms or at_ms
    done = elsewhere = 0
    for letter in plan.letters:
        if log.is_done(plan.id, letter.partition, letter.offset):
            done += 1
        elif not plan.rules.again:
            elsewhere += log.settled(letter.partition, letter.offset, letter.digest) is not None
    return Verdict(done, elsewhere, len(plan.letters) - done - elsewhere, begun_ms)


def verdict(console: Console, plan: RedrivePlan) -> Verdict:
    """Read what became of a plan's dead letters."""
    with console.reader() as reader:
        marks = _marked(console, reader, plan)
        if not marks.done or plan.rules.action == "discard" or plan.source == console.names.parked:
            return marks
        # In this order: what leaves a queue after the first look and fails after the second is found by the third.
        waiting_from = _positions(reader, console.names.worker_group, console.names.schedule)
        at_ms, behind = console.now_ms(), _behind(console, reader, plan)
        read = _failed_again(console, reader, plan, waiting_from, max(0, marks.begun_ms - _CLOCKS_MS))
        dead_again = {replay_id_of(record) for record in read.records if record.topic() == plan.source}
        failing = {replay_id_of(record) for record in read.records} - dead_again
        marks = replace(marks, dead_again=len(dead_again), failing=len(failing))
        return replace(marks, read=read, behind=tuple(behind), at_ms=at_ms)


def _failed_again(
    console: Console, reader: TopicReader, plan: RedrivePlan, waiting_from: Mapping[int, int], since_ms: int
) -> BoundedReading:
    """Read the plan's records in the dead-letter topic, and those in the delay queues that have not left yet."""
    prefix, schedule = f"{plan.id}.".encode(), console.names.schedule

    def matching(record: Any) -> bool:
        if not replay_id_of(record).startswith(prefix):
            return False
        return bool(record.topic() == plan.source or record.offset() >= waiting_from.get(record.partition(), 0))

    topics = [plan.source, *([schedule] if reader.topics().get(schedule) else [])]
    return read_newest(reader, topics, matching, console.limits(2 * len(plan.letters)), since_ms=since_ms)


def _behind(console: Console, reader: TopicReader, plan: RedrivePlan) -> list[Behind]:
    """Return the groups whose retry topics get what was sent; a source topic may have any number of groups."""
    prefix = console.names.retry_prefix
    found = []
    for topic, letter in sorted({each.target: each for each in plan.letters if each.target.startswith(prefix)}.items()):
        group = plan.rules.group or _group_of(console, reader, plan, letter)
        found.append(Behind(group, topic, _offsets_behind(reader, group, topic)))
    return found


def _group_of(console: Console, reader: TopicReader, plan: RedrivePlan, letter: PlannedLetter) -> str:
    """Return the group that gets a dead letter: by its retry topic, or by its header if the topic has another name."""
    names = console.names
    shown = letter.target.removeprefix(names.retry_prefix)
    dead_topic = names.dead_letter_prefix + shown
    if has_that_group(names, dead_topic, shown):
        return shown
    message = reader.fetch(plan.source, letter.partition, letter.offset)
    group = None if message is None else Decoder(names, plan.source).open(message).envelope.consumer_group
    return group if group and has_that_group(names, dead_topic, group) else shown


def _offsets_behind(reader: TopicReader, group: str, topic: str) -> int | None:
    positions = _positions(reader, group, topic)
    if not positions:
        return None
    bounds = reader.bounds_of(TopicPartitionKey(topic, number) for number in positions)
    if len(bounds) < len(positions):
        return None
    spans = {key: (max(low, positions[key.partition]), high) for key, (low, high) in bounds.items()}
    unread = reader.first_records(spans)  # nobody reads the mark of a transaction, the last offset of a redrive
    return sum(high - start for key, (start, high) in spans.items() if key in unread)


def _positions(reader: TopicReader, group: str, topic: str) -> dict[int, int]:
    """Return the position of a group in each partition of a topic; empty: it has none, or we may not see it."""
    keys = [TopicPartitionKey(topic, number) for number in range(reader.topics().get(topic, 0))]
    try:
        found = reader.positions(group, keys)
    except RocketshimError:  # our rights may not suffice: the rest of the verdict is still right
        return {}
    return {key.partition: found.get(key, 0) for key in keys} if found else {}


_ON_A_PAGE: Final = 100
_FIRST: Final = 10


def listed(request: Request) -> Response:
    """List the stored plans, the newest first."""
    console = Console.of(request)
    return console.page(request, "plans.html", plans=console.plans.listed(), folder=console.settings.state_dir)


def show(request: Request) -> Response:
    """Show a plan for review: what it sends, what it holds back and why, and how far it is applied."""
    console = Console.of(request)
    plan = _plan(console, request)
    start = max(0, whole(request.query_params, "from") or 0)
    return console.page(
        request,
        "plan.html",
        plan=plan,
        summary=plan.summary(),
        most_causes=_ON_A_PAGE,
        parked_topic=console.names.parked,
        start=start,
        letters=plan.letters[start : start + _ON_A_PAGE],
        rest=max(0, len(plan.letters) - start - _ON_A_PAGE),
        next_start=start + _ON_A_PAGE,
        first=min(_FIRST, len(plan.letters)),
        stop_ratio=DEFAULT_STOP_RATIO,
        command=console.command("dlq apply", str(console.settings.state_dir / f"{plan.id}.json"), namespace=None),
        **_state(console, plan),
    )


def progress(request: Request) -> Response:
    """Show only the state of a plan, for a page that is open already."""
    console = Console.of(request)
    plan = _plan(console, request)
    return console.page(
        request,
        "plan_state.html",
        plan=plan,
        first=min(_FIRST, len(plan.letters)),
        stop_ratio=DEFAULT_STOP_RATIO,
        **_state(console, plan),
    )


def file(request: Request) -> Response:
    """Return a plan's file, for `rocketshim dlq apply`."""
    plan = _plan(Console.of(request), request)
    return Response(
        plan.to_json(),
        media_type="application/json",
        headers={"content-disposition": f'attachment; filename="plan-{plan.id}.json"'},
    )


def make(request: Request, form: Form) -> Response:
    """Read the topic, and store a plan for the selected dead letters."""
    console, topic = Console.of(request), request.path_params["topic"]
    selection = Selection.of(form, console.settings)
    is_discard = form.get("action") == "discard"
    to_source = bool(given(form, "to_source"))
    rules = RedriveRules(
        action="discard" if is_discard else "redrive",
        namespace=console.settings.namespace,
        group=None if to_source or is_discard else given(form, "group"),
        to_source=to_source and not is_discard,
        max_replays=min(whole(form, "max_replays") or DEFAULT_MAX_REPLAYS, 2**31 - 1),
        again=bool(given(form, "again")),
    )
    with console.reader() as reader, console.reader() as sources:
        plan = make_plan(reader, sources, topic, rules, selection.record_filter())
    console.plans.save(plan)
    return RedirectResponse(console.url("plans", plan.id), 303)


def apply(request: Request, form: Form) -> Response:
    """Send dead letters of a plan: the first ones (`most`), or all that are left, if that number was typed.

    A page that shows another number of dead letters that are left (`left`) is old, and its button sends nothing.
    """
    console = Console.of(request)
    plan = _plan(console, request)
    most, left = whole(form, "most"), left_of(console, plan)
    if most is None and whole(form, "count_typed") != left:
        raise ConfigError(f"to send all that are left, go back and type how many these are: {left}")
    if whole(form, "left") not in {None, left}:
        raise ConfigError(f"some were sent since this page was made: {left} are left. Look at the plan again")
    ratio = decimal(form, "stop_ratio")
    console.runs.start(
        plan,
        by=signature(request),
        most=most,
        rate_per_s=decimal(form, "rate"),
        stop_ratio=DEFAULT_STOP_RATIO if ratio is None else ratio,
    )
    return RedirectResponse(console.url("plans", plan.id) + "#state", 303)


def stop(request: Request, form: Form) -> Response:
    """Stop sending; the transaction that is open is finished."""
    del form
    console = Console.of(request)
    plan = _plan(console, request)
    run = console.runs.of(plan.id)
    if run is not None:
        run.progress.stop()
    return RedirectResponse(console.url("plans", plan.id) + "#state", 303)


def _plan(console: Console, request: Request) -> RedrivePlan:
    run = console.runs.of(request.path_params["plan"])
    plan = console.plans.load(request.path_params["plan"]) if run is None else run.plan
    if plan is None:
        raise HTTPException(404, "There is no plan with this id here.")
    return plan


def _state(console: Console, plan: RedrivePlan) -> dict[str, Any]:
    """Return the run of this process, and, when it is over, the verdict by what is in Kafka.

    Whether it is over is asked once: it may end while the page is made.
    """
    run = console.runs.of(plan.id)
    is_running = run is not None and run.is_running
    found: Verdict | None = None if is_running else verdict(console, plan)
    return {"run": run, "is_running": is_running, "verdict": found}

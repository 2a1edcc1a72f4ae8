"""What a doctored history is made with: find something in a sound one, change or drop its lines, add others."""

import base64
import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

from proof.history import Delivery, Source
from proof.index import Index, Stored, queue_of
from proof.lines import End, Line, Record

from .shapes import sound
from .world import Files, as_json, parsed


@cache
def _sound_text(shape: str, seed: int) -> str:
    return json.dumps(sound(shape, seed))


class Doctor:
    """A sound history that is about to be doctored."""

    def __init__(self, shape: str, seed: int) -> None:
        self.files: Files = json.loads(_sound_text(shape, seed))
        self.index = Index(parsed(self.files))
        self.history = self.index.history
        self.names = self.index.names
        self.dice = random.Random(seed)  # noqa: S311 - which line is doctored, no secret
        self._dropped: set[int] = set()

    def finish(self) -> Files:
        kept = {name: [line for line in lines if id(line) not in self._dropped] for name, lines in self.files.items()}
        self.files = kept
        return kept

    # --- lines -------------------------------------------------------------------------------------------------------

    def line(self, source: Source) -> dict[str, Any]:
        return self.files[source.file.removesuffix(".jsonl")][source.line - 1]

    def end_of(self, source: Source) -> dict[str, Any]:
        op = self.line(source)["op"]
        lines = self.files[source.file.removesuffix(".jsonl")]
        return next(line for line in lines if line["type"] in {"ok", "fail", "info"} and line["op"] == op)

    @property
    def setup(self) -> dict[str, Any]:
        return next(line for line in self.files["dump"] if line["type"] == "setup")

    def drop(self, *sources: Source) -> None:
        for source in sources:
            self._dropped.add(id(self.line(source)))

    def drop_call(self, delivery: Delivery) -> None:
        self._dropped.add(id(self.end_of(delivery.source)))
        self.drop(delivery.source)

    def add(self, process: str, line: Line) -> None:
        self.files[process].append(as_json(line))

    # --- records -----------------------------------------------------------------------------------------------------

    def calls(self, record: Stored, group: str | None = None) -> list[Delivery]:
        """The calls for a record, of one group or of all."""
        found = [calls for (_, where), calls in self.index.deliveries.items() if where == record.it.where]
        return [call for calls in found for call in calls if group in {None, call.group}]

    def pick(self, wanted: Callable[[Stored], bool]) -> Stored:
        found = [record for record in self.index.messages() if record.it.committed and wanted(record)]
        assert found, "this history has nothing of the kind"
        return self.dice.choice(found)

    def is_delivered_leaf(self, record: Stored, topic: str = "orders") -> bool:
        """Whether the worker delivered this record, and each group succeeded with it in one call."""
        calls = self.calls(record)
        parent = self.index.records.get(record.envelope.hop_id or "")
        return (
            record.topic == topic and parent is not None and parent.topic == self.names.schedule
            and bool(calls) and all(call.outcome == "ok" for call in calls) and not record.children
            and len(calls) == len({(call.group, call.process) for call in calls})
        )  # fmt: skip

    def is_sent_leaf(self, record: Stored, topic: str = "orders") -> bool:
        """Whether this record was sent, acknowledged, and each group succeeded with it in one call."""
        calls, send = self.calls(record), self.index.sends_by_record.get(record.it.where)
        return (
            record.topic == topic and send is not None and send.outcome == "ok"
            and bool(calls) and all(call.outcome == "ok" for call in calls) and not record.children
            and len(calls) == len({(call.group, call.process) for call in calls})
        )  # fmt: skip

    def is_passed(self, record: Stored, group: str) -> bool:
        return self.index.positions.get((group, queue_of(record.it.where)), (0,))[0] > record.offset

    def free_place(self, queue: str) -> str:
        return f"{queue}/{max((record.offset for record in self.index.queues[queue]), default=0) + 100}"

    def copy_record(self, record: Stored, later_ms: int = 5, **changes: Any) -> Record:
        """Another record like this one, at the end of its queue."""
        line = self.line(record.source) | {
            "where": self.free_place(queue_of(record.it.where)), "ms": record.it.ms + later_ms,
        } | changes  # fmt: skip
        self.files["dump"].append(line)
        fields = {name: value for name, value in line.items() if name != "type"}
        fields["headers"] = tuple((name, value) for name, value in fields.get("headers", ()))
        return Record(**fields)

    def handle(self, like: Delivery, record: Record, later_ns: int = 5_000_000, **changes: Any) -> None:
        """A call that succeeds, like another one, for this record; the group's position moves behind it."""
        fields = {name: value for name, value in self.line(like.source).items() if name != "type"} | {
            "where": record.where, "op": 1_000_000 + len(self.files[like.process]), "at_ns": like.begin_ns + later_ns,
        } | changes  # fmt: skip
        self.files[like.process].append({"type": "invoke", **fields})
        end_ns = fields["at_ns"] + 1_000_000
        self.add(like.process, End(type="ok", op=fields["op"], at_ns=end_ns))

    def repeat(self, like: Delivery, later_ns: int = 50_000_000) -> None:
        """The same call again, successful, after the first one."""
        end_ns = like.end_ns or like.begin_ns
        fields = self.line(like.source) | {
            "op": 1_000_000 + len(self.files[like.process]), "at_ns": end_ns + later_ns,
        }  # fmt: skip
        self.files[like.process].append(fields)
        self.add(like.process, End(type="ok", op=fields["op"], at_ns=end_ns + later_ns + 1_000_000))

    def lower_commits(self, group: str, queue: str, position: int) -> None:
        """Take the group's commits above a position back, as if they had not been made."""
        for source, commit in self.index.commits_by_queue[group, queue]:
            if commit.position > position:
                self.drop(source)
        for call in self.history.commit_calls:
            if call.group == group and call.positions.get(queue, 0) > position:
                del self.line(call.source)["positions"][queue]

    def set_header(self, record: Stored, name: str, value: bytes | None) -> None:
        """Change a header of a record, or remove it (None)."""
        line = self.line(record.source)
        place = [header[0] for header in line["headers"]].index(name)
        if value is None:
            del line["headers"][place]
        else:
            line["headers"][place] = [name, base64.b64encode(value).decode()]

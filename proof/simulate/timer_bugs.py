"""Planted defects of named timers (`bugs`): each function makes a defective attribute from the original."""

from typing import Any

from rocketshim.core.named_timers import Change, Command, Effect, TimerTable
from rocketshim.worker.hop_writer import Action
from rocketshim_topics.wire import decode, read_headers

__all__ = [
    "any_generation_fires",
    "any_half_is_committed",
    "applied_first",
    "cancels_are_ignored",
    "changes_are_forgotten",
    "halves_are_delivered",
    "nothing_is_loaded",
    "questions_end_transactions",
    "state_is_written_first",
    "states_are_saved_or_lost",
    "what_was_unsaved_stays_so",
]


def any_generation_fires(original: Any) -> Any:
    """Let a FIRE count for the generation that is pending."""

    def apply(self: Any, offset: int, command: Command, name: bytes, **named: Any) -> Any:
        if command is Command.FIRE:
            named["generation"] = self.pending(name)
        return original(self, offset, command, name, **named)

    return apply


def cancels_are_ignored(original: Any) -> Any:
    """Let a CANCEL do nothing."""

    def apply(self: Any, offset: int, command: Command, name: bytes, **named: Any) -> Any:
        if command is Command.CANCEL:
            return Change(Effect.NOTHING, None, None)
        return original(self, offset, command, name, **named)

    return apply


def applied_first(command: Command) -> Any:
    """Apply the commands of a kind before the others of a run."""

    def make(original: Any) -> Any:
        def route(self: Any, due: Any, assigned: Any, *values: Any, **named: Any) -> Any:
            owned = assigned.timers
            for record in due.records if owned is not None and owned.table is not None else ():
                is_first = decode(read_headers(record), trusted=True).timer_do == command.value
                judged = self._rules.judge(record)
                if is_first and judged.is_command and record.offset() not in owned.changes:
                    owned.changes[record.offset()] = self._rules.apply(owned.table, record, judged)
            return original(self, due, assigned, *values, **named)

        return route

    return make


def changes_are_forgotten(original: Any) -> Any:
    """Decide again what a command does when it is routed again."""

    def route(self: Any, due: Any, assigned: Any, *values: Any, **named: Any) -> Any:
        if assigned.timers is not None:
            assigned.timers.changes.clear()
        return original(self, due, assigned, *values, **named)

    return route


def nothing_is_loaded(_: Any) -> Any:
    """Begin without the names that are pending."""
    return lambda self, *values, **named: (TimerTable(), 0, [])  # noqa: ARG005


def halves_are_delivered(original: Any) -> Any:
    """Deliver a half message when it is due, as any named message."""

    def apply(self: Any, offset: int, command: Command, name: bytes, **named: Any) -> Any:
        return original(self, offset, command, name, **named | {"checks_left": None})

    return apply


def questions_end_transactions(original: Any) -> Any:
    """Forget a half message when its producers are asked."""

    def apply(self: Any, offset: int, command: Command, name: bytes, **named: Any) -> Any:
        change = original(self, offset, command, name, **named)
        if change.effect is not Effect.ASK:
            return change
        self._put(name, None, None)
        return Change(Effect.ASK, change.before, None)

    return apply


def any_half_is_committed(original: Any) -> Any:
    """Deliver the oldest half message that is kept, of whatever transaction."""

    def is_read(self: Any, owned: Any, run: Any, offset: int, *of: Any) -> Any:
        found = original(self, owned, run, offset, *of)
        if found and owned.halves:
            owned.messages[offset] = owned.messages[offset][0], next(iter(owned.halves.values()))
        return found

    return is_read


def state_is_written_first(original: Any) -> Any:
    """At least once, write the state of a name before what its command does."""

    def send(self: Any, flight: Any, indexes: Any, now_ns: int, *values: Any, **named: Any) -> None:
        if flight.assigned.timers is not None and not flight.is_later:
            producer = self._producers.of(one_per_batch=False, targets=self._targets)
            for group in self._router.route(flight.due, flight.assigned, now_ns, indexes):
                for _, value, key, headers, _ in group.records if group.action is Action.STATE else ():
                    producer.produce(group.topic, value, key, group.partition, headers=headers)
        original(self, flight, indexes, now_ns, *values, **named)

    return send


def states_are_saved_or_lost(original: Any) -> Any:
    """Exactly once, keep no state that its own transaction does not save."""

    def keep(self: Any, transaction: Any, _: Any) -> None:
        original(self, transaction, ())

    return keep


def what_was_unsaved_stays_so(original: Any) -> Any:
    """Do not store the states that the owner before has not stored."""

    def read_state(self: Any, *values: Any, **named: Any) -> Any:
        return *original(self, *values, **named)[:2], []

    return read_state

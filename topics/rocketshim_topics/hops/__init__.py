"""How each next record of a message is made: one pure function per hop, for senders, worker, consumers and tools.

::

    source_record ────────────────────────────────► source topic
    delayed_record ──► schedule ── hopped ──► schedule ── delivered ──► target (source topic or retry topic)
                          ├── retried_target ─► schedule      (the target did not accept it)
                          └── parked ─────────► rmq.parked    (undeliverable or malformed)
    listener fails:  retry ──► schedule ── delivered ──► retry topic ── retry ──► …
                     dead_letter, dead_letter_by_reference ──► dead-letter topic ── redriven ──► retry or source topic
    member cannot handle it:  sent_on ──► schedule ── delivered ──► retry topic
    with a name:  delayed_record ──► timers ── scheduled_timer ──► schedule ── fire ──► timers ── delivered ──► target
    of a transaction:  the same, and timers ── check ──► check topic of the producer group

Rules for all hops:

* A hop is made from the record *as fetched*. Key, value (None is not `b""`) and user headers pass byte for byte.
* Identity is filled in, never invented. A record without `UNIQ_KEY` gets the coordinates of the record that the hop is
  made from, a record without `BORN_TIMESTAMP` that record's timestamp. Making the same hop again gives the same
  identity.
* `HOP_ID` is the coordinates of the record that the hop is made from. Failure headers are replaced, so that a record
  does not grow. `sent_on` keeps them: nobody has tried the message.
* Scheduling headers and `TARGET_TRIES` exist on the schedule topic only, and on parked records, which are kept as they
  were. On a source or target topic a record has its identity and `HOP_ID`, and no other header of the shim. `SHIM` is
  written on the shim's own topics.
* A hop that its record does not determine raises `MalformedRecordError`. Then `parked` is the next hop.

The caller chooses the lane and partition of the schedule topic and passes the time. Nothing here reads a clock or
changes its arguments.
"""

from rocketshim_topics.hops.deliver import clock_probe, delivered, due_at_ms, due_ms, hopped, is_probe, retried_target
from rocketshim_topics.hops.fail import (
    BY_REFERENCE,
    MAX_FAIL_CLASS_BYTES,
    MAX_FAIL_STACK_BYTES,
    MAX_FAIL_TEXT_BYTES,
    Failure,
    ValueReference,
    dead_letter,
    dead_letter_by_reference,
    retry,
    sent_on,
    value_reference,
)
from rocketshim_topics.hops.park import MAX_PARK_REASON_BYTES, bare_parked, parked
from rocketshim_topics.hops.record import DEFAULT_MAX_DELAY_MS, OutgoingRecord, record_size_bytes
from rocketshim_topics.hops.redrive import redrive_count, redriven
from rocketshim_topics.hops.send import delayed_record, source_record
from rocketshim_topics.hops.timers import (
    CHECK_EVERY_MS,
    COMMANDS,
    MOST_CHECKS,
    check,
    checks_left,
    command_problem,
    fire,
    forwarded,
    is_misplaced,
    put_back,
    scheduled_timer,
    timer_command,
    timer_digest,
    timer_state,
    timer_times,
)

__all__ = [
    "BY_REFERENCE",
    "CHECK_EVERY_MS",
    "COMMANDS",
    "DEFAULT_MAX_DELAY_MS",
    "MAX_FAIL_CLASS_BYTES",
    "MAX_FAIL_STACK_BYTES",
    "MAX_FAIL_TEXT_BYTES",
    "MAX_PARK_REASON_BYTES",
    "MOST_CHECKS",
    "Failure",
    "OutgoingRecord",
    "ValueReference",
    "bare_parked",
    "check",
    "checks_left",
    "clock_probe",
    "command_problem",
    "dead_letter",
    "dead_letter_by_reference",
    "delayed_record",
    "delivered",
    "due_at_ms",
    "due_ms",
    "fire",
    "forwarded",
    "hopped",
    "is_misplaced",
    "is_probe",
    "parked",
    "put_back",
    "record_size_bytes",
    "redrive_count",
    "redriven",
    "retried_target",
    "retry",
    "scheduled_timer",
    "sent_on",
    "source_record",
    "timer_command",
    "timer_digest",
    "timer_state",
    "timer_times",
    "value_reference",
]

"""What the failures of a transaction say about its records and targets: the part of `refusals` for transactions.

* A record that no topic of the shim accepts (it must be parked, and the worker may not) would abort every transaction.
  Its partition backs off: a second at first, then twice as long each time, up to five seconds.
* Records that were purged with an aborted transaction say nothing about their targets, unless these were silent.
* The error of a missing right does not name the topic. So the cluster is asked which topics the worker may not write
  to.
"""

from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError

from rocketshim.core.backoff import Backoff
from rocketshim.worker.hop_writer import HopBatch, Kind
from rocketshim.worker.refusals import SPOILS_BATCH, Refusals, Verdict
from rocketshim.worker.transaction import PURGED, Transaction
from rocketshim_topics.wire import coordinates

__all__ = ["FENCED", "TransactionFailures"]

FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})  # noqa: SLF001
_SPOILS: Final = frozenset({KafkaError._STATE, KafkaError._FATAL})  # noqa: SLF001
_BACKOFF_NS: Final = Backoff(1_000_000_000, 5_000_000_000)


class TransactionFailures:
    """Learns from the failures of transactions.

    Args:
        refusals: learns from hops that were not stored.
        alarm: called with an event and its facts.
        denied: returns which of the given topics the worker may not write to.

    Thread-safety: none; the worker's thread.
    """

    def __init__(self, refusals: Refusals, alarm: Callable[..., None], denied: Callable[[set[str]], set[str]]) -> None:
        self._refusals = refusals
        self._alarm = alarm
        self._denied = denied

    def refused(self, transaction: Transaction, batch: HopBatch, now_ns: int) -> None:
        """Learn why the producer refused a record; if no topic accepts it, its partition backs off."""
        _, error = batch.errors[0]
        if error.code() in _SPOILS or error.fatal() or error.txn_requires_abort():
            transaction.must_abort = True  # an earlier record failed, not this one
            return
        if self._refusals.refused(batch, 0, error, now_ns) is Verdict.WAIT:
            transaction.must_abort = True
            self._back_off(batch, 0, error, now_ns)

    def learn(self, transaction: Transaction, now_ns: int, cause: KafkaError | None = None) -> bool:
        """Report failures to the router; return True if one unknown record made the broker refuse its batch."""
        if cause is not None and cause.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self._find_denied_topics(transaction, cause, now_ns)
        # if a record was refused, those that were purged had no time to be stored; otherwise their targets are silent
        is_silent = transaction.is_silent and not transaction.has_refusal
        is_refused = False
        for batch, at, error in transaction.failures():
            group = batch.group
            if error.code() in PURGED:
                if is_silent and group.kind is Kind.DELIVER and group.target is not None:
                    self._refusals.target_failed(group.target, now_ns, "no-answer")
            elif error.code() not in FENCED | _SPOILS:
                verdict = self._refusals.refused(batch, at, error, now_ns)
                if verdict is Verdict.WAIT and group.kind is not Kind.DELIVER:
                    self._back_off(batch, at, error, now_ns)
                is_refused = is_refused or (
                    group.kind is Kind.DELIVER and not batch.alone and error.code() in SPOILS_BATCH
                )
        return is_refused

    def _find_denied_topics(self, transaction: Transaction, cause: KafkaError, now_ns: int) -> None:
        """Find out which topic denied a transaction that failed because of a missing ACL."""
        denied = self._denied({batch.group.topic for batch in transaction.batches})
        for batch in transaction.batches:
            group = batch.group
            if group.topic in denied and group.kind is not Kind.DELIVER:
                self._back_off(batch, 0, cause, now_ns)
            elif group.topic in denied and group.target is not None:
                self._refusals.target_failed(group.target, now_ns, cause.name())

    def _back_off(self, batch: HopBatch, at: int, error: KafkaError, now_ns: int) -> None:
        """Let a partition back off: no topic accepts one of its records, so the next transactions leave it out."""
        assigned = batch.flight.assigned
        if assigned.backoff_until_ns <= now_ns:
            assigned.backoff_until_ns = now_ns + _BACKOFF_NS.pause(assigned.backoffs)
            assigned.backoffs += 1
            record = coordinates(batch.record(at))
            self._alarm("worker.hop-not-stored", topic=batch.group.topic, error=error.name(), record=record)

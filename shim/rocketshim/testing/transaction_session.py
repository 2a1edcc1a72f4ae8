"""The producer's side of its `transactional.id`: which call may come now, and what an error leaves behind.

=================  ==========================================================  =====================================
state              reached by                                                  what may come
=================  ==========================================================  =====================================
no id owned        the constructor                                             `init_transactions`
idle               `init_transactions`, a commit, an abort                     `begin_transaction`
in a transaction   `begin_transaction`                                         `produce`, offsets, commit, abort
to be aborted      a message or the offsets failed                             abort; all else raises that error
dead               `_FENCED`: another owner, or aborted by the broker for age  nothing, ever; raises that error
=================  ==========================================================  =====================================

A call out of turn raises `_STATE` and changes nothing. `begin_transaction` is local: the coordinator hears of the
transaction with its first record or offset, so one that sent nothing can be committed even by a fenced producer.
Every method is called with the broker's lock held.
"""

from collections.abc import Iterable

from confluent_kafka import KafkaError, KafkaException

from rocketshim.testing.assignors import Partition
from rocketshim.testing.broker import InMemoryBroker, TransactionalId
from rocketshim.testing.group_coordinator import CommittedOffset
from rocketshim.testing.kafka_errors import Code, failure, kafka_error
from rocketshim.testing.partition_log import Transaction

__all__ = ["TransactionSession"]


class TransactionSession:
    """State of one transactional producer. The broker's lock guards it."""

    def __init__(self, broker: InMemoryBroker, name: str | None, timeout_ms: int) -> None:
        self.name = name  # the `transactional.id`; None: the producer is not transactional
        self.fatal: KafkaError | None = None  # what killed it; None: it lives
        self.is_open = False  # between `begin_transaction` and commit or abort
        self.is_committing = False  # a commit ran out of time: only a commit may follow, an abort is a `_CONFLICT`
        self._broker = broker
        self._timeout_ms = timeout_ms
        self._owned: TransactionalId | None = None
        self._epoch = -1
        self._has_reached_coordinator = False
        self._abortable: KafkaError | None = None

    def initialise(self) -> None:
        """Take the id over; raise `_NOT_CONFIGURED` without an id, `_STATE` the second time."""
        if self.name is None:
            raise failure(Code.NOT_CONFIGURED, "The Transactional API requires transactional.id to be configured")
        self._refuse_dead()
        if self._owned is not None:
            raise failure(Code.STATE, "init_transactions")
        self._owned, self._epoch = self._broker.init_transactions(self.name, self._timeout_ms)

    def begin(self) -> None:
        """Begin a transaction."""
        self._refuse_failed()
        if self._owned is None or self.is_open:
            raise failure(Code.STATE, "begin_transaction")
        self.is_open = True
        self._has_reached_coordinator = False

    def check_produce(self) -> None:
        """Refuse a message that cannot be part of a transaction now."""
        doing = "Unable to produce message"
        if self.fatal is not None:
            raise failure(Code.FATAL, doing)
        if self.name is not None and (not self.is_open or self._abortable is not None):
            raise failure(Code.STATE, doing)

    def check_open(self, call: str) -> None:
        """Refuse a call that belongs into a transaction and is not in one, or in one that failed."""
        self._refuse_failed()
        if not self.is_open:
            raise failure(Code.STATE, call)

    def check_abort(self) -> None:
        """Refuse an abort where there is nothing to abort."""
        self._refuse_dead()
        if not self.is_open:
            raise failure(Code.STATE, "abort_transaction")
        if self.is_committing and self._abortable is None:
            raise failure(Code.CONFLICT, "Conflicting commit_transaction API call is in progress", retriable=True)

    def join(self) -> Transaction | None:
        """Return the transaction of a record; None for a producer without an id. `_FENCED` ends the producer."""
        if self.name is None or self._owned is None:
            return None
        self._refuse_fenced("Failed to add partitions to transaction")
        self._has_reached_coordinator = True
        return self._broker.join_transaction(self._owned)

    def add_offsets(
        self,
        group_id: str,
        member_id: str,
        generation: int,
        positions: Iterable[tuple[Partition, CommittedOffset]],
    ) -> None:
        """Let offsets go with the transaction.

        Raises `_FENCED`, or the group's refusal: then the transaction is to be aborted.
        """
        code = self._broker.group(group_id).check_commit(member_id, generation, transactional=True)
        if code is not None:
            self._abortable = kafka_error(code, "Failed to commit offsets to transaction", txn_requires_abort=True)
            raise KafkaException(self._abortable)
        self.join()
        if self._owned is not None:
            self._owned.offsets.setdefault(group_id, {}).update(positions)

    def message_failed(self, error: KafkaError, *, by_broker: bool) -> None:
        """A message of the transaction failed; a broker's refusal keeps its code, others become `_INCONSISTENT`."""
        if self.name is not None and self.is_open and self._abortable is None:
            code = error.code() if by_broker else Code.INCONSISTENT
            self._abortable = kafka_error(code, "current transaction must be aborted", txn_requires_abort=True)

    def end(self, *, is_commit: bool) -> None:
        """Commit or abort at the coordinator, if it has heard of the transaction. `_FENCED` ends the producer."""
        if self._has_reached_coordinator and self._owned is not None:
            self._refuse_fenced("Failed to end transaction")
            self._broker.end_transaction(self._owned, is_commit=is_commit)
        self.is_open = self.is_committing = False
        self._abortable = None

    def end_as_ordered(self, call: str, *, is_commit: bool) -> None:
        """Commit or abort, or fail as a test has ordered, before or after it took effect."""
        fault = self.raise_ordered(call)
        self.end(is_commit=is_commit)
        if fault is not None:
            if fault.fatal():
                self.die(fault)
            raise KafkaException(fault)

    def raise_ordered(self, call: str) -> KafkaError | None:
        """Raise the error that a test has ordered for a call; return it if the call takes effect nevertheless."""
        fault = self._broker.faults.take_call(self.name or "", call)
        if fault is None or fault.is_applied:
            return None if fault is None else fault.error
        if fault.error.fatal():
            self.die(fault.error)
        raise KafkaException(fault.error)

    def require_broker(self, call: str) -> None:
        """Raise `_TIMED_OUT` (retriable) while the broker is stopped."""
        if self._broker.faults.is_broker_down:
            raise failure(Code.TIMED_OUT, call, retriable=True)

    def die(self, error: KafkaError) -> None:
        """A fatal error: nothing works any more."""
        self.fatal = error

    def _refuse_fenced(self, doing: str) -> None:
        if self._owned is not None and self._owned.epoch != self._epoch:
            self.fatal = kafka_error(Code.FENCED, doing, fatal=True)
            raise KafkaException(self.fatal)

    def _refuse_dead(self) -> None:
        if self.fatal is not None:
            raise KafkaException(self.fatal)

    def _refuse_failed(self) -> None:
        self._refuse_dead()
        if self._abortable is not None:
            raise KafkaException(self._abortable)

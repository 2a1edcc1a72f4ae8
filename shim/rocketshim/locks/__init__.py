"""Locks of queues: one owner for each queue of a group, and a token that grows from owner to owner.

Kafka's group protocol gives a partition to one member, but it cannot stop a member that was frozen. So an owner needs a
lease, and leases are records in the group's log (one partition). This page has the rules.

* `fold`: the records, in their order, say who owns what. Pure; every member folds the same log.
* `holder`: what one member may rely on, and what it writes. Pure.
* `lease`: a lease as the threads of a consumer share it, and its times. Pure.
* `log_clients`, `log_thread`: the Kafka clients of the log, and the thread that reads and writes it.

**Who owns a queue** the log alone decides: no member's clock, and no acknowledgement. An owner is a client id and an
incarnation, one run of one process.

* *Log time* is a sum. Each record adds its append time minus the append time of the record before, clamped to 0 … 5 s,
  and is evaluated after that. Only differences count, so folds that begin at different offsets agree. A leader's clock
  that steps back adds nothing; one that steps forward adds at most 5 s per step. Members write heartbeats, because only
  records move log time.
* A *claim* is granted if the queue is free, if its lease has expired, or if the claimant already owns it. Each grant
  makes a new token, `base` + offset of the claim, and a lease of the length given in the record.
* A *renewal* or a *release* counts only with the current token and before the lease has expired. Both carry the next
  offset and the reconsume counts; the queue keeps these for its next owner.
* A queue whose lease has expired has no owner, not even for the former owner itself.
* *Base*: if the log begins at offset 0, its base is the append time of that record, or the base in the record if that
  is higher. Every later record repeats it. A record with a lower base was written for a former log: its claims,
  renewals and releases are void. A record with a higher base means that tokens above ours have been given out: all
  locks end, the base is raised, and nothing is granted until one lease has passed. So the tokens of a queue only grow,
  even when the topic is created again and a leader's clock has stepped back meanwhile.

**A fold that does not begin at offset 0** cannot know who owned a queue before. It keeps the records of a queue without
evaluating them until it *knows* the state. A fold never grants a queue whose state it does not know, so folds differ
only in *not yet knowing*. There are two ways:

* A renewal or release names as `confirmed_offset` a record that this fold has read. Its writer, who knew more, had seen
  that record granted or renewed; from there on the ordinary rules give the exact state.
* Every lease that may have been granted, before the start of the fold or by a record read since, has expired: the queue
  is free.

An owner renews at least twice per lease. So after one lease a fold knows all queues that are owned; after that it does
not know only queues whose claim has not been confirmed yet. (A simpler rule would adopt any renewal with a higher
token. But a renewal may arrive after its lease has ended. A fold that begins after that end would adopt it and hide the
true owner.) A gap in the offsets (retention was faster than the reader) or a record of an unknown version ends what a
fold knows: it starts again, as if it began there, and every owner must stop (`Folded.has_restarted`).

**What an owner may do** it decides on its own monotonic clock, more strictly than the log. `Lease.holds` is the one
answer; the listener thread asks it before each call, the poll thread before it hands out or commits anything.

* A member acts when it reads its own record back, never on the record's acknowledgement.
* It relies on a lease for `lock_hold_ms` from the instant *before* the claim or renewal was sent that last confirmed
  it. The log keeps the lease for `lock_lease_ms` from the append of that record, which is later. The difference is the
  margin: no other member is granted the queue before the belief is over, whatever the delays. The exception: different
  clock rates and forward steps of the leader's clock (each shortens the margin by at most 5 s) together exceed it.
* A belief that has ended is never renewed; the queue must be claimed again. A confirmation that is read too late does
  not count.
* A queue is released in this order: stop, drain, commit, release record. It is still renewed while it drains and
  commits. A stopped queue must be released before it is claimed again: there are never two runs of one queue in one
  process.
* A claim is sent when the queue is free, or when the time since the last folded record would make it free: the claim
  itself moves log time before it is evaluated.

**One lease** has one state machine, `holder.TRANSITIONS`; DESIGN.md has a drawing that is made from it. Its user, the
poll thread, gets the lease when it is granted and once more when it is stopped (`Lease.stopped`), and answers by one
release. Between the two it is in use or leaving: `consumer.orderly`.

**Two threads**, because a poll thread may wait for a commit much longer than a lease is relied on (with the broker
frozen, a synchronous commit had not returned after 4 minutes). They share the lease, a queue of commands and a queue of
leases; nothing else.

**The log is lost** when its topic has another id, when its bounds do not match what was folded, or when the offset to
read does not exist (`LogReader.why_lost`, `why_lost_by`); a record of an unknown version is as bad. Every belief ends
immediately (`QueueLockHolder.log_lost`), and nothing is claimed for one lease, because a frozen neighbour may still
believe in the old log. If the new log's tokens would be lower than known tokens of the old one, heartbeats carry the
old number as a higher base. A process that has not read the former log knows of it by the token in commits.
"""

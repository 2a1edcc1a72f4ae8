"""Anomalies of what is delivered and when: lost, made up, twice, early, committed too soon."""

from collections import defaultdict

from proof.index import Stored, queue_of
from proof.lines import Commit, encoded

from .anomaly import anomaly, fault
from .doctor import Doctor
from .world import MS, S

# --- loss ------------------------------------------------------------------------------------------------------------


@anomaly("concurrent", "lost")
def an_acknowledged_record_is_gone(doctor: Doctor) -> None:
    doctor.drop(doctor.pick(doctor.is_sent_leaf).source)


@anomaly("concurrent", "lost")
def what_was_acknowledged_without_an_offset_is_not_there(doctor: Doctor) -> None:
    record = doctor.pick(doctor.is_sent_leaf)
    del doctor.end_of(doctor.index.sends_by_record[record.it.where].source)["where"]
    for call in doctor.calls(record):
        doctor.drop_call(call)
    doctor.drop(record.source)


@anomaly("drop-in", "lost")
@anomaly("concurrent", "lost")
@anomaly("orderly by key", "lost")
def a_delivery_is_left_out(doctor: Doctor) -> None:
    record = doctor.pick(lambda each: doctor.is_sent_leaf(each) and doctor.is_passed(each, doctor.calls(each)[0].group))
    call = doctor.calls(record)[0]
    doctor.drop_call(call)
    for seen in doctor.history.sink:
        if seen.it.where == record.it.where:
            doctor.drop(seen.source)


@anomaly("broadcasting", "lost")
def one_member_does_not_get_a_broadcast(doctor: Doctor) -> None:
    last = {queue: records[-1].it.where for queue, records in doctor.index.queues.items()}
    record = doctor.pick(lambda each: each.topic == "orders" and each.it.where != last[queue_of(each.it.where)])
    doctor.drop_call(doctor.dice.choice(doctor.calls(record)))


@anomaly("delayed", "lost")
@anomaly("exactly once", "lost")
def the_worker_does_not_deliver(doctor: Doctor) -> None:
    record = doctor.pick(doctor.is_delivered_leaf)
    for call in doctor.calls(record):
        doctor.drop_call(call)
    doctor.drop(record.source)


@anomaly("concurrent", "lost")
def a_retry_is_not_stored(doctor: Doctor) -> None:
    def ends_here(each: Stored) -> bool:
        """A retry in the schedule, of a message that succeeded then."""
        return (
            each.topic == doctor.names.schedule and each.envelope.consumer_group is not None
            and len(each.children) == 1 and not each.children[0].children
        )  # fmt: skip

    retry = doctor.pick(ends_here)
    for call in doctor.calls(retry.children[0]):
        doctor.drop_call(call)
    doctor.drop(retry.source, retry.children[0].source)


@anomaly("concurrent", "dead-letter-missing")
@anomaly("orderly", "dead-letter-missing")
def a_message_fails_for_the_last_time_without_a_dead_letter(doctor: Doctor) -> None:
    doctor.drop(doctor.pick(lambda each: each.topic in doctor.index.dead_letter_topics).source)


@anomaly("parked", "lost")
def a_forbidden_message_is_not_parked(doctor: Doctor) -> None:
    doctor.drop(doctor.pick(lambda each: each.topic == doctor.names.parked).source)


@anomaly("concurrent", "stuck")
def the_last_message_of_a_queue_waits_for_its_group(doctor: Doctor) -> None:
    last = {records[-1].it.where for queue, records in doctor.index.queues.items()}
    record = doctor.pick(lambda each: each.it.where in last and doctor.is_sent_leaf(each, each.topic))
    call = doctor.calls(record)[0]
    doctor.drop_call(call)
    doctor.lower_commits(call.group, queue_of(record.it.where), record.offset)


@anomaly("delayed", "stuck")
def a_message_waits_in_its_delay_queue(doctor: Doctor) -> None:
    record = doctor.pick(doctor.is_delivered_leaf)
    for call in doctor.calls(record):
        doctor.drop_call(call)
    doctor.drop(record.source)
    parent = doctor.index.records[record.envelope.hop_id or ""]
    doctor.lower_commits(doctor.names.worker_group, queue_of(parent.it.where), parent.offset)


# --- phantoms --------------------------------------------------------------------------------------------------------


@anomaly("concurrent", "phantom")
def a_record_that_nobody_sent(doctor: Doctor) -> None:
    like = doctor.pick(doctor.is_sent_leaf)
    headers = [[name, "bm9ib2R5" if name == "UNIQ_KEY" else value] for name, value in like.it.headers]
    record = doctor.copy_record(like, digest="0" * 16, headers=headers)
    for call in doctor.calls(like):
        doctor.handle(call, record, id="nobody", digest="0" * 16)


@anomaly("concurrent", "phantom")
@anomaly("broadcasting", "phantom")
def a_delivery_from_where_nothing_lies(doctor: Doctor) -> None:
    like = doctor.pick(doctor.is_sent_leaf)
    record = doctor.copy_record(like)
    doctor.files["dump"].pop()
    doctor.handle(doctor.calls(like)[0], record)


@anomaly("concurrent", "phantom")
def what_a_failed_send_stored(doctor: Doctor) -> None:
    record = doctor.pick(doctor.is_sent_leaf)
    end = doctor.end_of(doctor.index.sends_by_record[record.it.where].source)
    end["type"] = "fail"
    del end["where"]


@anomaly("delayed", "phantom")
def a_record_made_from_nothing(doctor: Doctor) -> None:
    like = doctor.pick(doctor.is_delivered_leaf)
    elsewhere = doctor.free_place(f"{doctor.names.schedule}/0")
    headers = [list(header) for header in like.it.headers]
    record = doctor.copy_record(like, headers=headers)
    place = [header[0] for header in headers].index("HOP_ID")
    doctor.files["dump"][-1]["headers"][place] = ["HOP_ID", encoded(elsewhere.encode())]
    for call in doctor.calls(like):
        doctor.handle(call, record)


@anomaly("exactly once", "read-uncommitted")
@anomaly("redriven", "read-uncommitted")
def a_record_of_an_aborted_transaction_is_delivered(doctor: Doctor) -> None:
    topics = {"orders", *doctor.index.retry_topics}
    aborted = [r for r in doctor.index.records.values() if not r.it.committed and r.topic in topics]
    record = doctor.dice.choice([each for each in aborted if each.attempt == 0])
    parent = doctor.index.records[record.envelope.hop_id or ""]
    like = doctor.calls(parent.committed_children()[0])[0]
    doctor.handle(like, record.it)


# --- duplicates ------------------------------------------------------------------------------------------------------


@anomaly("concurrent", "duplicate")
@anomaly("drop-in", "duplicate")
@anomaly("broadcasting", "duplicate")
@anomaly("delayed", "duplicate")
def a_second_delivery_without_a_fault(doctor: Doctor) -> None:
    record = doctor.pick(lambda each: doctor.is_sent_leaf(each) or doctor.is_delivered_leaf(each))
    doctor.repeat(doctor.calls(record)[0])


@anomaly("concurrent", "duplicate")
def a_second_delivery_long_after_the_fault(doctor: Doctor) -> None:
    call = doctor.calls(doctor.pick(doctor.is_sent_leaf))[0]
    fault(doctor, "kill-9", call.process, call.begin_ns - 60 * S, call.begin_ns - 50 * S)
    doctor.repeat(call)


@anomaly("concurrent", "duplicate")
def a_second_delivery_before_the_fault(doctor: Doctor) -> None:
    call = doctor.calls(doctor.pick(doctor.is_sent_leaf))[0]
    fault(doctor, "kill-9", call.process, call.begin_ns + 60 * S, call.begin_ns + 61 * S)
    doctor.repeat(call)


@anomaly("concurrent", "duplicate")
def a_second_delivery_when_somebody_else_was_killed(doctor: Doctor) -> None:
    call = doctor.calls(doctor.pick(doctor.is_sent_leaf), "pay")[0]
    fault(doctor, "kill-9", "mail-1", call.begin_ns, call.begin_ns + S)
    fault(doctor, "kill-9", "worker-1", call.begin_ns, call.begin_ns + S)
    doctor.repeat(call)


@anomaly("delayed", "duplicate")
@anomaly("exactly once", "duplicate-exactly-once")
def a_message_is_relayed_twice(doctor: Doctor) -> None:
    like = doctor.pick(doctor.is_delivered_leaf)
    record = doctor.copy_record(like)
    for call in doctor.calls(like):
        doctor.handle(call, record)


@anomaly("concurrent", "duplicate")
def a_dead_letter_is_there_twice(doctor: Doctor) -> None:
    doctor.copy_record(doctor.pick(lambda each: each.topic in doctor.index.dead_letter_topics))


@anomaly("concurrent", "duplicate")
def a_send_is_stored_twice(doctor: Doctor) -> None:
    like = doctor.pick(doctor.is_sent_leaf)
    record = doctor.copy_record(like)
    for call in doctor.calls(like):
        doctor.handle(call, record)


@anomaly("redriven", "duplicate-exactly-once")
def a_letter_is_redriven_twice_by_one_plan(doctor: Doctor) -> None:
    like = doctor.pick(lambda each: each.topic in doctor.index.retry_topics)
    record = doctor.copy_record(like)
    doctor.handle(doctor.calls(like)[0], record)


# --- time ------------------------------------------------------------------------------------------------------------


@anomaly("delayed", "early")
@anomaly("exactly once", "early")
def a_message_is_stored_a_millisecond_early(doctor: Doctor) -> None:
    record = doctor.pick(doctor.is_delivered_leaf)
    parent = doctor.index.records[record.envelope.hop_id or ""]
    doctor.line(record.source)["ms"] = doctor.index.due_ms(parent) - 1


@anomaly("delayed", "early")
def a_message_leaves_its_queue_early_for_another(doctor: Doctor) -> None:
    schedule = doctor.names.schedule
    record = doctor.pick(lambda each: each.topic == schedule and each.envelope.hop_id is not None)
    parent = doctor.index.records[record.envelope.hop_id or ""]
    delay_ms = doctor.index.levels.queue_delay_ms(parent.partition) or 0
    doctor.line(record.source)["ms"] = parent.it.ms + delay_ms - 1


@anomaly("delayed", "early")
def a_listener_is_called_before_the_delay_has_passed(doctor: Doctor) -> None:
    def has_delay(each: Stored) -> bool:
        send = doctor.index.sends_by_record.get(each.envelope.hop_id or "")
        return doctor.is_delivered_leaf(each) and send is not None and send.delay_ms is not None

    record = doctor.pick(has_delay)
    send = doctor.index.sends_by_record[record.envelope.hop_id or ""]
    line = doctor.line(doctor.calls(record)[0].source)
    line["at_ns"] = send.begin_ns + (send.delay_ms or 0) * MS - 2 * MS


@anomaly("concurrent", "early")
def a_retry_comes_before_its_delay_has_passed(doctor: Doctor) -> None:
    record = doctor.pick(lambda each: each.topic in doctor.index.retry_topics and not each.children)
    schedule = doctor.index.records[record.envelope.hop_id or ""]
    failed = doctor.calls(doctor.index.records[schedule.envelope.hop_id or ""], "pay")[0]
    line = doctor.line(doctor.calls(record)[0].source)
    line["at_ns"] = failed.begin_ns + (schedule.envelope.delay_ms or 0) * MS - 2 * MS


# --- commits ---------------------------------------------------------------------------------------------------------


@anomaly("concurrent", "commit-back")
@anomaly("orderly", "commit-back")
def a_stored_position_goes_back(doctor: Doctor) -> None:
    (group, queue), commits = doctor.dice.choice(
        [(key, found) for key, found in doctor.index.commits_by_queue.items() if len(found) > 1]
    )
    doctor.add("dump", Commit(group=group, queue=queue, position=commits[-2][1].position, ms=commits[-1][1].ms))


@anomaly("concurrent", "commit-back")
def a_member_commits_back(doctor: Doctor) -> None:
    by_queue = defaultdict(list)
    for call in doctor.history.commit_calls:
        for queue in call.positions:
            by_queue[call.process, queue].append(call)
    (_, queue), calls = doctor.dice.choice([(key, found) for key, found in by_queue.items() if len(found) > 2])
    doctor.line(calls[-1].source)["positions"][queue] = calls[-2].positions[queue] - 1


@anomaly("concurrent", "commit-past-unfinished")
@anomaly("drop-in", "commit-past-unfinished")
@anomaly("orderly", "commit-past-unfinished")
def a_member_commits_before_a_call_returns(doctor: Doctor) -> None:
    found = []
    for call in doctor.history.commit_calls:
        for queue, position in call.positions.items():
            below = [record for record in doctor.index.queues[queue] if record.offset < position]
            ends = [each.end_ns or 0 for record in below for each in doctor.calls(record, call.group)]
            if ends and not any(record.children for record in below[-3:]):
                found.append((call, max(ends)))
    call, end_ns = doctor.dice.choice(found)
    doctor.line(call.source)["at_ns"] = end_ns - 1


@anomaly("delayed", "commit-past-unfinished")
def the_worker_commits_before_it_delivers(doctor: Doctor) -> None:
    key = doctor.dice.choice([key for key in doctor.index.commits_by_queue if key[0] == doctor.names.worker_group])
    source, commit = doctor.index.commits_by_queue[key][-1]
    below = [record for record in doctor.index.queues[key[1]] if record.offset < commit.position and record.children]
    doctor.line(source)["ms"] = max(record.children[0].it.ms for record in below) - 1


@anomaly("concurrent", "commit-past-unfinished")
def a_position_is_stored_before_a_dead_letter(doctor: Doctor) -> None:
    letter = doctor.pick(lambda each: each.topic in doctor.index.dead_letter_topics)
    failed = letter.envelope.hop_id or ""
    commits = doctor.index.commits_by_queue["pay", queue_of(failed)]
    source, _ = next(c for c in commits if c[1].position > int(failed.rpartition("/")[2]))
    doctor.line(source)["ms"] = letter.it.ms - 1

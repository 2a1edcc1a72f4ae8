"""One suite that every Kafka the shells may run on passes: the in-memory one and the real ones.

A scenario is a function of a `Backend` that returns when all is as it should be and raises `ConformanceError` with
what it expected and what it got. Each states one behaviour that the shells rely on or must be careful about; each was
measured on a real broker before the in-memory Kafka was made to do the same. `scenarios(features)` gives those that a
back end with these features has to pass.
"""

from collections.abc import Callable
from dataclasses import dataclass

from . import groups, reading, records, transactions
from .backend import Backend, ConformanceError, Features

__all__ = ["SCENARIOS", "Backend", "ConformanceError", "Features", "Scenario", "scenarios"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One behaviour.

    Attributes:
        run: checks it on a back end.
        needs: names of the `Features` it needs.
    """

    run: Callable[[Backend], None]
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The fact it states, as an identifier."""
        return self.run.__name__


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(records.absent_and_empty_differ),
    Scenario(records.headers_come_back_as_kafka_keeps_them),
    Scenario(records.wrong_types_are_refused),
    Scenario(records.reports_come_from_poll_and_carry_no_headers),
    Scenario(records.create_time_is_the_senders),
    Scenario(records.log_append_time_is_the_leaders, needs=("log_append_time",)),
    Scenario(records.keys_choose_partitions_by_murmur2),
    Scenario(records.offsets_follow_each_other),
    Scenario(records.an_unknown_topic_fails_by_report, needs=("topic_settings",)),
    Scenario(records.an_unknown_partition_is_refused_once_the_topic_is_known),
    Scenario(records.too_large_for_the_client_is_refused_by_produce),
    Scenario(records.too_large_for_the_topic_fails_by_report, needs=("topic_settings",)),
    Scenario(records.a_compacted_topic_wants_keys, needs=("topic_settings",)),
    Scenario(records.a_time_too_far_ahead_of_the_broker_is_refused, needs=("topic_settings",)),
    Scenario(records.a_full_queue_is_a_buffer_error),
    Scenario(reading.position_follows_what_was_handed_out),
    Scenario(reading.seek_needs_an_assignment),
    Scenario(reading.assignment_can_grow_and_shrink),
    Scenario(reading.the_reset_policy_decides_where_nothing_is_committed),
    Scenario(reading.the_end_of_a_partition_is_an_event),
    Scenario(reading.a_paused_partition_is_silent),
    Scenario(reading.a_pause_before_the_first_assignment_does_nothing),
    Scenario(reading.a_pause_counts_once_the_client_knows_the_partition),
    Scenario(reading.a_pause_sticks_over_reassignment),
    Scenario(reading.truncated_records_are_skipped_by_policy, needs=("truncation",)),
    Scenario(reading.watermarks_and_logical_offsets),
    Scenario(reading.times_become_offsets, needs=("log_append_time",)),
    Scenario(reading.metadata_tells_topics_apart),
    Scenario(reading.consume_takes_what_is_there),
    Scenario(reading.an_unknown_partition_can_be_assigned_and_is_silence),
    Scenario(reading.a_closed_consumer_refuses),
    Scenario(groups.a_lone_member_gets_everything),
    Scenario(groups.cooperative_members_give_up_only_what_moves),
    Scenario(groups.with_kip_848_members_give_up_only_what_moves),
    Scenario(groups.with_kip_848_a_member_that_does_not_poll_holds_up_nobody),
    Scenario(groups.with_kip_848_settings_of_the_classic_protocol_are_refused),
    Scenario(groups.eager_members_give_up_everything),
    Scenario(groups.the_wrong_way_to_assign_is_refused),
    Scenario(groups.an_exception_in_on_assign_may_cost_a_record),
    Scenario(groups.a_pattern_subscribes_to_what_matches),
    Scenario(groups.an_unknown_topic_in_a_subscription_is_an_event, needs=("topic_settings",)),
    Scenario(groups.a_bad_subscription_is_refused),
    Scenario(groups.a_pause_sticks_over_leaving_and_coming_back),
    Scenario(groups.commits_are_kept_as_given),
    Scenario(groups.nothing_to_commit_is_an_error),
    Scenario(groups.a_message_commits_the_offset_after_it),
    Scenario(groups.an_event_is_neither_committed_nor_stored),
    Scenario(groups.the_program_stores_no_offsets_beside_the_client),
    Scenario(groups.committing_for_an_unknown_partition_fails, needs=("group_generations",)),
    Scenario(groups.an_outsider_may_not_commit_beside_members, needs=("group_generations",)),
    Scenario(groups.a_member_may_commit_for_another),
    Scenario(groups.commits_work_inside_callbacks),
    Scenario(groups.committed_knows_nothing_of_unknown_topics),
    Scenario(transactions.committed_is_seen_and_aborted_is_not, needs=("transactions",)),
    Scenario(transactions.an_open_transaction_holds_up_its_partition, needs=("transactions",)),
    Scenario(transactions.offsets_go_with_the_transaction, needs=("transactions",)),
    Scenario(transactions.metadata_of_a_former_generation_is_refused, needs=("transactions", "group_generations")),
    Scenario(transactions.a_second_owner_fences_the_first, needs=("transactions",)),
    Scenario(transactions.a_fatal_error_comes_out_of_poll, needs=("transactions",)),
    Scenario(transactions.an_empty_transaction_ends_even_when_fenced, needs=("transactions",)),
    Scenario(transactions.ending_a_transaction_serves_its_reports, needs=("transactions",)),
    Scenario(transactions.calls_out_of_turn_are_refused, needs=("transactions",)),
    Scenario(transactions.a_failed_message_forbids_the_commit, needs=("transactions", "topic_settings")),
    Scenario(transactions.an_oversized_message_is_lost_in_silence, needs=("transactions",)),
)
"""Every scenario, from records over reading and groups to transactions."""


def scenarios(features: Features) -> list[Scenario]:
    """Those that a back end with these features has to pass."""
    return [scenario for scenario in SCENARIOS if all(getattr(features, need) for need in scenario.needs)]

"""One whole round: which tests of `integration_tests/` try which feature on a broker, and what came of them."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["FEATURES", "SHORT", "SINCE", "play"]

ROOT: Final = Path(__file__).parents[2]

FEATURES: Final[Mapping[str, tuple[str, ...]]] = {
    "init, doctor": (
        "test_init_cli.py",
        "test_provision.py::test_apply_creates_what_is_missing_and_the_second_time_nothing",
        "test_doctor.py::test_nothing_is_said_where_all_is_well",
        "test_doctor.py::test_the_commands_that_fix_do_fix",
    ),
    "retries, dead letters": (
        "test_consumer_retry.py::test_a_message_that_always_fails_passes_every_hop_of_the_table",
        "test_consumer_retry.py::test_a_consumer_killed_in_mid_listener_loses_nothing_and_repeats_recognisably",
    ),
    "delays": (
        "test_worker_at_least_once.py::test_every_level_any_delay_and_what_is_due_are_delivered_never_early",
        "test_worker_at_least_once.py::test_a_worker_killed_in_mid_stream_loses_nothing_and_repeats_are_recognisable",
    ),
    "exactly once, killed": (
        "test_worker_exactly_once.py::test_killed_at_every_named_point_each_message_is_delivered_once",
    ),
    "orderly": (
        "test_orderly.py::test_what_is_sent_in_order_by_a_sharding_key_or_by_kafkas_key_is_handled_in_that_order",
        "test_orderly.py::test_queues_change_hands_in_order_and_without_repeats_when_members_come_and_go",
        "test_orderly.py::test_a_failing_message_keeps_its_count_over_a_restart_and_dies_at_the_limit",
    ),
    "drop-in": (
        "test_dropin_retry.py::test_a_message_sent_back_comes_again_and_dies_at_the_limit",
        "test_dropin_retry.py::test_a_dead_letter_says_why",
    ),
    "redrive": (
        "test_redrive.py::test_a_thousand_letters_killed_and_resumed_are_sent_once",
        "test_redrive.py::test_letters_are_chosen_discarded_and_sent_to_their_source_only_when_asked",
    ),
    "share groups": ("test_redrive.py::test_what_a_share_group_rejects_is_shown_sent_again_and_counted",),
    "pull, broadcasting": (
        "test_pull.py::test_a_group_shares_the_queues_and_goes_on_where_it_was",
        "test_pull.py::test_pulling_finds_every_message_and_passes_over_transactions",
        "test_broadcasting.py::test_every_member_gets_everything_also_of_queues_that_are_added",
    ),
    "console": (
        "test_console.py::test_an_operator_finds_the_cause_sends_ten_and_a_killed_console_sends_each_of_the_rest_once",
    ),
    "commands": (
        "test_letters_cli.py",
        "test_cli_messages.py::test_lines_are_sent_and_listed_without_a_group",
        "test_cli_groups.py::test_positions_move_as_planned_and_keep_their_metadata",
        "test_cli_groups.py::test_groups_are_listed_with_their_retry_topics",
    ),
}
"""Feature to its tests: files, or tests with all their parameters."""

SINCE: Final[Mapping[str, tuple[int, ...]]] = {"share groups": (4, 4)}
"""Feature to the version of Kafka that brings what it is about; the others: every version that is tried."""

SHORT: Final[Mapping[str, tuple[str, ...]]] = {
    "init, doctor": FEATURES["init, doctor"][1:3],
    "retries, dead letters": FEATURES["retries, dead letters"][:1],
    "delays": FEATURES["delays"][:1],
    "exactly once, killed": FEATURES["exactly once, killed"],
    "orderly": FEATURES["orderly"][:1],
    "drop-in": FEATURES["drop-in"][:1],
    "redrive": FEATURES["redrive"][1:],
    "share groups": FEATURES["share groups"],
    "pull, broadcasting": FEATURES["pull, broadcasting"][1:],
    "commands": FEATURES["commands"][1:],
}
"""The same of the short round."""


def play(version: tuple[int, ...], bootstrap: str, folder: Path, *, short: bool = False) -> dict[str, str]:
    """Run the round on a broker of a version; return what came of each feature: `"passed"` or `"2 of 5 failed"`.

    `folder` keeps `round.xml` and `round.txt`, with the reasons. What the version does not have is not in the round.
    """
    features = {
        feature: tests
        for feature, tests in (SHORT if short else FEATURES).items()
        if version >= SINCE.get(feature, version)
    }
    tests = [f"integration_tests/{test}" for chosen in features.values() for test in chosen]
    report = folder / "round.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not long", f"--junitxml={report}", *tests]
    with (folder / "round.txt").open("wb") as out:
        subprocess.run(
            command, cwd=ROOT, env=os.environ | {"ROCKETSHIM_BOOTSTRAP": bootstrap}, stdout=out, stderr=out, check=False
        )
    return outcomes(report, features)


def outcomes(report: Path, features: Mapping[str, tuple[str, ...]] = FEATURES) -> dict[str, str]:
    """Return what came of each feature by pytest's report; a feature is `"not run"` if one of its tests did not run."""
    cases = [
        (f"{case.get('classname', '').rsplit('.', 1)[-1]}.py", case.get("name", "").split("[")[0], _failed(case))
        for case in ET.parse(report).iter("testcase")  # noqa: S314 - written by our own pytest
        if case.find("skipped") is None
    ]
    found = {}
    for feature, tests in features.items():
        ran = [
            (file, f"{file}::{name}", failed) for file, name, failed in cases if {file, f"{file}::{name}"} & set(tests)
        ]
        count, seen = sum(failed for *_, failed in ran), {each for *names, _ in ran for each in names}
        found[feature] = f"{count} of {len(ran)} failed" if count else "passed" if seen >= set(tests) else "not run"
    return found


def _failed(case: ET.Element) -> bool:
    return any(case.find(kind) is not None for kind in ("failure", "error"))

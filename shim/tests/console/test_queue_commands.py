"""The buttons of the group page: an operator commands the owner of an orderly queue."""

from typing import Any

import pytest

from rocketshim_topics.group_log import (
    ClaimedQueue,
    ClaimRecord,
    CommandRecord,
    LeaseEntry,
    MemberRecord,
    RenewRecord,
    decode_group_record,
    encode_group_record,
)

from .conftest import NAMES, Stage
from .test_dead_letters import text_of

LOG = NAMES.group_log("payments")
PAGE, COMMAND = "/groups/payments", "/groups/payments/command"


@pytest.fixture
def token(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> int:
    """A queue whose owner reports that `orders/0/7` keeps failing; return the owner's token."""
    monkeypatch.setattr("rocketshim.console.observed._REPORT_S", 0.0)
    base = stage.kafka.clock.wall_ms()
    claim = ClaimRecord(
        client_id="host@7@0", incarnation="i", seq=1, lease_ms=30_000, base=base,
        queues=(ClaimedQueue(topic="orders", queue_id=0),),
    )  # fmt: skip
    stage.kafka.append(LOG, encode_group_record(claim))
    renew(stage, base, ((7, 80), (9, 1)))
    return base


def renew(stage: Stage, token: int, counts: tuple[tuple[int, int], ...]) -> None:
    entry = LeaseEntry(
        topic="orders", queue_id=0, token=token, confirmed_offset=0, next_offset=7, reconsume_counts=counts,
        failing_ms=60_000, cause="KeyError: <b>'price'", trace="in <b>ship</b>", call_offset=7, call_ms=9_000,
    )  # fmt: skip
    record = RenewRecord(client_id="host@7@0", incarnation="i", seq=2, lease_ms=30_000, base=token, queues=(entry,))
    stage.kafka.append(LOG, encode_group_record(record))


def form(owner: int, **fields: str) -> dict[str, str]:
    return {"topic": "orders", "partition": "0", "offset": "7", "token": str(owner), "do": "dead-letter", **fields}


def commands(stage: Stage) -> list[Any]:
    records = [decode_group_record(each.value()) for each in stage.kafka.records(LOG)]
    return [each for each in records if isinstance(each, CommandRecord)]


def test_a_failing_message_has_its_cause_its_owner_and_buttons_for_operators(stage: Stage, token: int) -> None:
    page = stage.browser(operate=True).get(PAGE).text
    seen = text_of(page)
    assert "orders/0/7 80 " in seen
    assert "KeyError: <b>'price' host@7@0 Try it now Make it a dead letter" in seen
    assert "orders/0/9 1 " in seen
    assert seen.count("Stack trace of the last attempt of orders/0/7 in <b>ship</b>") == 1
    assert seen.count("Stack trace") == 1, "only the first failing message of a queue has one"
    assert '<td colspan="6"><details>' in page
    assert '<td colspan="5"><details>' in stage.browser().get(PAGE).text
    assert "<b>" not in page
    assert f'name="token" value="{token}"' in page
    assert 'href="/message/orders/0/7"' in page
    assert "Try it now" not in stage.browser().get(PAGE).text
    assert stage.browser().post(COMMAND, data=form(token)).status_code in {404, 405}


@pytest.mark.parametrize("do", ["try-now", "dead-letter"])
def test_a_button_stores_a_command_with_the_person_for_the_owner_that_the_page_has_shown(
    stage: Stage, token: int, do: str
) -> None:
    browser = stage.browser(operate=True)
    answer = browser.post(COMMAND, data=form(token, do=do))
    assert answer.status_code == 303
    (command,) = commands(stage)
    assert (command.do, command.queue.topic, command.queue.queue_id) == (do, "orders", 0)
    assert (command.offset, command.token) == (7, token)
    assert command.by.startswith("token (console of ")
    seen = text_of(browser.get(answer.headers["location"]).text)
    assert f"Group payments {do} for orders/0/7 is stored: it has failed 80 times, as last reported" in seen
    renew(stage, token, ((9, 1),))
    seen = text_of(browser.get(PAGE).text)
    assert f"orders/0/7 {do} token (console of" in seen
    assert "it does not fail any more" in seen


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"offset": "8"}, "orders/0/8 does not fail"),
        ({"partition": "1"}, "no member holds the lock of orders/1"),
        ({"token": "1"}, "the queue has changed hands"),
        ({"do": "skip"}, "try-now or dead-letter"),
        ({"offset": ""}, "give the partition and offset"),
        ({"topic": "a b"}, "a b"),
    ],
)
def test_a_command_that_could_do_nothing_is_refused_and_not_stored(
    stage: Stage, token: int, fields: dict[str, str], why: str
) -> None:
    answer = stage.browser(operate=True).post(COMMAND, data=form(token, **fields))
    assert answer.status_code == 400
    assert why in text_of(answer.text)
    assert commands(stage) == []


@pytest.mark.usefixtures("token")
def test_members_of_the_log_have_their_version_queues_and_what_differs(stage: Stage) -> None:
    for number, version in enumerate(("0.2.0", "0.2.0", None)):
        record = MemberRecord(client_id=f"host@7@{number}", incarnation="i", seq=3, lease_ms=30_000, version=version)
        stage.kafka.append(LOG, encode_group_record(record))
    page = stage.browser().get(PAGE).text
    assert "0.2.0 30 s Kafka's group protocol orders/0 orders/0/7 orders/0/7 " in text_of(page)
    assert page.count('<a href="/message/orders/0/7">orders/0/7</a> <time') == 1
    assert '<strong class="bad">not known</strong>' in page
    assert '<strong class="bad">0.2.0' not in page

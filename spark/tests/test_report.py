"""Reports on the console and as a page: text from records is always printed as plain text."""

import datetime as dt
import json
import re
import time

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from rocketshim_spark.jobs import failures, keys, lineage
from rocketshim_spark.jobs.lineage import format_lifecycle, is_fine
from rocketshim_spark.report import Chart, Link, Report, Table, as_html, as_text, json_value, report_json
from rocketshim_spark.small_frames import small_frame

NASTY = "<script>alert(1)</script>&\"'\x1b]0;owned\x07\x9b2J\n\u202e"


def nasty(kind: type[bytes] | type[str]) -> Report:
    text = NASTY.encode() if kind is bytes else NASTY
    return Report(
        job="keys",
        verdict="1 keys: 1 poison",
        fine=False,
        tables=(Table("worst", ("key", "samples"), [(text, [text])]),),
        bars=((NASTY, 3.0), ("none", 0.0)),
        notes=("inferred",),
    )


@pytest.mark.parametrize("kind", [bytes, str])
def test_text_from_records_contains_no_control_sequences_and_no_markup(kind: type[bytes] | type[str]) -> None:
    text, page = as_text(nasty(kind)), as_html(nasty(kind), about="lake")
    for shown in (text, page):
        assert not set(shown) & {"\x1b", "\x07", "\x9b", "\u202e"}
    assert len(text.splitlines()) == 6
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 3  # in the bar chart, and in both cells


def test_a_lifecycle_has_one_line_for_its_state_and_one_for_each_record() -> None:
    at = dt.datetime(2026, 1, 2)  # noqa: DTZ001 as Spark returns it
    entry = Row(replay=1, attempt=2, step=2, at=at, coordinates="a/0/1", kind="retry", reason=NASTY, reached=True)
    lifecycle = Row(
        msg_id=NASTY, grp="g", state="acknowledged", inferred=True, topic=NASTY, attempts=2, first_sent=at,
        history=[entry],
    )  # fmt: skip
    lines = format_lifecycle(lifecycle).split("\n")
    assert len(lines) == 2
    assert all(char.isprintable() for line in lines for char in line)


def test_the_first_line_is_the_verdict_and_columns_fit_their_cells() -> None:
    when = dt.datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 as Spark returns it
    table = Table("by hour", ("hour", "n", "share"), [(when, 1_234_567, 0.123456), (None, 1, 8_759.6)])
    lines = as_text(Report("failures", "2 failures", fine=True, tables=(table,))).split("\n")
    assert lines == [
        "failures: 2 failures",
        "",
        "by hour",
        "hour                 n        share",
        "2026-01-02 03:04:05  1234567  0.123",
        "-                    1        8760",
    ]


def test_a_long_cell_shows_that_it_was_cut() -> None:
    table = Table("worst", ("coordinates",), [("x" * 60,), (f"{'x' * 57}/3/1234567",)])
    assert as_text(Report("audit", "", fine=True, tables=(table,))).split("\n")[-2:] == ["x" * 60, f"{'x' * 57}/3…"]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_times_are_in_utc_in_every_time_zone(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark returns a time in this machine's zone. The two hours here have one name in New York."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        hours = [dt.datetime.fromtimestamp(seconds) for seconds in (1_793_511_000, 1_793_514_600)]  # noqa: DTZ006
        assert [json_value(hour) for hour in hours] == ["2026-11-01T05:30:00.000Z", "2026-11-01T06:30:00.000Z"]
        table = Table("by hour", ("hour",), [(hour,) for hour in hours])
        lines = as_text(Report("failures", "", fine=True, tables=(table,))).split("\n")
        assert lines[-2:] == ["2026-11-01 05:30:00", "2026-11-01 06:30:00"]
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("fault", "fine"), [({}, True), ({"state": "lost"}, False), ({"broken": True}, False), ({"revived": True}, False)]
)
def test_a_lost_broken_or_revived_lifecycle_is_a_finding(fault: dict[str, object], *, fine: bool) -> None:
    assert is_fine(Row(**{"state": "dead", "broken": False, "revived": False} | fault)) is fine


def test_a_page_without_rows_is_complete_and_marks_the_verdict() -> None:
    page = as_html(Report("audit", "residual 0", fine=True), about="lake")
    assert '<span class="fine">residual 0</span>' in page
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>\n")
    assert "<svg" not in page
    assert '<span class="finding">' in as_html(Report("audit", "residual 1", fine=False), about="lake")


def test_a_page_has_its_navigation_and_fits_a_phone_and_a_dark_room() -> None:
    pages = [Link("overview", "index.html"), Link("audit", "audit.html")]
    page = as_html(Report("audit", "residual 0", fine=True), about="lake", pages=pages)
    assert '<meta name="viewport" content="width=device-width,initial-scale=1">' in page
    assert "prefers-color-scheme:dark" in page
    assert '<a href="index.html">overview</a>' in page
    assert '<a href="audit.html" aria-current="page">audit</a>' in page
    assert Report("report", "no finding", fine=True).page == "index.html"


def test_groups_ids_and_records_are_linked_to_the_console_and_only_there() -> None:
    columns = ("grp", "msg_id", "sample", "topic")
    table = Table("worst", columns, [('pay/"g', "A&B", "orders/0/7", "orders/0/7"), (None, "", "<x>/0/7", None)])
    report = Report("failures", "", fine=True, tables=(table,))
    page = as_html(report, about="lake", console="https://console/base/")
    assert re.findall('<td><a href="([^"]+)">', page) == [
        "https://console/base/groups/pay%2F%22g",
        "https://console/base/message?id=A%26B",
        "https://console/base/message/orders/0/7",
    ]
    assert "<td><a" not in as_html(report, about="lake")


def test_a_chart_has_a_bar_or_a_point_for_each_number() -> None:
    stacked = Chart("by hour", ("10:00", "11:00"), [(NASTY, (3, 0)), ("b", (1, 2))], stacked=True)
    lines = Chart("late", ("10:00", "11:00"), [("p50", (None, 2.0)), ("p99", (4.0, 8.0))])
    page = as_html(Report("failures", "", fine=True, charts=(stacked, lines)), about="lake")
    assert [float(height) for height in re.findall(r'<rect class="c\d"[^>]* height="([0-9.]+)"', page)] == [120, 40, 80]
    assert [float(y) for y in re.findall(r'<circle class="c\d"[^>]* cy="([0-9.]+)"', page)] == [140, 100, 20]
    assert "<script" not in page
    assert as_html(Report("failures", "", fine=True, charts=(Chart("none", (), ()),)), about="lake").count("<svg") == 1


def test_bars_are_proportional_and_never_negative() -> None:
    page = as_html(Report("delays", "late", fine=True, bars=(("a", 10.0), ("b", 5.0), ("c", -3.0))), about="")
    assert [part.split('"')[0] for part in page.split('width="')[2:]] == ["400.0", "200.0", "0.0"]


def test_the_json_of_a_report_has_an_object_for_each_row_and_times_in_utc() -> None:
    at = dt.datetime(2026, 11, 20, 18, 0, 0, 5_000)  # noqa: DTZ001 - as Spark returns it: UTC, without a zone
    table = Table("worst", ("key", "at", "count"), [(b"k-1", at, 3), (None, None, 0)])
    report = Report(job="keys", verdict="1 key", fine=False, tables=(table,), bars=(("x", 1.0),), notes=("inferred",))
    assert json.loads(json.dumps(report_json(report), default=json_value)) == {
        "job": "keys",
        "verdict": "1 key",
        "fine": False,
        "tables": [
            {
                "title": "worst",
                "total": 2,
                "rows": [
                    {"key": "k-1", "at": "2026-11-20T18:00:00.005Z", "count": 3},
                    {"key": None, "at": None, "count": 0},
                ],
            }
        ],
        "notes": ["inferred"],
    }


def test_the_console_shows_the_first_rows_of_a_long_table_and_the_others_are_on_the_page_and_in_json() -> None:
    report = Report(
        "lineage", "", fine=True, tables=(Table("by group", ("group",), [(f"g{n}",) for n in range(1_000)]),)
    )
    lines = as_text(report).split("\n")
    assert lines[2] == "by group: the first 50 of 1,000"
    assert lines[-2:] == ["g49", "… and 950 more rows: see the page, or use --json"]
    assert "<td>g999</td>" in as_html(report, about="lake")
    assert len(report_json(report)["tables"][0]["rows"]) == 1_000


def test_a_table_of_which_not_all_rows_were_collected_says_how_many_there_are() -> None:
    rows = [(f"g{n}",) for n in range(1_001)]
    report = Report("keys", "", fine=True, tables=(Table("keys", ("key",), rows, 70_000),))
    assert as_text(report).split("\n")[-1] == "… and 69,950 more rows: see the page, or use --json"
    page = as_html(report, about="lake")
    assert "<h2>keys: the first 1,000 of 70,000</h2>" in page
    assert "g1000" not in page
    assert report_json(report)["tables"][0]["total"] == 70_000


def test_keys_that_are_no_text_never_look_alike() -> None:
    table = Table("keys", ("key",), [(b"\xff",), (b"\xfe",), ("é".encode(),)])
    assert as_text(Report("keys", "", fine=True, tables=(table,))).split("\n")[-3:] == ["0xff", "0xfe", "é"]
    assert [json_value(key) for (key,) in table.rows] == ["0xff", "0xfe", "é"]


def test_the_page_of_a_plan_has_its_name() -> None:
    report = Report("replay-plan", "4 to send", fine=True, subject="monday")
    assert (report.page, as_text(report)) == ("replay-plan-monday.html", "replay-plan monday: 4 to send")
    assert "<h1>replay-plan monday:" in as_html(report, about="lake")
    assert report_json(report)["subject"] == "monday"


def test_a_new_cause_that_failed_once_comes_before_causes_that_failed_often(spark: SparkSession) -> None:
    at = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)
    rows = [("g", f"Old{n}", "", at, 100, 0, at, at, False) for n in range(40)]
    rows += [("g", "Dead", "", at, 1, 1, at, at, False), ("g", "New", "", at, 1, 0, at, at, True)]
    columns = (
        "grp string, fail_class string, fingerprint string, hour timestamp, failures bigint, dead bigint, "
        "first_seen timestamp, last_seen timestamp, is_new boolean"
    )
    found = small_frame(spark, rows, columns).withColumn("samples", F.array(F.lit("a/0/1")))
    (table,) = failures.report(found).tables
    assert [row[1] for row in table.rows[:3]] == ["New", "Dead", "Old0"]
    assert (len(table.rows), table.count) == (42, 42)


def test_a_poison_key_and_broken_order_come_before_keys_that_failed_often(spark: SparkSession) -> None:
    kinds = [("often", 90, False, False)] * 60 + [("poison", 3, True, False), ("violation", 1, False, True)]
    rows = [("g", "t", f"{kind}{n}", 100, failed, 0, 1, 1, 1, 0, 0.5, 0.1, poison, violation)
            for n, (kind, failed, poison, violation) in enumerate(kinds)]  # fmt: skip
    found = small_frame(
        spark, rows,
        "grp string, topic string, key string, messages bigint, failed bigint, dead bigint, most_attempts int, "
        "consecutive bigint, blocked_ms bigint, overtaken bigint, failed_share double, share_of_all double, "
        "poison boolean, violation boolean",
    ).withColumn("key", F.col("key").cast("binary"))  # fmt: skip
    report = keys.report(found)
    assert [bytes(row[2]).decode() for row in report.tables[0].rows[:3]] == ["poison60", "violation61", "often0"]
    assert report.bars[0] == ("t poison60", 3)


def test_lineage_lists_groups_with_findings_first_and_what_is_broken(spark: SparkSession) -> None:
    lifecycles = small_frame(
        spark,
        [("orders", group, "acknowledged", 0, broken, False, 0, 1) for group, broken in (("a", False), ("b", True))],
        "topic string, grp string, state string, copies int, broken boolean, revived boolean, attempts int, "
        "took_ms bigint",
    )
    rows = report_json(lineage.report(lifecycles))["tables"][0]["rows"]
    assert [(row["group"], row["broken"]) for row in rows] == [("b", 1), ("a", 0)]

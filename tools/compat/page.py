"""The tables of docs/compatibility.md, made from what was tried; `results.json` beside this file remembers it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tools.compat.brokers import parse
from tools.compat.round import FEATURES, SINCE

__all__ = ["PAGE", "RESULTS", "record", "rendered"]

RESULTS: Final = Path(__file__).with_name("results.json")
PAGE: Final = Path(__file__).parents[2] / "docs" / "compatibility.md"
Results = dict[str, dict[str, dict[str, Any]]]


def record(kind: str, name: str, result: Mapping[str, Any]) -> None:
    """Remember what came of a run (kind: `brokers`, `pythons`, `packages` or `spark`), and write the tables again."""
    results: Results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    results.setdefault(kind, {})[name] = dict(result)
    ordered = {kind: {name: results[kind][name] for name in sorted(results[kind])} for kind in sorted(results)}
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8"), ordered), encoding="utf-8")


def rendered(page: str, results: Results) -> str:
    """Return the page with each table between its marks, `<!-- brokers -->` and `<!-- end of brokers -->`, replaced."""
    for kind, table in (("brokers", _brokers), ("pythons", _pythons), ("packages", _packages), ("spark", _spark)):
        begin, end = f"<!-- {kind} -->", f"<!-- end of {kind} -->"
        before, _, rest = page.partition(begin)
        _, _, behind = rest.partition(end)
        page = f"{before}{begin}\n\n{table(results.get(kind, {}))}\n\n{end}{behind}"
    return page


def _brokers(tried: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [("Kafka", "mode", *FEATURES, "tried")]
    for version in sorted(tried, key=parse):
        result = tried[version]
        lacking = {feature for feature, since in SINCE.items() if parse(version) < since}
        features = (
            "–" if feature in lacking else str(result["features"].get(feature, "not run")) for feature in FEATURES
        )
        rows.append((version, str(result["mode"]), *features, str(result["date"])))
    return _table(rows)


def _pythons(tried: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [("Python", "unit tests", "tried")]
    rows += [(name, str(tried[name]["unit"]), str(tried[name]["date"])) for name in sorted(tried, key=parse)]
    return _table(rows)


def _packages(tried: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [("packages", "on Python", "`--help` of every command", "unit tests", "tried")]
    for name, result in tried.items():
        failing = result["failing_help"]
        help_texts = "works" if not failing else f"{len(failing)} fail"
        rows.append((name, str(result["python"]), help_texts, str(result["unit"]), str(result["date"])))
    text = _table(rows)
    for name, result in tried.items():
        text += (
            f"\n\n{name[:1].upper()}{name[1:]}: {', '.join(f'{each} {at}' for each, at in result['versions'].items())}."
        )
    return text


def _spark(tried: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [("PySpark", "Delta", "tests of the Spark jobs", "tried")]
    for version in sorted(tried, key=parse):
        result = tried[version]
        rows.append((version, str(result["delta"]), str(result["unit"]), str(result["date"])))
    return _table(rows)


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])

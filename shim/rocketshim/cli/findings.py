"""Findings on a terminal, for `doctor`, `status` and `top`."""

from collections.abc import Iterable
from typing import Final

from rich.console import Console
from rich.text import Text

from rocketshim.core.user_values import one_line
from rocketshim.observe.finding import Finding, Severity

__all__ = ["counts", "show_findings"]

_COLOURS: Final = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


def show_findings(found: Iterable[Finding]) -> None:
    """Print findings: what is wrong, its cost, and what fixes it."""
    out = Console()
    for finding in found:
        head = Text(f"{finding.severity:8}", style=_COLOURS[finding.severity])
        head.append(one_line(f"{finding.check}  {finding.subject}"), style="bold")
        out.print(head, soft_wrap=True)
        steps = [("" if number else "fix", step) for number, step in enumerate(finding.steps)]
        for label, text in (("", finding.what), ("costs", finding.cost), *steps):
            out.print(Text(one_line(f"  {label:6}{text}")), soft_wrap=True)


def counts(found: Iterable[Finding]) -> str:
    """Return how many findings there are of each severity."""
    severities = [finding.severity for finding in found]
    numbers = {severity: severities.count(severity) for severity in Severity}
    parts = [f"{number} {severity}{'' if number == 1 else 's'}" for severity, number in numbers.items() if number]
    return ", ".join(parts) or "all is well"

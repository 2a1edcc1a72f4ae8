"""Reference pages that are generated from the code: each module makes one page, as Markdown."""

from collections.abc import Callable
from typing import Final

from tools.reference import api, cli, decisions, errors, files, log_events, message, metrics, settings

__all__ = ["IN_REPOSITORY", "PAGES"]

PAGES: Final[dict[str, Callable[[], str]]] = {
    "reference/api.md": api.page,
    "reference/message.md": message.page,
    "reference/settings.md": settings.page,
    "reference/cli.md": cli.page,
    "reference/metrics.md": metrics.page,
    "reference/log-events.md": log_events.page,
    "reference/errors.md": errors.page,
    "reference/decisions.md": decisions.page,
    "reference/files.md": files.page,
}
"""Path of a page in the site, and the function that returns its text."""

IN_REPOSITORY: Final = ("reference/settings.md", "reference/message.md", "reference/metrics.md")
"""The pages that other pages link to: they also stand in the repository, so that its links work without the site."""

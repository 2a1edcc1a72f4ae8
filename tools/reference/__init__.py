"""Reference pages that are generated from the code: each module makes one page, as Markdown."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Final

__all__ = ["IN_REPOSITORY", "PAGES"]


def _page(module: str) -> str:
    text: str = import_module(f"tools.reference.{module}").page()
    return text


_MADE_BY: Final = ("api", "message", "settings", "cli", "metrics", "log_events", "errors", "decisions", "files")
PAGES: Final[dict[str, Callable[[], str]]] = {
    f"reference/{module.replace('_', '-')}.md": partial(_page, module) for module in _MADE_BY
}
"""Path of a page in the site, and the function that returns its text. Two of them need no package but Python."""

IN_REPOSITORY: Final = ("reference/settings.md", "reference/message.md", "reference/metrics.md")
"""The pages that other pages link to: they also stand in the repository, so that its links work without the site."""

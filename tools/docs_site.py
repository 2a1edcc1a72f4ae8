"""Hooks of the documentation site (`mkdocs.yml`): pages that are generated, and links that leave `docs/`.

* The pages of `tools.reference` are generated from the code at each build; some of them also stand in the repository.
* README.md, CHANGELOG.md, DESIGN.md and CONTRIBUTING.md become pages, because they stand outside `docs/`. The README is
  the home page.
* A link to another file of the repository, as `../examples/dropin.py`, works on the site too: the file is copied.

So each fact has one home, and the same links work in the repository and on the site.
"""

import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.reference import IN_REPOSITORY, PAGES

ROOT: Final = Path(__file__).resolve().parent.parent

ROOT_PAGES: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "DESIGN.md": "design.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""File of the repository's root, and the page it becomes."""

_LINK: Final = re.compile(r"(\]\(|src=\"|srcset=\")([^)\"#:]+)")
"""The target of a relative link or picture, up to its anchor."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, the pages of the root, and the files that pages link to outside `docs/`."""
    for path, page in PAGES.items():
        if path not in IN_REPOSITORY:
            files.append(File.generated(config, path, content=page()))
    for source, path in ROOT_PAGES.items():
        files.append(File.generated(config, path, content=site_links((ROOT / source).read_text("utf-8"), ROOT)))
    for path in sorted(linked_files()):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page in `docs/` that leave this folder."""
    del config, files
    source = page.file.abs_src_path
    return site_links(markdown, Path(source).parent) if source and Path(source).is_relative_to(ROOT) else markdown


def site_links(markdown: str, folder: Path) -> str:
    """Return a text whose links to files of the repository are links of the site.

    Args:
        markdown: the text.
        folder: the folder that its links are relative to.
    """

    def rewritten(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if not target.is_file() or (folder != ROOT and target.is_relative_to(ROOT / "docs")):
            return link[0]
        path = target.relative_to(ROOT).as_posix()
        return link[1] + ROOT_PAGES.get(path, path.removeprefix("docs/"))

    return _LINK.sub(rewritten, markdown)


def linked_files() -> set[str]:
    """Return the files of the repository outside `docs/` that pages link to, as paths from the root."""
    found: set[str] = set()
    for page in [*(ROOT / "docs").glob("*.md"), *(ROOT / name for name in ROOT_PAGES)]:
        for link in _LINK.finditer(page.read_text(encoding="utf-8")):
            target = (page.parent / link[2]).resolve()
            if target.is_file() and target.is_relative_to(ROOT) and not target.is_relative_to(ROOT / "docs"):
                found.add(target.relative_to(ROOT).as_posix())
    return found - ROOT_PAGES.keys()

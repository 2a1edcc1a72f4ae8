"""The page on testing runs as it stands."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "testing.md"


def test_the_page_runs_from_top_to_bottom() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 2
    code = compile("\n".join(blocks), str(PAGE), "exec")
    exec(code, {"__name__": "documentation"})  # noqa: S102 - our own page

"""How `make test` divides the tests among its processes, and which of them `make coverage` measures.

Most tests wait, so the longest chain of tests in one process decides how long the run takes. The longest chains come
first, and the unit tests, which wait for nothing, come last and fill up.
"""

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

_ONE_BY_ONE = ("integration_tests", "proof")
"""Folders whose tests are long enough to be given out singly."""

_LONG_TESTS = ("test_proof_chaos", "test_orderly_chaos", "test_spark_notebook", "test_worker_clock", "test_demo")
"""Files of `integration_tests` whose single tests take a minute; the notebook has a Spark of its own."""

_LONGEST_WITH_SPARK = "test_spark_jobs"
"""As long as all others of its folder with Spark, so it has a session of its own: with one for all they ended last."""

_MEASURED = ("shim", "topics")
"""Folders of unit tests; programs of the docs in them are not measured. A measured test takes three times as long."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest first; mark each unit test with its first parameters `measured`, but none of hypothesis."""
    items.sort(key=lambda item: _rank(_file(item.nodeid), config.rootpath))
    seen = set[str]()
    for item in items:
        test, parts = item.nodeid.partition("[")[0], _file(item.nodeid).parts
        is_first = test not in seen and not getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        seen.add(test)
        if is_first and parts[0] in _MEASURED and "docs" not in parts:
            item.add_marker("measured")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "LoadScopeScheduling":
    """Keep together the tests of a Spark session, and those of a file that share something; give out others singly.

    When a process dies, the others get what it had left. As pytest-xdist 3.8.0 does it, they get its finished tests,
    too, and may wait forever (pytest-xdist 1323, 1327), and the test that ended the process runs again (1378).
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByShared(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = _file(nodeid)
            if _uses_spark(file):
                return "spark jobs" if file.stem == _LONGEST_WITH_SPARK else "spark"
            is_single = file.parts[0] in _ONE_BY_ONE and not _shares(config.rootpath / file)
            return nodeid if is_single else str(file)

        def remove_node(self, node: Any) -> str | None:
            assigned = self.assigned_work.pop(node)
            left = [test for unit in assigned.values() for test, is_done in unit.items() if not is_done]
            for test in left[1:]:
                self.workqueue.setdefault(self._split_scope(test), {})[test] = False
            for other in self.assigned_work:
                self._reschedule(other)
            return left[0] if left else None

        def _reschedule(self, node: Any) -> None:
            with suppress(OSError):  # it has died, which is not known yet; then `remove_node` has what was assigned
                super()._reschedule(node)
                # A process begins a test when it knows the next one, or that there is none.
                while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
                    super()._reschedule(node)

    config.option.loadscopereorder = False  # it would put the files with few tests last, which are the longest
    return ByShared(config, log)


def _file(nodeid: str) -> Path:
    return Path(nodeid.partition("::")[0])


def _rank(file: Path, root: Path) -> int:
    if _uses_spark(file):
        return 0
    if file.stem in _LONG_TESTS:
        return 1
    if file.parts[0] == "integration_tests":
        return 2 if _shares(root / file) else 3
    return 4


def _uses_spark(file: Path) -> bool:
    return ("spark" in file.stem or "spark" in file.parts) and file.stem not in _LONG_TESTS


@cache
def _shares(file: Path) -> bool:
    """Whether the tests of a file share a fixture, or the namespace of their process: its topics go with the file."""
    text = file.read_text(encoding="utf-8")
    return 'scope="module"' in text or "os.getpid()" in text

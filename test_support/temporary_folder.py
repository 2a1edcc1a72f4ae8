"""A temporary folder of its own for each test process, and an error if a test leaves something in it.

Child processes inherit it. So do Spark's Java processes, whose files are removed with the folder: the process of a
session ends only after the tests. pytest keeps its own folders (`tmp_path`) where they always are.
"""

import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

FOLDER = pytest.StashKey[Path]()
FIRST_SEEN = pytest.StashKey[dict[str, str]]()
LAST = pytest.StashKey[str]()
"""The last test: what it leaves is found while it is torn down."""

OF_JAVA = ("blockmgr-", "hsperfdata_", "liblz4-java-", "snappy-", "spark-", "spark.", "artifacts-")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Note the names that a test sees first, so that the error names it or one that ran beside it."""
    if nextitem is None:
        item.config.stash[LAST] = item.nodeid
    yield
    if (folder := item.config.stash.get(FOLDER, None)) is not None:
        for path in folder.iterdir():
            item.config.stash[FIRST_SEEN].setdefault(path.name, item.nodeid)


@pytest.fixture(scope="session", autouse=True)
def own_temporary_folder(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Iterator[None]:
    """Let `tempfile` use a new folder, and fail at the end if it is not empty, unless the run was interrupted.

    After an interruption an error here would take the place of pytest's report.
    """
    folder = Path(tempfile.mkdtemp(prefix="rocketshim-tests-"))
    seen = pytestconfig.stash[FIRST_SEEN] = {}
    pytestconfig.stash[FOLDER] = folder
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DEBUG_TEMPROOT", os.environ.get("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir()))
        patch.setenv("TMPDIR", str(folder))
        patch.setenv("SPARK_LOCAL_DIRS", str(folder))
        patch.setenv("SPARK_SUBMIT_OPTS", f"-Djava.io.tmpdir={folder}")
        patch.setattr(tempfile, "tempdir", None)
        yield
    left = sorted(path.name for path in folder.iterdir() if not path.name.startswith(OF_JAVA))
    del pytestconfig.stash[FOLDER]
    shutil.rmtree(folder, ignore_errors=True)
    last = pytestconfig.stash.get(LAST, "no test")
    named = [f"{name}, first seen by {seen.get(name, last)}" for name in left]
    assert not left or request.session.exitstatus == pytest.ExitCode.INTERRUPTED, (
        f"left in the temporary folder: {named}"
    )

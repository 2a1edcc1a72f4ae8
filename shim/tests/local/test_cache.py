import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rocketshim.errors import ConfigError, LocalBrokerError
from rocketshim_local.cache import cache_dir, exclusive, file_set, read_file_set


def test_the_cache_is_in_the_named_folder_else_xdg_else_home() -> None:
    assert cache_dir({"ROCKETSHIM_CACHE": "/a/b", "XDG_CACHE_HOME": "/x"}) == Path("/a/b")
    assert cache_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/rocketshim")
    assert cache_dir({}) == Path.home() / ".cache" / "rocketshim"


def test_a_relative_xdg_folder_is_ignored_as_the_specification_requires() -> None:
    assert cache_dir({"XDG_CACHE_HOME": "x"}) == Path.home() / ".cache" / "rocketshim"


def test_the_error_for_a_relative_cache_folder_has_its_value() -> None:
    with pytest.raises(ConfigError, match=r"ROCKETSHIM_CACHE='some/where' is relative"):
        cache_dir({"ROCKETSHIM_CACHE": "some/where"})


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a set in a cache of its own."""
    monkeypatch.setenv("ROCKETSHIM_CACHE", str(tmp_path))
    return tmp_path / "sets" / "one"


def write(folder: Path) -> None:
    (folder / "b.jar").write_bytes(b"22")
    (folder / "a.jar").write_bytes(b"1")


def must_not_write(folder: Path) -> None:
    raise AssertionError(folder)


def test_a_written_set_is_read_back_with_sizes_and_hashes(path: Path) -> None:
    found = file_set(path, write)
    assert found == read_file_set(path) == file_set(path, must_not_write)
    assert list(found.files) == ["a.jar", "b.jar"]
    assert found.size_bytes == 3
    assert found.damaged() == []
    assert sorted(entry.name for entry in path.iterdir()) == ["a.jar", "b.jar", "manifest.json"]


def test_a_failed_write_leaves_nothing(path: Path) -> None:
    def fail(folder: Path) -> None:
        write(folder)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        file_set(path, fail)
    assert list(path.parent.iterdir()) == []


def test_the_files_of_a_killed_write_are_removed_by_the_next_write(path: Path) -> None:
    killed = f"""
import os, pathlib, signal
from rocketshim_local.cache import file_set
def write(folder):
    (folder / "half").write_bytes(b"x")
    os.kill(os.getpid(), signal.SIGKILL)
file_set(pathlib.Path({str(path)!r}), write)
"""
    subprocess.run([sys.executable, "-c", killed], check=False)  # noqa: S603
    assert read_file_set(path) is None
    assert len(list(path.parent.iterdir())) == 1
    file_set(path, write)
    assert [entry.name for entry in path.parent.iterdir()] == ["one"]


@pytest.mark.parametrize("harm", ["remove", "shorten", "garble manifest", "empty manifest"])
def test_an_incomplete_set_is_not_returned_and_is_written_again(path: Path, harm: str) -> None:
    file_set(path, write)
    match harm:
        case "remove":
            (path / "a.jar").unlink()
        case "shorten":
            (path / "b.jar").write_bytes(b"2")
        case "garble manifest":
            (path / "manifest.json").write_text("{")
        case _:
            (path / "manifest.json").write_text("[]")
    assert read_file_set(path) is None
    assert file_set(path, write).damaged() == []


def test_changed_content_of_the_same_size_is_detected_by_its_hash(path: Path) -> None:
    found = file_set(path, write)
    (path / "b.jar").write_bytes(b"33")
    assert found.damaged() == ["b.jar"]


def test_a_lock_is_released_when_its_holder_is_killed(path: Path) -> None:
    holder = """
import os, signal
from rocketshim_local.cache import exclusive
with exclusive("one"):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", holder], check=False)  # noqa: S603
    assert ended.returncode == -9
    with exclusive("one"):
        assert (path.parents[1] / "locks" / "one.lock").exists()


def test_a_process_that_was_forked_by_its_holder_does_not_keep_a_lock(path: Path) -> None:
    begin, end = os.pipe()
    with exclusive("one"):
        if (pid := os.fork()) == 0:
            os.close(end)
            os.read(begin, 1)
            os._exit(0)
    with (path.parents[1] / "locks" / "one.lock").open("a") as free:
        fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(end)
    os.close(begin)
    os.waitpid(pid, 0)


def test_the_error_for_an_unwritable_cache_says_how_to_name_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROCKETSHIM_CACHE", str(tmp_path / "file"))
    with pytest.raises(LocalBrokerError, match="ROCKETSHIM_CACHE"), exclusive("one"):
        pass

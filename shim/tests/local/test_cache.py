import os
import subprocess
import sys
from pathlib import Path

import pytest

from rocketshim.errors import ConfigError
from rocketshim_local.cache import cache_dir, exclusive, filling, read_file_set


def test_the_cache_is_in_the_named_folder_else_xdg_else_home() -> None:
    assert cache_dir({"ROCKETSHIM_CACHE": "/a/b", "XDG_CACHE_HOME": "/x"}) == Path("/a/b")
    assert cache_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/rocketshim")
    assert cache_dir({}) == Path.home() / ".cache" / "rocketshim"


def test_a_relative_xdg_folder_is_ignored_as_the_specification_requires() -> None:
    assert cache_dir({"XDG_CACHE_HOME": "x"}) == Path.home() / ".cache" / "rocketshim"


def test_the_error_for_a_relative_cache_folder_has_its_value() -> None:
    with pytest.raises(ConfigError, match=r"ROCKETSHIM_CACHE='some/where' is relative"):
        cache_dir({"ROCKETSHIM_CACHE": "some/where"})


def test_a_written_set_is_read_back_with_sizes_and_hashes(tmp_path: Path) -> None:
    path = tmp_path / "set"
    with filling(path, {"made from": "x"}) as folder:
        (folder / "b.jar").write_bytes(b"22")
        (folder / "a.jar").write_bytes(b"1")
        (folder / "scratch").mkdir()
    found = read_file_set(path)
    assert found is not None
    assert list(found.files) == ["a.jar", "b.jar"]
    assert found.size_bytes == 3
    assert found.about == {"made from": "x"}
    assert found.damaged() == []
    assert sorted(entry.name for entry in path.iterdir()) == ["a.jar", "b.jar", "manifest.json"]


def fill_and_fail(path: Path) -> None:
    with filling(path, {}) as folder:
        (folder / "a").write_bytes(b"new")
        raise InterruptedError


def test_a_failed_write_leaves_nothing_and_keeps_the_previous_set(tmp_path: Path) -> None:
    path = tmp_path / "set"
    with filling(path, {}) as folder:
        (folder / "a").write_bytes(b"old")
    with pytest.raises(InterruptedError):
        fill_and_fail(path)
    assert (path / "a").read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["set"]


def test_the_files_of_a_killed_write_are_removed_by_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "set"
    killed = f"""
import os, pathlib, signal
from rocketshim_local.cache import filling
with filling(pathlib.Path({str(path)!r}), {{}}) as folder:
    (folder / "half").write_bytes(b"x")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", killed], check=False)  # noqa: S603
    assert read_file_set(path) is None
    assert len(list(tmp_path.iterdir())) == 1
    with filling(path, {}) as folder:
        (folder / "whole").write_bytes(b"x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["set"]


@pytest.mark.parametrize("harm", ["remove", "shorten", "garble manifest", "empty manifest"])
def test_an_incomplete_set_is_not_returned(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "set"
    with filling(path, {}) as folder:
        (folder / "a").write_bytes(b"content")
    match harm:
        case "remove":
            (path / "a").unlink()
        case "shorten":
            (path / "a").write_bytes(b"text")
        case "garble manifest":
            (path / "manifest.json").write_text("{")
        case _:
            (path / "manifest.json").write_text("[]")
    assert read_file_set(path) is None


def test_changed_content_of_the_same_size_is_detected_by_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "set"
    with filling(path, {}) as folder:
        (folder / "a").write_bytes(b"content")
        (folder / "b").write_bytes(b"content")
    (path / "b").write_bytes(b"CONTENT")
    found = read_file_set(path)
    assert found is not None
    assert found.damaged() == ["b"]


def test_a_lock_is_released_when_its_holder_is_killed(tmp_path: Path) -> None:
    lock = tmp_path / "locks" / "one.lock"
    holder = f"""
import os, pathlib, signal
from rocketshim_local.cache import exclusive
with exclusive(pathlib.Path({str(lock)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", holder], check=False)  # noqa: S603
    assert ended.returncode == -9
    with exclusive(lock):
        assert lock.exists()


def test_the_error_for_an_unwritable_cache_says_how_to_name_another_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="ROCKETSHIM_CACHE"), exclusive(tmp_path / "file" / "locks" / "one.lock"):
        pass
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208

import json
import os
import re
from pathlib import Path

import pytest

from rocketshim.errors import LocalBrokerError
from rocketshim_local.home import KEPT_LOGS, ClusterHome, random_id
from rocketshim_local.jars import KAFKA_VERSION


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROCKETSHIM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fill(home: ClusterHome) -> None:
    for folder in (home.path / "node-1" / "data", home.path / "node-1" / "log"):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")


def test_a_random_id_has_22_characters_and_never_looks_like_an_option() -> None:
    for text in (random_id() for _ in range(1_000)):
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", text)


def test_a_named_folder_keeps_its_data_and_cluster_id(tmp_path: Path) -> None:
    home = ClusterHome(tmp_path / "mine", 1)
    fill(home)
    home.leave()
    home.leave()
    again = ClusterHome(tmp_path / "mine", 1)
    assert again.cluster_id == home.cluster_id
    assert (again.path / "node-1" / "data" / "file").exists()
    again.leave()


def test_leaving_a_folder_in_the_cache_removes_data_and_keeps_logs() -> None:
    home = ClusterHome(None, 1)
    fill(home)
    home.leave()
    assert not (home.path / "node-1" / "data").exists()
    assert (home.path / "node-1" / "log" / "file").exists()


def test_a_folder_in_use_is_rejected_and_stays_locked(tmp_path: Path) -> None:
    first = ClusterHome(tmp_path / "mine", 1)
    for _ in range(2):
        with pytest.raises(LocalBrokerError, match="in use by another local cluster"):
            ClusterHome(tmp_path / "mine", 1)
    first.leave()
    ClusterHome(tmp_path / "mine", 1).leave()


def test_a_folder_of_another_cluster_size_is_rejected_and_left_unlocked(tmp_path: Path) -> None:
    ClusterHome(tmp_path / "mine", 3).leave()
    with pytest.raises(LocalBrokerError, match="belongs to a cluster of 3 brokers, not 1"):
        ClusterHome(tmp_path / "mine", 1)
    ClusterHome(tmp_path / "mine", 3).leave()


@pytest.mark.parametrize(("noted", "shown"), [({"kafka": "99.0.0"}, "99.0.0"), ({}, "4.3.1")])
def test_data_of_a_newer_kafka_are_left_as_they_are(tmp_path: Path, noted: dict[str, str], shown: str) -> None:
    """A broker that reads them ends with a trace of Java. Folders without a version were written by Kafka 4.3.1."""
    about = tmp_path / "mine" / "cluster.json"
    about.parent.mkdir()
    about.write_text(json.dumps({"cluster_id": "x", "brokers": 1, **noted}))
    before = about.read_text()
    with pytest.raises(LocalBrokerError, match=f"has data of Kafka {shown}, which the local broker"):
        ClusterHome(tmp_path / "mine", 1)
    assert about.read_text() == before


def test_data_of_an_older_kafka_are_noted_as_those_of_the_one_that_wrote_last(tmp_path: Path) -> None:
    about = tmp_path / "mine" / "cluster.json"
    about.parent.mkdir()
    about.write_text(json.dumps({"cluster_id": "x", "brokers": 1, "kafka": "4.1.2"}))
    ClusterHome(tmp_path / "mine", 1).leave()
    assert json.loads(about.read_text()) == {"cluster_id": "x", "brokers": 1, "kafka": KAFKA_VERSION}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"brokers": "many", "cluster_id": "x"}'])
def test_a_folder_with_an_unreadable_description_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "cluster.json").write_text(text)
    with pytest.raises(LocalBrokerError, match=r"cluster\.json does not describe a cluster"):
        ClusterHome(tmp_path / "mine", 1)


def test_the_error_names_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalBrokerError, match=r"cannot use the folder .*file/mine"):
        ClusterHome(tmp_path / "file" / "mine", 1)


def test_data_of_a_crashed_cluster_are_removed_and_data_of_a_running_one_are_not() -> None:
    living = ClusterHome(None, 1)
    fill(living)
    if (crashed_pid := os.fork()) == 0:
        fill(ClusterHome(None, 1))
        os._exit(0)  # without leave(), like a crash
    os.waitpid(crashed_pid, 0)
    homes = [path for path in living.path.parent.iterdir() if path != living.path]
    assert len(homes) == 1
    assert (homes[0] / "node-1" / "data").exists()
    ClusterHome(None, 1).leave()
    assert not (homes[0] / "node-1" / "data").exists()
    assert (homes[0] / "node-1" / "log").exists()
    assert (living.path / "node-1" / "data").exists()
    living.leave()


def test_only_the_newest_logs_are_kept(cache: Path) -> None:
    for number in range(KEPT_LOGS + 3):
        old = cache / "clusters" / f"20200101-0000{number:02d}-x"
        old.mkdir(parents=True)
        (old / "in-use").touch()
        (old / "cluster.json").write_text(json.dumps({"cluster_id": "x", "brokers": 1}))
    home = ClusterHome(None, 1)
    left = sorted(path.name for path in (cache / "clusters").iterdir() if path != home.path)
    assert left == [f"20200101-0000{number:02d}-x" for number in range(3, KEPT_LOGS + 3)]
    home.leave()


def test_processes_that_start_at_the_same_time_do_not_disturb_each_other(cache: Path) -> None:
    begin, end = os.pipe()
    pids = [pid for _ in range(4) if (pid := fork_and_start(begin, end))]
    for number in range(400):
        old = cache / "clusters" / f"20200101-000{number:03d}-x"
        old.mkdir(parents=True)
        (old / "in-use").touch()
    os.close(end)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    os.close(begin)
    assert len(list((cache / "clusters").iterdir())) in range(KEPT_LOGS, KEPT_LOGS + 5)


def fork_and_start(begin: int, end: int) -> int:
    """Fork a process that starts and leaves a cluster when the last writer of a pipe has closed it."""
    if pid := os.fork():
        return pid
    status = 1
    try:
        os.close(end)
        os.read(begin, 1)
        ClusterHome(None, 1).leave()
        status = 0
    finally:
        os._exit(status)

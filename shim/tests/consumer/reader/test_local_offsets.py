"""The local file of positions: whatever stops the process, the old positions or the new ones are there."""

import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from rocketshim.consumer.push.assembly import _consumer_config
from rocketshim.consumer.reader import local_offsets
from rocketshim.consumer.reader.local_offsets import PROCESS_VARIABLE, LocalOffsetStore, offset_folder
from rocketshim.errors import ConsumerError, OffsetStoreError
from rocketshim.settings.consumer import PushConsumerSettings
from rocketshim_topics import TopicNames


def store_of(folder: Path, cluster: str = "c", **ids: str) -> LocalOffsetStore:
    return LocalOffsetStore(folder, cluster, lambda topic: ids.get(topic, ""))


def at(offset: int, partition: int = 0, topic: str = "t", metadata: str = "m") -> TopicPartition:
    return TopicPartition(topic, partition, offset, metadata=metadata)


def offsets(store: LocalOffsetStore, *partitions: int, topic: str = "t") -> list[int]:
    return [item.offset for item in store.committed([TopicPartition(topic, number) for number in partitions])]


def test_positions_survive_the_process(tmp_path: Path) -> None:
    with closing(store_of(tmp_path)) as store:
        assert offsets(store, 0, 1) == [OFFSET_INVALID, OFFSET_INVALID]
        store.commit(offsets=[at(5), at(7, 1)])
        store.commit(offsets=[at(6)])
    with closing(store_of(tmp_path)) as again:
        assert offsets(again, 0, 1, 2) == [6, 7, OFFSET_INVALID]
        assert again.committed([TopicPartition("t", 0)])[0].metadata == "m"


@pytest.mark.parametrize("what", ["folder", "files"])
def test_a_folder_that_is_deleted_while_it_is_used_is_made_again_with_all_positions(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "client" / "group"
    with closing(store_of(folder)) as store:
        store.commit(offsets=[at(5), at(7, 1)])
        for file in list(folder.iterdir()):
            file.unlink()
        if what == "folder":
            folder.rmdir()
            folder.parent.rmdir()
        store.commit(offsets=[at(6)])
        with pytest.raises(OffsetStoreError, match="in use"):
            store_of(folder)
    with closing(store_of(folder)) as again:
        assert offsets(again, 0, 1) == [6, 7]


def test_positions_of_a_deleted_folder_are_written_when_the_store_is_closed(tmp_path: Path) -> None:
    store = store_of(tmp_path / "f")
    store.commit(offsets=[at(5)])
    shutil.rmtree(tmp_path / "f")
    store.close()
    with closing(store_of(tmp_path / "f")) as again:
        assert offsets(again, 0) == [5]


def test_after_a_deletion_the_positions_of_another_process_are_not_overwritten(tmp_path: Path) -> None:
    first = store_of(tmp_path / "f")
    first.commit(offsets=[at(5)])
    shutil.rmtree(tmp_path / "f")
    with closing(store_of(tmp_path / "f")) as second:
        second.commit(offsets=[at(9)])
        with pytest.raises(KafkaException, match="in use by process"):
            first.commit(offsets=[at(6)])
        first.close()
        second.commit(offsets=[at(10)])
    with closing(store_of(tmp_path / "f")) as again:
        assert offsets(again, 0) == [10]


def test_a_second_store_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    first = store_of(tmp_path)
    with pytest.raises(OffsetStoreError, match=str(os.getpid())):
        store_of(tmp_path)
    first.close()
    first.close()
    store_of(tmp_path).close()


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path\n"
        "from rocketshim.consumer.reader.local_offsets import LocalOffsetStore\n"
        f"store = LocalOffsetStore(Path({str(tmp_path)!r}), 'c', lambda topic: '')\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9  # noqa: S603
    store_of(tmp_path).close()


def test_positions_of_another_cluster_are_refused(tmp_path: Path) -> None:
    with closing(store_of(tmp_path, "one")) as store:
        store.commit(offsets=[at(5)])
    with pytest.raises(ConsumerError, match="cluster one, but this cluster is two"):
        store_of(tmp_path, "two")
    with closing(store_of(tmp_path, "one")) as again:
        assert offsets(again, 0) == [5]


def test_a_topic_that_was_created_again_starts_at_its_first_message(tmp_path: Path) -> None:
    with closing(store_of(tmp_path, t="first")) as store:
        assert offsets(store, 0) == [OFFSET_INVALID]
        store.commit(offsets=[at(5), at(8, topic="other")])
    with closing(store_of(tmp_path, t="second")) as again:
        assert offsets(again, 0) == [0]
        assert offsets(again, 0, topic="other") == [8]
        again.commit(offsets=[at(2)])
    with closing(store_of(tmp_path, t="second")) as third:
        assert offsets(third, 0) == [2]


@pytest.mark.parametrize("rename", [0, 1], ids=["before the old file is put aside", "before the new one is in place"])
def test_a_crash_while_writing_leaves_the_old_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rename: int
) -> None:
    """The process ends before one of the two renames of a write."""
    with closing(store_of(tmp_path)) as store:
        store.commit(offsets=[at(1)])
        store.commit(offsets=[at(2)])
        done: list[Any] = []
        real = Path.replace

        def replace(path: Path, target: Path) -> Path:
            if len(done) == rename:
                raise KeyboardInterrupt
            done.append(path)
            return real(path, target)

        monkeypatch.setattr(Path, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            store.commit(offsets=[at(3)])
        monkeypatch.undo()
    with closing(store_of(tmp_path)) as again:
        assert offsets(again, 0) == [2]


def test_a_damaged_file_is_replaced_by_its_backup(tmp_path: Path) -> None:
    with closing(store_of(tmp_path)) as store:
        store.commit(offsets=[at(1)])
        store.commit(offsets=[at(2)])
    path = tmp_path / "offsets.json"
    path.write_bytes(path.read_bytes()[:-20])
    with closing(store_of(tmp_path)) as again:
        assert offsets(again, 0) == [1]


def test_a_crash_in_the_first_write_after_damage_leaves_the_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(store_of(tmp_path)) as store:
        store.commit(offsets=[at(1)])
        store.commit(offsets=[at(2)])
    (tmp_path / "offsets.json").write_bytes(b"damaged")
    with closing(store_of(tmp_path)) as store:
        real = Path.replace

        def replace(path: Path, target: Path) -> Path:
            if target.name == "offsets.json":
                raise KeyboardInterrupt
            return real(path, target)

        monkeypatch.setattr(Path, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            store.commit(offsets=[at(3)])
        monkeypatch.undo()
    with closing(store_of(tmp_path)) as store:
        assert offsets(store, 0) == [1]
        store.commit(offsets=[at(4)])
        store.commit(offsets=[at(5)])
    (tmp_path / "offsets.json").write_bytes(b"damaged")
    with closing(store_of(tmp_path)) as again:
        assert offsets(again, 0) == [4], "a whole file becomes the backup again"


def test_lost_offsets_are_an_error_and_never_a_new_start(tmp_path: Path) -> None:
    with closing(store_of(tmp_path)) as store:
        store.commit(offsets=[at(1)])
    (tmp_path / "offsets.json").write_bytes(b"")
    with pytest.raises(OffsetStoreError, match="remove"):
        store_of(tmp_path)
    (tmp_path / "offsets.json").unlink()
    store_of(tmp_path).close()  # the refused store has released the lock


def test_a_failed_write_is_a_refused_commit_and_the_next_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(store_of(tmp_path)) as store:
        store.commit(offsets=[at(1)])

        def full(descriptor: int) -> None:
            del descriptor
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(local_offsets.os, "fsync", full)
        with pytest.raises(KafkaException) as caught:
            store.commit(offsets=[at(2)])
        assert caught.value.args[0].code() == KafkaError._FS
        monkeypatch.undo()
        assert offsets(store, 0) == [1]
        store.commit(offsets=[at(3)])
        assert offsets(store, 0) == [3]


def test_a_directory_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OffsetStoreError, match="offset_store_dir"):
        store_of(tmp_path / "file" / "below")


def test_each_client_and_group_has_its_own_directory(tmp_path: Path) -> None:
    names = TopicNames()
    ids = ["h@1", "h@2", "../x", "..", ".", "a/b", "a-b", "ü", "x" * 300, "x" * 301]
    folders = [
        offset_folder(str(tmp_path), each, names, group) for each in ids for group in ("g", "h", "../g", "g" * 200)
    ]
    folders.append(offset_folder(str(tmp_path), "h@1", TopicNames("pay"), "g"))
    assert len(set(folders)) == len(folders)
    for folder in folders:
        assert folder.resolve().is_relative_to(tmp_path.resolve())
        assert folder.resolve() == folder
        folder.mkdir(parents=True)


@pytest.mark.parametrize(
    ("number", "wanted"), [(None, "shop"), ("0", "shop"), ("1", "shop-1"), ("12", "shop-12")], ids=str
)
def test_each_process_of_a_run_has_its_own_static_member_id(
    number: str | None, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PROCESS_VARIABLE, raising=False)
    if number is not None:
        monkeypatch.setenv(PROCESS_VARIABLE, number)
    found = [
        _consumer_config(PushConsumerSettings.make(bootstrap="b:1", group="g", client=client), print, orderly=False)
        for client in ({"group.instance.id": "shop"}, {})
    ]
    assert [each.get("group.instance.id") for each in found] == [wanted, None]

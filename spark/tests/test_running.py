"""The folders to which report pages are written."""

from pathlib import Path

import pytest

from rocketshim_spark.running import local_folder


@pytest.mark.parametrize("path", ["/lake/a", "file:/lake/a", "file:///lake/a"])
def test_a_local_folder_is_recognised_in_every_notation(path: str) -> None:
    assert local_folder(path) == Path("/lake/a")


def test_a_relative_path_may_contain_a_colon_after_a_slash() -> None:
    assert local_folder("lake/a:b") == Path("lake/a:b")


@pytest.mark.parametrize("path", ["hdfs://name/lake", "hdfs:/lake", "s3a://bucket/lake", "viewfs://lake/a"])
def test_other_file_systems_have_no_local_folder(path: str) -> None:
    assert local_folder(path) is None

"""Where pages are written."""

from pathlib import Path

import pytest

from rocketshim_spark.running import local_folder


@pytest.mark.parametrize("path", ["/lake/a", "file:/lake/a", "file:///lake/a"])
def test_a_local_folder_is_one_however_it_is_written(path: str) -> None:
    assert local_folder(path) == Path("/lake/a")


def test_a_folder_of_this_directory_may_have_a_colon_further_down() -> None:
    assert local_folder("lake/a:b") == Path("lake/a:b")


@pytest.mark.parametrize("path", ["hdfs://name/lake", "hdfs:/lake", "s3a://bucket/lake", "viewfs://lake/a"])
def test_other_file_systems_have_no_folder_here(path: str) -> None:
    assert local_folder(path) is None

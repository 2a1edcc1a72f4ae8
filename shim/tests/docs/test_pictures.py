"""The pictures of the documentation are what their scripts draw, and load nothing from another host."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tools.pictures import FOLDER, PICTURES, path_of_a_message

FILES = sorted(FOLDER.glob("*.svg"))


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_drawn_by_its_script(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == PICTURES[name]()


def test_the_path_of_a_message_has_colours_for_dark_mode() -> None:
    assert "@media (prefers-color-scheme: dark)" in path_of_a_message()


@pytest.mark.parametrize("picture", FILES, ids=lambda path: path.stem)
def test_a_picture_loads_nothing_from_another_host(picture: Path) -> None:
    root = ET.fromstring(picture.read_text(encoding="utf-8"))  # noqa: S314 - our own files
    texts = [value for element in root.iter() for value in (*element.attrib.values(), element.text or "")]
    assert not [text for text in texts if "url(http" in text or "url('http" in text or "@import" in text]

"""The browser's files are those of the lock: nothing was changed, nothing else is there."""

import hashlib
import json
from pathlib import Path

import rocketshim.console

STATIC = Path(rocketshim.console.__file__).parent / "static"
LOCK = json.loads((STATIC / "vendor.lock.json").read_text())
OURS = {"console.css", "console.js", "favicon.svg", "vendor.lock.json"}


def test_every_file_has_the_hash_of_the_lock() -> None:
    locked = {name: facts["sha256"] for package in LOCK.values() for name, facts in package["files"].items()}
    assert {path.name for path in STATIC.iterdir()} == locked.keys() | OURS
    assert {name: hashlib.sha256((STATIC / name).read_bytes()).hexdigest() for name in locked} == locked


def test_every_package_names_its_version_integrity_and_licence() -> None:
    for package in LOCK.values():
        assert package["integrity"].startswith("sha512-")
        assert package["licence"] in {"0BSD", "MIT"}
        assert any("LICENSE" in name for name in package["files"])


def test_no_template_has_scripts_or_styles_of_its_own() -> None:
    for template in (STATIC.parent / "templates").glob("*.html"):
        text = template.read_text()
        assert " style=" not in text, template.name
        assert "<style" not in text, template.name
        assert text.count("<script") == text.count("<script src="), template.name
        assert "| safe" not in text, template.name
        assert not [part for part in text.split() if part.startswith("on") and '="' in part], template.name

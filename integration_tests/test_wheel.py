"""The wheel holds everything: built, unpacked elsewhere, and imported from another directory."""

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

IMPORT_ALL = """
import importlib, pkgutil, sys
sys.path[:0] = [sys.argv[1]]
sys.path.append(sys.argv[2])
import rocketshim, rocketshim_local, rocketshim_spark, rocketshim_topics
seen = 0
for package in (rocketshim_topics, rocketshim, rocketshim_local, rocketshim_spark):
    assert package.__file__.startswith(sys.argv[1]), package.__file__
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            seen += 1
for name in dir(rocketshim):
    getattr(rocketshim, name)
from rocketshim_local.demo.flights import load
assert len(load()) == 943
print(seen)
"""


def test_every_module_of_the_wheel_can_be_imported_from_anywhere(wheel: Path, tmp_path: Path) -> None:
    unpacked = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(unpacked)
    # -S: no .pth file leads back to the checkout; what the wheel depends on comes from this environment
    command = [sys.executable, "-I", "-S", "-c", IMPORT_ALL, str(unpacked), sysconfig.get_path("platlib")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 80


def test_the_wheel_is_typed_and_licensed_and_holds_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for package in ("rocketshim", "rocketshim_local", "rocketshim_topics", "rocketshim_spark"):
        assert f"{package}/py.typed" in names
    assert {"rocketshim_local/bootstrap.checkpoint", "rocketshim_local/log4j2.properties"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if "/tests/" in name or name.startswith("integration_tests")]

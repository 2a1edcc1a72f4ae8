"""Java classes of the tests that a broker loads: compiled here, which needs a JDK and not just a Java runtime."""

import shutil
import subprocess
from pathlib import Path

from rocketshim_local.startup_kit import startup_kit

__all__ = ["options_with"]


def options_with(name: str, folder: Path) -> list[str]:
    """Return the options of a JVM that finds the class of `<name>.java` before Kafka's; `folder` gets the class."""
    kit, classes = startup_kit(), folder / "classes"
    javac = shutil.which("javac")
    assert javac is not None, "no javac on PATH: install a JDK of at least Java 17"
    source = Path(__file__).with_name(f"{name}.java")
    subprocess.run([javac, "--release", "17", "-cp", kit.class_path, "-d", classes, source], check=True)
    return ["-Xshare:off", "-cp", f"{classes}:{kit.class_path}"]

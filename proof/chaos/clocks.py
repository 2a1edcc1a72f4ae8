"""Set the wall clocks of the brokers of a run, as `integration_tests/stepped_broker.py` does for one broker."""

import mmap
import shutil
import subprocess
from pathlib import Path
from typing import Final

from rocketshim_local.startup_kit import startup_kit

__all__ = ["BrokerClocks"]

_SOURCE: Final = Path(__file__).parents[2] / "integration_tests" / "SystemTime.java"


class BrokerClocks:
    """The clocks of all brokers, set together; needs a JDK.

    Args:
        folder: gets the compiled class and the offset of the clocks.
    """

    def __init__(self, folder: Path) -> None:
        self._classes, self._offset_file = folder / "classes", folder / "offset"
        self._class_path = startup_kit().class_path
        compiler = shutil.which("javac")
        if compiler is None:
            raise FileNotFoundError("no javac on PATH: setting the brokers' clocks needs a JDK of at least Java 17")
        options = ["--release", "17", "-cp", self._class_path, "-d", str(self._classes)]
        subprocess.run([compiler, *options, str(_SOURCE)], check=True)  # noqa: S603 - our own source
        self._offset_file.write_bytes(bytes(8))
        with self._offset_file.open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), 8)

    @property
    def jvm_options(self) -> list[str]:
        """What the brokers' JVMs need."""
        property_ = f"-Drocketshim.clock.offset={self._offset_file}"
        return [property_, "-Xshare:off", "-cp", f"{self._classes}:{self._class_path}"]

    def set(self, offset_ms: int) -> None:
        """Set the clocks to this far from the machine's; in force when this returns."""
        self._offset[:8] = offset_ms.to_bytes(8, "little", signed=True)

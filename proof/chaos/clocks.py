"""Set the wall clocks of the brokers and of the clients of a run, as the integration tests do for one of them."""

import mmap
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from rocketshim_local.startup_kit import startup_kit

__all__ = ["BrokerClocks", "ClientClocks"]

_TESTS: Final = Path(__file__).parents[2] / "integration_tests"
_SOURCE: Final = _TESTS / "SystemTime.java"


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


class ClientClocks:
    """The clocks of all client processes, each set alone: what Python and librdkafka see; needs gcc.

    Args:
        folder: gets the compiled library and the offsets of the clocks.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._library = folder / "shift_clock.so"
        compiler = shutil.which("gcc")
        if compiler is None:
            raise FileNotFoundError("no gcc on PATH: setting the clients' clocks needs it")
        options = ["-shared", "-fPIC", "-O2", "-o", str(self._library)]
        subprocess.run([compiler, *options, str(_TESTS / "shift_clock.c"), "-ldl"], check=True)  # noqa: S603 - as above

    def env(self, name: str) -> dict[str, str]:
        """Return the environment of a process of this name, whose clock is right until it is set."""
        self.set(name, 0)
        return {**os.environ, "LD_PRELOAD": str(self._library), "SHIFT_FILE": str(self._file(name))}

    def set(self, name: str, ahead_s: int) -> None:
        """Set the clock of a process to this far from the machine's; in force when this returns."""
        path = self._file(name)
        path.touch()
        with path.open("r+b") as file:
            file.write(ahead_s.to_bytes(8, "little", signed=True))

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.clock"

"""Fetch the browser's files of the console from npm again: `python tools/vendor.py` (`make vendor`); it needs npm.

`shim/rocketshim/console/static/vendor.lock.json` has for each package its version, its integrity as npm publishes it,
its licence, and which of its files we ship with their SHA-256. A package that does not match its integrity is refused.
To take another version: change version and integrity in that file, run this script, and look at the difference.
"""

import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

STATIC: Final = Path(__file__).parents[1] / "shim" / "rocketshim" / "console" / "static"
LOCK: Final = STATIC / "vendor.lock.json"


def main() -> int:
    """Fetch every package of the lock, and write its files and their hashes."""
    lock: dict[str, Any] = json.loads(LOCK.read_text())
    for name, package in lock.items():
        with tempfile.TemporaryDirectory() as folder:
            packed = _packed(f"{name}@{package['version']}", Path(folder))
            integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
            if integrity != package["integrity"]:
                print(f"{name}: the package has the integrity {integrity}, not that of the lock", file=sys.stderr)
                return 1
            with tarfile.open(packed) as archive:
                for file, facts in package["files"].items():
                    member = archive.extractfile(f"package/{facts['from']}")
                    content = b"" if member is None else member.read()
                    (STATIC / file).write_bytes(content)
                    facts["sha256"] = hashlib.sha256(content).hexdigest()
    LOCK.write_text(json.dumps(lock, indent=2) + "\n")
    return 0


def _packed(package: str, folder: Path) -> Path:
    subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True, capture_output=True)
    return next(folder.glob("*.tgz"))


if __name__ == "__main__":
    sys.exit(main())

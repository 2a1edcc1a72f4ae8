"""Plans as files in a folder, each named by its id: the same files that `rocketshim dlq plan --out` writes."""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rocketshim.admin.redrive_planning import read_plan
from rocketshim.errors import ConfigError
from rocketshim_topics.redrive_plan import RedrivePlan

__all__ = ["PlanFiles"]


class PlanFiles:
    """The plans in a folder.

    Args:
        folder: created when the first plan is stored; only its owner may read it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, plan: RedrivePlan) -> None:
        """Store a plan. The file appears complete or not at all.

        Raises:
            ConfigError: the folder cannot be written, for example because its disk is full.
        """
        part: Path | None = None
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self._folder, suffix=".part")
            part = Path(name)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(plan.to_json())
            part.replace(self._folder / f"{plan.id}.json")
        except OSError as error:
            if part is not None:
                part.unlink(missing_ok=True)
            raise ConfigError(f"the plan cannot be stored in {self._folder} ({error.strerror})") from error

    def load(self, plan_id: str) -> RedrivePlan | None:
        """Return a plan; None: there is none with this id.

        Raises:
            ConfigError: its file was changed, or cannot be read.
        """
        path = self._folder / f"{plan_id}.json"
        if re.fullmatch(r"[0-9a-f]{20}", plan_id) is None or not path.is_file():
            return None
        return read_plan(path)

    def listed(self, most: int = 100) -> Iterator[RedrivePlan]:
        """Yield the plans, the newest first, one in memory at a time; leave out a file that is not a plan."""
        ages_ns = {}
        for path in self._folder.glob("*.json"):
            with suppress(OSError):  # removed meanwhile
                ages_ns[path] = -path.stat().st_mtime_ns
        for path in sorted(ages_ns, key=ages_ns.__getitem__)[:most]:
            try:
                plan = self.load(path.stem)
            except ConfigError:
                continue
            if plan is not None:
                yield plan

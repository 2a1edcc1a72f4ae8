"""Where the configuration file of the commands is, and the variables that name it and its profile."""

import os
from pathlib import Path
from typing import Final

__all__ = ["CONFIG_VARIABLE", "PROFILE_VARIABLE", "config_file"]

CONFIG_VARIABLE: Final = "ROCKETSHIM_CONFIG"
PROFILE_VARIABLE: Final = "ROCKETSHIM_PROFILE"


def config_file() -> Path:
    """Return the path of the configuration file, which need not exist."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "rocketshim" / "config.toml"

"""The error for a package that is missing because its extra is not installed. The only place that says how to get it.

The package is not on PyPI, so what works is an installation from a clone.
"""

from rocketshim.errors import ConfigError

__all__ = ["missing_extra", "way_in"]


def way_in(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install '.[{extra}]' in a clone of rocketshim"


def missing_extra(what: str, error: ModuleNotFoundError, extra: str) -> ConfigError:
    """Return the error for something that cannot import one of its packages; `what` begins its text."""
    return ConfigError(f"{what} needs the package {error.name}, which is not installed: {way_in(extra)}")

"""rocketshim: RocketMQ's consumption semantics on plain Apache Kafka, from the client side.

A program imports everything it needs from here, and errors from `rocketshim.errors`. The public names are those of
`rocketshim._exports`. It is loaded when the first of them is used, so that `import rocketshim` is quick and
`rocketshim.filters` loads no Kafka client.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocketshim._exports import *  # noqa: F403 - the one list of public names
    from rocketshim._exports import __all__ as __all__
else:
    import importlib

    def __getattr__(name: str) -> object:
        """Return a public name, and load all of them at the first use."""
        if name.startswith("_") and name != "__all__":
            raise AttributeError(f"module 'rocketshim' has no attribute {name!r}")
        exports = importlib.import_module("rocketshim._exports")
        if name == "__all__":
            return exports.__all__
        if name in exports.__all__:
            globals().update({each: getattr(exports, each) for each in exports.__all__})
            return globals()[name]
        raise AttributeError(f"module 'rocketshim' has no attribute {name!r}")

    def __dir__() -> list[str]:
        """Return every public name."""
        return sorted(importlib.import_module("rocketshim._exports").__all__)

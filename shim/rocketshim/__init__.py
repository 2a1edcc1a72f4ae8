"""rocketshim: RocketMQ's consumption semantics on plain Apache Kafka, from the client side.

A program imports everything it needs from here, and errors from `rocketshim.errors`. The public names are those of
`rocketshim._exports`. Each is loaded when it is used, with what it needs: `import rocketshim` is quick, a sender loads
no consumer, and `rocketshim.filters` loads no Kafka client.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocketshim._exports import *  # noqa: F403 - the one list of public names
    from rocketshim._exports import __all__ as __all__
else:
    from importlib import import_module

    from rocketshim._exports import HOMES
    from rocketshim._exports import __all__ as __all__

    def __getattr__(name: str) -> object:
        """Return a public name, and load its module at the first use."""
        if name not in HOMES:
            raise AttributeError(f"module 'rocketshim' has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        """Return every public name."""
        return sorted(HOMES)

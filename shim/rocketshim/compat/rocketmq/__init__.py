"""The modules of `rocketmq-client-python` 2.0 on Kafka: `client`, `exceptions` and `consts`, named as there.

The names of `client` can also be imported from here.
"""

from rocketshim.compat.rocketmq.client import *  # noqa: F403 - the one list of names
from rocketshim.compat.rocketmq.client import __all__ as __all__

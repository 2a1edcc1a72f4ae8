"""What `rocketshim run` loads in each process of `manage.py rocketshim_consume`."""

import os
from typing import Final

import django
from django.apps import apps

from rocketshim import PushConsumer
from rocketshim.errors import ConfigError

__all__ = ["GROUP_VARIABLE", "consumer"]

GROUP_VARIABLE: Final = "ROCKETSHIM_DJANGO_GROUP"
"""The environment variable with the group, which the processes inherit."""


def consumer() -> PushConsumer:
    """Set Django up and return the consumer of the group.

    Raises:
        ConfigError: the group has no listener, or `ROCKETSHIM["groups"]` has a typo of a group.
    """
    django.setup()
    group, config = os.environ[GROUP_VARIABLE], apps.get_app_config("rocketshim")
    consumers = config.consumers
    config.check_groups()
    if group not in consumers:
        known = ", ".join(sorted(consumers)) or "none"
        raise ConfigError(f"no listener has group={group!r}; groups with listeners in <app>/listeners.py: {known}")
    found: PushConsumer = consumers[group]
    return found

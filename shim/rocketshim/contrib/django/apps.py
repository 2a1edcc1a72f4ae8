"""The Django application: it owns the producer and the consumers of a process, and imports `<app>/listeners.py`."""

import os
import threading
from collections.abc import Mapping
from typing import Any, Final

import django
from django.apps import AppConfig, apps
from django.conf import settings
from django.db import close_old_connections
from django.utils.module_loading import autodiscover_modules

from rocketshim import ConsumeMessageContext, Producer, ProducerSettings, PushConsumer, PushConsumerSettings
from rocketshim.errors import ConfigError
from rocketshim.settings import advice

__all__ = ["GROUP_VARIABLE", "RocketshimConfig", "run_consumer"]

GROUP_VARIABLE: Final = "ROCKETSHIM_DJANGO_GROUP"
"""The environment variable with the group, which the processes of `manage.py rocketshim_consume` inherit."""


class RocketshimConfig(AppConfig):
    """The producer and the consumers of a process, made from `ROCKETSHIM` in Django's settings.

    Thread-safety: any thread may call `producer`; `consumer` belongs to the thread that sets Django up.
    """

    name = "rocketshim.contrib.django"
    label = "rocketshim"

    def __init__(self, app_name: str, app_module: Any) -> None:
        super().__init__(app_name, app_module)
        self.consumers: dict[str, PushConsumer] = {}
        self._lock = threading.Lock()
        self._producer: tuple[int, Producer] | None = None  # with the process that it belongs to

    def ready(self) -> None:
        """Import the module `listeners` of every application."""
        autodiscover_modules("listeners")

    def consumer(self, group: str) -> PushConsumer:
        """Return the consumer of a group; one for each group."""
        if group not in self.consumers:
            shared, _, groups = _configured()
            values = {**shared, **groups.get(group, {}), "group": group}
            made = PushConsumer(settings=PushConsumerSettings.make(**values))
            made.register_consume_message_hook(_CloseOldConnections())
            self.consumers[group] = made
        return self.consumers[group]

    def check_groups(self) -> None:
        """Refuse settings of a group whose name is a typo of a group with listeners; they would have no effect.

        Other groups without listeners are none of this program's business: their listeners may run elsewhere.

        Raises:
            ConfigError: there are such settings.
        """
        groups = _configured()[2]
        for name in groups:
            meant = advice(name, [each for each in self.consumers if each not in groups])
            if name not in self.consumers and meant:
                raise ConfigError(f"ROCKETSHIM['groups'] has {name!r}, and no listener has this group: {meant}")

    def producer(self) -> Producer:
        """Return the producer of this process; a forked process gets its own."""
        with self._lock:
            if self._producer is None or self._producer[0] != os.getpid():
                shared, values, _ = _configured()
                self._producer = (os.getpid(), Producer(settings=ProducerSettings.make(**{**shared, **values})))
            return self._producer[1]


def run_consumer() -> PushConsumer:
    """Set Django up and return the consumer of the group; each process of `manage.py rocketshim_consume` loads this.

    Raises:
        ConfigError: the group has no listener, or `ROCKETSHIM["groups"]` has a typo of a group.
    """
    django.setup()
    group, config = os.environ[GROUP_VARIABLE], apps.get_app_config("rocketshim")
    consumers: dict[str, PushConsumer] = config.consumers
    config.check_groups()
    if group not in consumers:
        known = ", ".join(sorted(consumers)) or "none"
        raise ConfigError(f"no listener has group={group!r}; groups with listeners in <app>/listeners.py: {known}")
    return consumers[group]


class _CloseOldConnections:
    """Closes database connections that are broken or too old, before and after each listener call."""

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        del context
        close_old_connections()

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        del context
        close_old_connections()


def _configured() -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Mapping[str, Any]]]:
    """Return what producers and consumers share, what is the producer's, and what each group has of its own."""
    shared = getattr(settings, "ROCKETSHIM", None)
    if not isinstance(shared, Mapping):
        raise ConfigError('Django\'s settings have no ROCKETSHIM: write ROCKETSHIM = {"bootstrap": "localhost:9092"}')
    parts = {name: shared.get(name, {}) for name in ("producer", "groups")}
    for name, part in parts.items():
        if not isinstance(part, Mapping):
            raise ConfigError(f"ROCKETSHIM[{name!r}]={part!r:.80}: write a dict")
    rest = {name: value for name, value in shared.items() if name not in parts}
    return rest, parts["producer"], parts["groups"]

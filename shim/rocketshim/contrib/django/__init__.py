"""rocketshim in a Django project: `INSTALLED_APPS += ["rocketshim.contrib.django"]`.

::

    ROCKETSHIM = {                                        # settings.py
        "bootstrap": "localhost:9092",                    # and any other setting that producers and consumers share
        "producer": {"linger_ms": 0},                     # fields of ProducerSettings
        "groups": {"payments": {"consume_thread_min": 8}},  # fields of PushConsumerSettings, by group
    }

    @listener("orders", group="payments")                 # <app>/listeners.py; Django imports it at its start
    def charge(message):
        Order.objects.filter(pk=message.key.decode()).update(paid=True)

    send_on_commit(Message("orders", b"…", key=str(order.pk)))  # anywhere, for example in a view

`manage.py rocketshim_consume --group payments` runs the listeners. Around each call, database connections that are
broken or too old are closed, as Django does around each request. This concerns plain functions; an `async def` listener
uses the connections of the threads in which Django runs its queries.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, Unpack

from django.apps import apps as applications  # `apps` is a module of this package
from django.db import transaction

from rocketshim import Message, Producer, PushConsumer
from rocketshim.errors import MessageError
from rocketshim.settings.consumer import ListenerOptions

__all__ = ["ListenerOptions", "consumer", "listener", "producer", "send_on_commit"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def listener(topic: str, *, group: str, **options: Unpack[ListenerOptions]) -> Callable[[FunctionT], FunctionT]:
    """Decorate a function as the listener of a topic in a consumer group: `consumer(group).listener(topic, …)`.

    Raises:
        ConfigError, FilterSyntaxError: as `PushConsumer.listener`; or a setting is invalid.
    """
    return consumer(group).listener(topic, **options)


def consumer(group: str) -> PushConsumer:
    """Return the consumer of a group, with its listeners. It is not started: `rocketshim_consume` does that.

    Raises:
        ConfigError: `ROCKETSHIM` in Django's settings is missing or invalid.
    """
    found: PushConsumer = applications.get_app_config("rocketshim").consumer(group)
    return found


def producer() -> Producer:
    """Return the producer of this process; it connects at its first send.

    Raises:
        ConfigError: `ROCKETSHIM` in Django's settings is missing or invalid.
    """
    found: Producer = applications.get_app_config("rocketshim").producer()
    return found


def send_on_commit(message: Message, *, using: str | None = None, timeout_s: float = 3.0) -> None:
    """Send a message when the present database transaction is committed; never if it is rolled back.

    Without a transaction the message is sent immediately. If the send fails, or the process dies between commit and
    send, the transaction stays committed and the message is missing. Where that must not happen, store the message in
    an outbox table in the transaction, and send from there.

    Args:
        message: the message.
        using: the name of the database; None: the default one.
        timeout_s: how long the send waits for its delivery report, in seconds.

    Raises:
        MessageError: this is not a message; the transaction is not affected.
        As `Producer.send`: after the commit, from the block that commits.
    """
    if not isinstance(message, Message):
        raise MessageError(f"cannot send {message!r:.80}: give a Message(topic, body, …)")
    transaction.on_commit(partial(producer().send, message, timeout_s=timeout_s), using=using)

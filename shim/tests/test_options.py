"""No option of a public callable is swallowed: an unknown one is refused, with a hint what to write instead."""

import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException

import rocketshim.dropin
from rocketshim import LitePullConsumer, Producer, PullConsumer, PushConsumer
from rocketshim.aio import AsyncProducer
from rocketshim.harness import Harness
from rocketshim.settings import Settings
from rocketshim.transactions import LocalTransactionState, TransactionMQProducer
from rocketshim_topics.errors import RocketshimError
from tools.public_api import MODULES

ADDRESS = "127.0.0.1:1"
UNKNOWN: dict[str, Any] = {"no_such_option": 1}


def handle(message: Any) -> None:
    del message


def _consumer() -> PushConsumer:
    return PushConsumer(ADDRESS, group="g")


def _drop_in() -> rocketshim.dropin.Consumer:
    return rocketshim.dropin.Consumer({"group.id": "g", "rocketshim.retry.enable": True, "log_level": 0})


async def _sent() -> None:
    await AsyncProducer(ADDRESS).send("orders", b"", **UNKNOWN)


def _awaited() -> None:
    with pytest.raises(StopIteration):
        _sent().send(None)


def _transactional(**values: Any) -> TransactionMQProducer:
    return TransactionMQProducer(ADDRESS, group="g", listener=lambda _: LocalTransactionState.UNKNOWN, **values)


def _in_harness() -> None:
    with Harness() as harness:
        harness.send("orders", b"", **UNKNOWN)


OPEN: dict[str, Callable[[], object]] = {
    "rocketshim.Producer": lambda: Producer(ADDRESS, **UNKNOWN),
    "rocketshim.Producer.send": lambda: Producer(ADDRESS).send("orders", b"", **UNKNOWN),
    "rocketshim.Producer.send_async": lambda: Producer(ADDRESS).send_async("orders", b"", **UNKNOWN),
    "rocketshim.Producer.send_oneway": lambda: Producer(ADDRESS).send_oneway("orders", b"", **UNKNOWN),
    "rocketshim.PushConsumer": lambda: PushConsumer(ADDRESS, group="g", **UNKNOWN),
    "rocketshim.PushConsumer.listener": lambda: _consumer().listener("orders", **UNKNOWN),
    "rocketshim.PushConsumer.register_message_listener": lambda: _consumer().register_message_listener(
        "orders", handle, **UNKNOWN
    ),
    "rocketshim.LitePullConsumer": lambda: LitePullConsumer(ADDRESS, group="g", **UNKNOWN),
    "rocketshim.PullConsumer": lambda: PullConsumer(ADDRESS, group="g", **UNKNOWN),
    "rocketshim.aio.AsyncProducer": lambda: AsyncProducer(ADDRESS, **UNKNOWN),
    "rocketshim.aio.AsyncProducer.send": _awaited,
    "rocketshim.dropin.Consumer": lambda: rocketshim.dropin.Consumer({"group.id": "g"}, **UNKNOWN),
    "rocketshim.dropin.Consumer.commit": lambda: _drop_in().commit(**UNKNOWN),
    "rocketshim.dropin.Consumer.subscribe": lambda: _drop_in().subscribe(["orders"], **UNKNOWN),
    "rocketshim.dropin.Producer": lambda: rocketshim.dropin.Producer({}, **UNKNOWN),
    "rocketshim.harness.Harness.send": _in_harness,
    "rocketshim.transactions.TransactionMQProducer": lambda: _transactional(**UNKNOWN),
    "rocketshim.transactions.TransactionMQProducer.transaction": lambda: _transactional().transaction(
        "orders", b"", **UNKNOWN
    ),
}
"""The public callables that take options as `**options`, each called with one that does not exist."""

PASSED_ON = {
    "rocketshim.dropin.Producer.abort_transaction",  # to the client's method, which refuses it
    "rocketshim.dropin.Producer.commit_transaction",
    "rocketshim.contrib.django.listener",  # to `PushConsumer.listener`; tested where Django is set up
}


def _public() -> Iterator[tuple[str, Any]]:
    for path in MODULES:
        module = importlib.import_module(path)
        exported = importlib.import_module("rocketshim._exports") if path == "rocketshim" else module
        for name in exported.__all__:
            found = getattr(module, name)
            if not isinstance(found, type) and not inspect.isroutine(found):
                continue  # a type alias, or a constant
            yield f"{path}.{name}", found
            if isinstance(found, type):
                for member in vars(found):
                    if not member.startswith("_") and callable(getattr(found, member)):
                        yield f"{path}.{name}.{member}", getattr(found, member)


def _is_open(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(each.kind is each.VAR_KEYWORD for each in parameters)


def test_each_public_callable_refuses_an_option_that_does_not_exist() -> None:
    """Python itself refuses it, except for those that are open; each of these is called below."""
    found = {
        name
        for name, function in _public()
        if _is_open(function)
        and not (isinstance(function, type) and issubclass(function, BaseException | Settings))
        and not getattr(function, "_is_protocol", False)
    }
    assert found - PASSED_ON == set(OPEN)


@pytest.mark.parametrize("name", OPEN)
def test_an_open_callable_refuses_an_option_that_does_not_exist(name: str) -> None:
    with pytest.raises((RocketshimError, KafkaException, TypeError)) as caught:
        OPEN[name]()
    assert "no_such_option" in str(caught.value)

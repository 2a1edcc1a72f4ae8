"""What user code may do at its worst: exceptions that cannot be read, and log calls that raise."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from rocketshim import DeadLetter, RetryLater


class NoTextError(Exception):
    def __str__(self) -> str:
        raise OSError("no text")

    __repr__ = __str__


class TextExitsError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class TextIsNoneError(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]  # noqa: PLE0307

    __repr__ = __str__


class Sly(str):
    """A text none of whose methods works."""

    __slots__ = ()

    def __len__(self) -> int:
        raise OSError

    def __getitem__(self, key: Any) -> str:
        raise OSError

    def __str__(self) -> str:
        return self

    def __format__(self, spec: str) -> str:
        raise OSError

    def encode(self, encoding: str = "", errors: str = "") -> bytes:
        raise OSError(encoding, errors)


class TextIsSlyError(Exception):
    def __str__(self) -> str:
        return Sly("sly")


class NoAttributesError(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise OSError(name)


class NoClassError(BaseException):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise OSError


class LiarError(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return DeadLetter


class NoTruthError(Exception):
    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise OSError

    def __eq__(self, other: object) -> bool:
        raise OSError

    def __len__(self) -> int:
        raise OSError


class Meta(type):
    """A class that cannot be asked for anything."""

    def __getattribute__(cls, name: str) -> Any:
        raise OSError(name)


class NoNameError(Exception, metaclass=Meta):
    pass


class SpoiledRetryError(RetryLater):
    @property
    def level(self) -> Any:
        raise OSError

    @level.setter
    def level(self, value: Any) -> None: ...

    @property
    def delay_ms(self) -> Any:
        raise OSError

    @delay_ms.setter
    def delay_ms(self, value: Any) -> None: ...


HOSTILE: Final[dict[str, Callable[[], BaseException]]] = {
    "no text": lambda: NoTextError("x"),
    "its text exits": TextExitsError,
    "its text is None": TextIsNoneError,
    "a sly text": TextIsSlyError,
    "no attributes": lambda: NoAttributesError("x"),
    "no class": NoClassError,
    "a lie about its class": lambda: LiarError("x"),
    "no truth": NoTruthError,
    "no class name": lambda: NoNameError("x"),
    "a spoiled retry": SpoiledRetryError,
    "a huge text": lambda: OSError("x" * 10_000_000),
    "surrogates": lambda: OSError("\ud800\udfff\x00"),
    "odd arguments": lambda: OSError(NoTextError(), {1: NoTruthError()}),
}


@pytest.fixture(params=HOSTILE)
def hostile(request: pytest.FixtureRequest) -> BaseException:
    """Make an exception that cannot be read as others can; where a test lets it out, pytest itself fails."""
    return HOSTILE[request.param]()


class _Raising:
    """A filter, a handler and a factory of log records in one; each raises when it is used."""

    level = 0

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise OSError("this logging is broken")

    filter = handle = __call__


@pytest.fixture(params=["filter", "handler", "record factory"])
def broken_logging(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every log call of the shim's raises, where it is not caught."""
    loggers = [
        logging.getLogger(f"rocketshim.{name}") for name in ("consumer", "group", "producer", "dropin", "worker")
    ]
    before = logging.getLogRecordFactory()
    raising: Any = _Raising()
    for logger in loggers:
        if request.param == "filter":
            logger.addFilter(raising)
        elif request.param == "handler":
            logger.addHandler(raising)
    if request.param == "record factory":
        logging.setLogRecordFactory(raising)
    yield
    logging.setLogRecordFactory(before)
    for logger in loggers:
        logger.removeFilter(raising)
        logger.removeHandler(raising)

"""The fixture `unreadable`: a record whose headers a Kafka client cannot read."""

import ctypes
from collections.abc import Callable
from typing import Any

import pytest


class _UnreadableRecord:
    """A record that a Kafka client cannot read the headers of, as confluent_kafka hands it out.

    The first look at headers raises, a second one gives null pointers: to unpack a pair of those ends the process, and
    the test run with it. After `set_headers` both are gone.
    """

    def __init__(self, record: Any) -> None:
        self._record = record
        self._headers: Any = None
        self._looked = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)

    def __len__(self) -> int:
        return len(self._record)

    def headers(self) -> Any:
        if not self._looked:
            self._looked, self._headers = True, [_pair(2)]
            raise SystemError("returned a result with an exception set")
        return self._headers

    def set_headers(self, headers: Any) -> None:
        self._looked, self._headers = True, headers


_pair = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_ssize_t)(("PyTuple_New", ctypes.pythonapi))


@pytest.fixture(scope="session")
def unreadable() -> Callable[[Any], Any]:
    """Makes a record one with a header whose name is no UTF-8."""
    return _UnreadableRecord

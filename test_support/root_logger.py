"""The fixture `root_logger`: a test that configures logging, as a command does, leaves nothing behind."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Restore the handlers and the level of the root logger after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)

"""Loggers whose calls never raise, and that log as others do."""

import logging
from io import StringIO

import pytest

from rocketshim.logs import safe_logger

LOG = safe_logger("rocketshim.consumer")


@pytest.mark.usefixtures("broken_logging")
def test_a_log_call_never_raises(capsys: pytest.CaptureFixture[str]) -> None:
    LOG.error("consumer.something")
    assert "this logging is broken" in capsys.readouterr().err
    logging.raiseExceptions = False
    try:
        LOG.error("consumer.something")
    finally:
        logging.raiseExceptions = True
    assert capsys.readouterr().err == ""


def test_an_exception_that_cannot_be_printed_can_be_logged(hostile: BaseException) -> None:
    handler, logger = logging.StreamHandler(StringIO()), logging.getLogger("rocketshim.consumer")
    logger.addHandler(handler)
    logger.propagate = False
    LOG.error("consumer.something", exc_info=hostile)
    logger.propagate = True
    logger.removeHandler(handler)


def test_a_record_has_its_facts_and_names_its_line(caplog: pytest.LogCaptureFixture) -> None:
    LOG.warning("consumer.something", extra={"topic": "orders", "error": "a\nb"})
    (record,) = caplog.records
    assert (record.levelname, record.__dict__["event"], record.__dict__["topic"]) == (
        "WARNING",
        "consumer.something",
        "orders",
    )
    assert record.getMessage() == r"consumer.something: topic=orders error=a\nb"
    assert (record.filename, record.funcName) == (
        "test_logs.py",
        "test_a_record_has_its_facts_and_names_its_line",
    )

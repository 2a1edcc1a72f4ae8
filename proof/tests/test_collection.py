"""Python's search for reference cycles is as it was after a history has been judged."""

import gc

import pytest

from proof.collection import paused_collection


def test_no_cycles_are_searched_for_in_the_block_and_again_after_it() -> None:
    seen: list[bool] = []

    def fail() -> None:
        with paused_collection():
            seen.append(gc.isenabled())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen == [False]
    assert gc.isenabled()


def test_a_search_that_was_off_before_the_block_stays_off() -> None:
    gc.disable()
    try:
        with paused_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()

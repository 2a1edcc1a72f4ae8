"""The checker finds nothing in sound histories."""

import pytest

from proof.check import run

from .shapes import SHAPES, sound
from .world import parsed


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(5))
def test_a_sound_history_has_no_violations(shape: str, seed: int) -> None:
    history = parsed(sound(shape, seed))
    assert run(history) == []

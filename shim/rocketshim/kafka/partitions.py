"""Partitions as our code names them."""

from collections.abc import Iterable

__all__ = ["Place", "shown_places"]

Place = tuple[str, int]
"""Physical topic and partition."""


def shown_places(places: Iterable[Place]) -> list[str]:
    """Places as logs have them."""
    return [f"{topic}/{number}" for topic, number in places]

"""Refuses calls inside a callback of the same client that end the process of a real client (see `kafka.confluent`)."""

__all__ = ["CallbackGuard"]


class CallbackGuard:
    """Entered while a client runs a callback.

    Thread-safety: none; the thread that owns the client.
    """

    def __init__(self) -> None:
        self._is_inside = False

    def __enter__(self) -> None:
        self._is_inside = True

    def __exit__(self, *_: object) -> None:
        self._is_inside = False

    def refuse(self, method: str) -> None:
        """Check that no callback runs.

        Raises:
            AssertionError: one does.
        """
        if self._is_inside:
            raise AssertionError(f"{method} inside a callback of the same client: a real one ends the process")

"""Send lines as messages, in their order, and count those that were stored."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

import typer

from rocketshim.errors import RocketshimError, SendError, SendTimeoutError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from rocketshim.producer.producer import Producer
    from rocketshim.producer.result import SendResult
    from rocketshim_topics import Message

__all__ = ["Line", "LineSender", "facts_of", "read_lines"]

_IN_FLIGHT: Final = 1_000


class Line(NamedTuple):
    """A line of the input: its number, from 1, and its text without the line end."""

    number: int
    text: bytes


class _Failure(NamedTuple):
    number: int
    cause: Exception


def read_lines(stream: BinaryIO) -> Iterator[Line]:
    """Yield each line that is not empty."""
    for number, line in enumerate(stream, 1):
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        if text:
            yield Line(number, text)


def facts_of(result: "SendResult") -> dict[str, str]:
    """Return the result of a send as JSON for programs."""
    return {"msg_id": result.msg_id, "offset_msg_id": result.offset_msg_id}


class LineSender:
    """Sends one message for each line, at most 1,000 at the same time; the caller closes the producer."""

    def __init__(
        self, producer: "Producer", message: "Callable[[bytes], Message]", *, timeout_s: float, as_json: bool
    ) -> None:
        self._producer = producer
        self._message = message
        self._timeout_s = timeout_s
        self._as_json = as_json
        self._waiting: deque[tuple[int, Future[SendResult]]] = deque()
        self._stored = 0
        self._later: list[int] = []
        self._failure: _Failure | None = None

    def send(self, lines: Iterable[Line]) -> None:
        """Send the lines until one fails, wait for all reports, and name the first line that was not stored."""
        try:
            for line in lines:
                self._hand_over(line)
                while self._waiting and (len(self._waiting) >= _IN_FLIGHT or self._waiting[0][1].done()):
                    self._settle()
                if self._failure is not None:
                    break
        except KeyboardInterrupt:
            typer.echo(f"interrupted: {self._stored} messages were stored, {len(self._waiting)} more may be", err=True)
            raise
        while self._waiting:
            self._settle()
        if self._failure is not None:
            number, cause = self._failure
            later = f", of which lines {_listed(self._later)} come after it" if self._later else ""
            raise SendError(
                f"line {number} was not sent: {cause}. {self._stored} messages were stored{later}"
            ) from cause
        if not self._as_json:
            typer.echo(f"{self._stored} messages stored")

    def _hand_over(self, line: Line) -> None:
        try:
            self._waiting.append((line.number, self._producer.send_async(self._message(line.text))))
        except (RocketshimError, BufferError) as error:
            self._failure = _Failure(line.number, error)

    def _settle(self) -> None:
        """Wait for the oldest delivery report."""
        number, future = self._waiting.popleft()
        try:
            result = future.result(self._timeout_s)
        except TimeoutError:
            self._fail(number, SendTimeoutError(f"no delivery report within {self._timeout_s:g} s"))
        except RocketshimError as error:
            self._fail(number, error)
        else:
            self._stored += 1
            if self._failure is not None and number > self._failure.number:
                self._later.append(number)
            if self._as_json:
                typer.echo(json.dumps({"line": number, **facts_of(result)}))

    def _fail(self, number: int, cause: Exception) -> None:
        if self._failure is None or number < self._failure.number:
            self._failure = _Failure(number, cause)


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:10])) + (f" … {numbers[-1]}" if len(numbers) > 10 else "")

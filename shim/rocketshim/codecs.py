"""Typed bodies: a codec turns values of a program into the bytes of a body, and back.

::

    producer = Producer("localhost:9092", codec=PydanticCodec(Order))
    producer.send("orders", Order(id=7))

    @consumer.listener("orders", body=Order)          # the same as codec=PydanticCodec(Order)
    def handle(message: MessageView[Order]) -> None:
        charge(message.value)

* Without a codec a body is bytes, or a pydantic model, which is sent as JSON; `default_body` decides.
* What a codec refuses to encode is not sent: `MessageError`.
* What a codec cannot decode does not reach the listener. It is a dead letter at the first attempt, with the cause
  `UndecodableBody`: another attempt would fail in the same way. If a schema registry does not answer, that is an
  ordinary failure: the message is retried, or the send raises what the registry's client raised.
* The topic that a codec gets is the one that the message was first sent to, also on a retry. So the subject in a schema
  registry stays `orders-value`.
* A tombstone has no body: its value is None, and no codec is asked.
* Several threads call a codec at the same time. Raising is how it refuses.
* A mistake of the program is refused where the codec is given (`ConfigError`), since it would fail for every message: a
  class instead of an object, a method that takes other arguments, a model with a name that does not exist.
"""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from rocketshim.core.listener_answers import DeadLetter, RetryLater
from rocketshim.core.user_values import call_problem, class_name, safe_text
from rocketshim.errors import ConfigError, MessageError
from rocketshim_topics.message import MessageView
from rocketshim_topics.wire import Header

__all__ = ["Codec", "JsonCodec", "PydanticCodec", "SerializerCodec", "UndecodableBody"]

ValueT = TypeVar("ValueT")

_CHAIN: Final = 4
_HTTP_CLIENTS: Final = frozenset({"httpx", "httpcore", "requests", "urllib3"})
_NO_SUCH_SCHEMA: Final = frozenset({404, 422})
_MAX_CAUSE_CHARS: Final = 900  # of the 1 KiB of FAIL_TEXT


class UndecodableBody(DeadLetter):
    """A body that the codec of the listener cannot decode: the message is a dead letter. `__cause__` is the reason."""


class UnansweredCodec(RetryLater):
    """Something that the codec asked did not answer: the message is retried, whatever the listener's `retry_on` is."""

    def __init__(self, cause: str) -> None:
        super().__init__()
        self.args = (cause,)


class Codec(Protocol[ValueT]):
    """Encodes and decodes bodies. Several threads call it at the same time."""

    def encode(self, value: ValueT, topic: str, headers: list[Header]) -> bytes:
        """Return the body for a value; raise if the value is not legal.

        Args:
            value: what the program sends.
            topic: logical topic of the message.
            headers: empty. What is appended to it is sent with the message, for example the id of a schema.
        """
        ...

    def decode(self, body: bytes, topic: str, headers: Sequence[Header]) -> ValueT:
        """Return the value of a body; raise if the body is not legal.

        Args:
            body: the body as it was sent.
            topic: logical topic of the message, on a retry that of its first delivery.
            headers: user properties of the message.
        """
        ...


class JsonCodec:
    """Any value that JSON knows: dict, list, text, number, bool. In UTF-8; NaN, infinity and `1e999` are refused."""

    def encode(self, value: Any, topic: str, headers: list[Header]) -> bytes:
        """See `Codec`."""
        del topic, headers
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    def decode(self, body: bytes, topic: str, headers: Sequence[Header]) -> Any:
        """See `Codec`."""
        del topic, headers
        return _JSON.decode(body.decode())


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number - number == 0.0:  # faster than a call of `isfinite`
        return number
    raise ValueError(f"{text:.40} is too large for a number")


_JSON: Final = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


class PydanticCodec(Generic[ValueT]):
    """JSON that pydantic validates: a model, a dataclass, a TypedDict, a `list[Order]` or a union.

    Args:
        kind: the type of the values.

    Raises:
        ConfigError: it is not a type, pydantic cannot validate it, or it uses a name that is not defined (yet).
    """

    def __init__(self, kind: type[ValueT]) -> None:
        given: object = kind
        if isinstance(given, str | BaseModel):
            name = given if isinstance(given, str) else type(given).__name__
            raise ConfigError(f"{given!r:.80} is not a type: give the type itself, as in body={name:.80}")
        try:
            self._adapter: TypeAdapter[ValueT] = TypeAdapter(kind)
            if not self._adapter.pydantic_complete:
                self._adapter.rebuild(raise_errors=True)
        except NameError as error:  # of pydantic: an annotation whose name does not exist
            raise ConfigError(f"{kind!r:.80} cannot be used yet: {_first_line(error)}; define it before") from None
        except Exception as error:  # noqa: BLE001 - of pydantic: it has several classes for it
            raise ConfigError(f"{kind!r:.80} is not a type that pydantic validates: {_first_line(error)}") from None

    def encode(self, value: ValueT, topic: str, headers: list[Header]) -> bytes:
        """See `Codec`. A value of another type is refused."""
        del topic, headers
        try:
            self._adapter.validate_python(value)  # `dump_json` alone takes any object with such attributes
        except ValidationError as error:
            raise ValueError(_problems(error)) from None
        return self._adapter.dump_json(value, by_alias=True, warnings="error")

    def decode(self, body: bytes, topic: str, headers: Sequence[Header]) -> ValueT:
        """See `Codec`."""
        del topic, headers
        try:
            return self._adapter.validate_json(body)
        except ValidationError as error:
            raise ValueError(_problems(error)) from None


def _first_line(error: BaseException) -> str:
    return safe_text(error).partition("\n")[0]


def _problems(error: ValidationError) -> str:
    """Return what is wrong, without the values, which do not belong into logs."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}".removeprefix(": ") for each in found)


class SerializerCodec:
    """Serializers of `confluent_kafka`, with or without a schema registry; they are called as its clients call them.

    ::

        codec = SerializerCodec(AvroSerializer(registry, schema), AvroDeserializer(registry))

    Args:
        serializer: called with the value and a `SerializationContext`; returns bytes. None: it cannot encode.
        deserializer: called with the body and a `SerializationContext`. None: it cannot decode.

    Raises:
        ConfigError: neither is given, or one cannot be called.
    """

    def __init__(
        self,
        serializer: Callable[[Any, Any], bytes | None] | None = None,
        deserializer: Callable[[bytes, Any], Any] | None = None,
    ) -> None:
        if serializer is None and deserializer is None:
            raise ConfigError("SerializerCodec() does nothing: give a serializer, a deserializer or both")
        for each in (serializer, deserializer):
            if each is not None and (isinstance(each, type) or call_problem(each, 2)):
                raise ConfigError(f"{each!r:.80} is not a serializer: it must be callable with a value and a context")
        self._serializer = serializer
        self._deserializer = deserializer

    def encode(self, value: Any, topic: str, headers: list[Header]) -> bytes:
        """See `Codec`."""
        if self._serializer is None:
            raise TypeError("this codec has no serializer")
        encoded = self._serializer(value, _context(topic, headers))
        if encoded is None:
            raise ValueError("the serializer returned None, which would be a tombstone")
        return encoded

    def decode(self, body: bytes, topic: str, headers: Sequence[Header]) -> Any:
        """See `Codec`."""
        if self._deserializer is None:
            raise TypeError("this codec has no deserializer")
        return self._deserializer(body, _context(topic, list(headers)))


def _context(topic: str, headers: Any) -> Any:
    from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: PLC0415 - few programs need it

    return SerializationContext(topic, MessageField.VALUE, headers)


def codec_of(body: type[Any] | None, codec: Codec[Any] | None) -> Codec[Any] | None:
    """Return the codec that `body=` and `codec=` of a listener stand for; None: neither is given.

    Raises:
        ConfigError: both are given, or one is not legal.
    """
    if body is not None and codec is not None:
        raise ConfigError("body and codec are given: body=Order is short for codec=PydanticCodec(Order); give one")
    if codec is not None:
        return decoding_codec(codec)
    return None if body is None else PydanticCodec(body)


def check_codec(codec: Codec[Any]) -> Codec[Any]:
    """Return a codec; a quick check, since a codec may be an argument of each send.

    Raises:
        ConfigError: it is a class, or it has no `encode` and `decode`.
    """
    if isinstance(codec, type) or not all(callable(getattr(codec, name, None)) for name in ("encode", "decode")):
        raise ConfigError(f"{codec!r:.80} is not a codec: give an object with encode and decode, such as JsonCodec()")
    return codec


def decoding_codec(codec: Codec[Any]) -> Codec[Any]:
    """Return the codec of a consumer or listener.

    Raises:
        ConfigError: it is not a codec, its `decode` takes other arguments, or it cannot decode.
    """
    problem = call_problem(check_codec(codec).decode, 3)
    if problem:
        raise ConfigError(f"{codec!r:.80} is not a codec: {problem}; write decode(self, body, topic, headers)")
    if isinstance(codec, SerializerCodec) and codec._deserializer is None:  # noqa: SLF001 - of this module
        raise ConfigError("a SerializerCodec without a deserializer cannot decode: give it one, as its second argument")
    return codec


_codec_of_model = lru_cache(maxsize=100)(PydanticCodec)


def default_body(body: object, topic: str) -> object:
    """Return the body that is sent if there is no codec: a pydantic model as JSON, anything else as it is.

    Raises:
        MessageError: the model is not valid any more, or it is neither bytes nor a model; nothing was sent.
    """
    if isinstance(body, BaseModel):
        return encode_body(_codec_of_model(type(body)), body, topic)[0]
    if isinstance(body, type):
        raise MessageError(f"body is the class {body.__qualname__}: give an object of it")
    if not isinstance(body, bytes):
        name = class_name(body)
        codec = "JsonCodec()" if type(body).__module__ == "builtins" else f"PydanticCodec({name})"
        raise MessageError(
            f"body is of type {name}: give bytes{' (text.encode())' if isinstance(body, str) else ''} or a pydantic "
            f"model, or its codec: send(topic, body, codec={codec})"
        )
    return body


def encode_body(codec: Codec[Any], value: object, topic: str) -> tuple[bytes, list[Header]]:
    """Return the body for a value, and the headers that the codec adds.

    Raises:
        MessageError: the codec refuses the value, or does not return bytes; `__cause__` is what it raised.
        Exception: what the codec raised because something did not answer.
    """
    headers: list[Header] = []
    try:
        body: object = codec.encode(value, topic, headers)
    except Exception as error:
        if _is_unanswered(error):
            raise
        raise MessageError(
            f"the codec refuses the body for {topic!r}, a {class_name(value)}; nothing was sent: {_cause(error)}"
        ) from error
    if not isinstance(body, bytes):
        raise MessageError(f"the codec returned {class_name(body)} for {topic!r}, not bytes; nothing was sent")
    return body, headers


def decode_body(codec: Codec[Any], message: MessageView[Any]) -> object:
    """Return the value of a message; None if it is a tombstone.

    Raises:
        UndecodableBody, UnansweredCodec: the codec cannot decode the body, or something that it asked did not answer.
        RetryLater, DeadLetter: the codec asked for that.
    """
    body = message.body
    if body is None:
        return None
    topic, headers = message.topic, message.headers
    try:
        return codec.decode(body, topic, headers)
    except Exception as error:
        if isinstance(error, RetryLater | DeadLetter):
            raise
        why = UnansweredCodec if _is_unanswered(error) else UndecodableBody
        raise why(_cause(error)) from error


def _is_unanswered(error: BaseException) -> bool:
    """Return whether something that the codec asked did not answer, so that the body itself may be sound.

    By class: an `OSError`, an error of an HTTP client, or one of a schema registry other than that there is no such
    schema. The client of the registry is not imported, since few programs have it.
    """
    found: BaseException | None = error
    for _ in range(_CHAIN):
        if found is None:
            return False
        if isinstance(found, OSError) or type(found).__module__.partition(".")[0] in _HTTP_CLIENTS:
            return True
        if type(found).__name__ == "SchemaRegistryError":
            return getattr(found, "http_status_code", None) not in _NO_SUCH_SCHEMA
        found = found.__cause__ or found.__context__
    return False


def _cause(error: BaseException) -> str:
    return f"{class_name(error)}: {safe_text(error)}"[:_MAX_CAUSE_CHARS]

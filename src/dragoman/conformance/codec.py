"""Rules for the codecs of all wires. They are checked without a recorded reply."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from .. import errors
from ..capabilities import Capabilities
from ..events import StreamContractError
from ..messages import Request, System, Tool, User
from ..wire import Codec, Encoded, HttpReply
from .cases import BASE_URL, MODEL, CodecType, decode, drive_ready, plain_request
from .violation import Violation, demand, demand_same

_KEY = "sk-conformance-0123456789abcdef"
_TOOL = Tool(
    "look",
    "Looks.",
    parameters={"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
)

Check = Callable[[Codec], None]


@dataclass(frozen=True)
class CodecRule:
    """A rule that every codec must follow. ``run(MyCodec)`` tests a codec with it."""

    name: str
    check: Check
    kind: CodecType

    def __str__(self) -> str:
        return self.name

    def run(self, codec: CodecType | None = None) -> None:
        """Test a codec with this rule; raise ``Violation`` if the codec breaks it."""
        kind = codec or self.kind
        try:
            self.check(kind.connect(MODEL, BASE_URL, None, Capabilities()))
        except Violation as violation:
            raise Violation(f"{self.name}: {violation}") from violation.__cause__


# --- rules for requests ------------------------------------------------------------------------


def _same_request_same_bytes(codec: Codec) -> None:
    """Check that equal requests give equal bytes, since prompt caches match bytes."""
    plain = plain_request(stream=True)
    for request in (plain, replace(plain, tools=(_TOOL,), tool_choice="auto")):
        kept = msgspec.json.encode(request)
        try:
            first = codec.encode(request)
            second = codec.encode(request)
        except errors.ProviderError:
            demand(bool(request.tools), "it rejects a plain request")
            continue  # a wire without tools may reject the request
        demand(first.http == second.http, "two encodings of one request differ")
        demand(msgspec.json.encode(request) == kept, "encoding changed the request")


def _a_post_of_json(codec: Codec) -> None:
    for stream in (False, True):
        http = codec.encode(plain_request(stream=stream)).http
        demand(http.method == "POST", f"the method is {http.method}")
        demand(
            http.url.startswith(BASE_URL.rpartition("/")[0]),
            f"the address is not under base_url: {http.url}",
        )
        kinds = {name.lower(): value for name, value in http.headers.items()}
        demand(
            kinds.get("content-type", "").startswith("application/json"),
            "content-type is not application/json",
        )
        demand(isinstance(msgspec.json.decode(http.body), dict), "the body is not a JSON object")


def _sends_model_text_and_stream(codec: Codec) -> None:
    plain, streamed = [codec.encode(plain_request(stream=stream)).http for stream in (False, True)]
    demand(
        (plain.url, plain.body) != (streamed.url, streamed.body),
        "a streamed request equals an unstreamed one",
    )
    demand(MODEL.encode() in plain.body or MODEL in plain.url, "the model is not named")
    demand(b"Hello" in plain.body, "the user's message is not sent")


def _nothing_unset_is_sent(codec: Codec) -> None:
    body = msgspec.json.decode(codec.encode(plain_request(stream=False)).http.body)
    empty = [path for path, value in _walk(body) if value is None]
    demand(not empty, f"null is sent at {', '.join(empty)}")


def _walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path or "/", value
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, item in value.items() if isinstance(value, dict) else ():
        yield from _walk(item, f"{path}/{key}")


_SETTINGS: dict[str, Any] = {
    "temperature": 0.31,
    "max_tokens": 77,
    "top_p": 0.83,
    "seed": 424242,
    "frequency_penalty": 0.37,
    "presence_penalty": 0.41,
    "stop_sequences": ("STOPHERE",),
    "reasoning": "low",
    "extras": {"x_conformance": "kept"},
}


def _every_setting_is_sent_or_noted(codec: Codec) -> None:
    """Check that every setting is sent, rejected or reported as lost."""
    plain = plain_request(stream=False)
    without = codec.encode(plain)
    for name, value in _SETTINGS.items():
        asked = replace(plain, config=replace(plain.config, **{name: value}))
        _demand_outcome(codec, asked, without, f"config.{name}")
    changes: dict[str, dict[str, Any]] = {
        "tools": {"tools": (_TOOL,)},
        "tool_choice": {"tools": (_TOOL,), "tool_choice": "required"},
        "response_schema": {
            "response_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}
        },
        "a system prompt": {"messages": (System("Be terse."), User("Hello"))},
    }
    for name, change in changes.items():
        _demand_outcome(codec, replace(plain, **change), without, name)


def _demand_outcome(codec: Codec, asked: Request, without: Encoded, what: str) -> None:
    try:
        encoded = codec.encode(asked)
    except errors.ProviderError:
        return
    sent = encoded.http.body != without.http.body or encoded.http.url != without.http.url
    demand(sent or bool(encoded.notes), f"{what} is neither sent, nor rejected, nor noted")


def _the_key_is_in_headers_alone(codec: Codec) -> None:
    headers = codec.authorise(_KEY)
    demand(any(_KEY in value for value in headers.values()), "authorise() does not carry the key")
    demand(not any(_KEY in name for name in headers), "the key is in the name of a header")
    demand(_KEY not in repr(codec), "the key shows in repr()")


# --- rules for replies and errors --------------------------------------------------------------

_STATUSES: dict[int, type[errors.ProviderError]] = {
    400: errors.InvalidRequestError,
    401: errors.AuthenticationError,
    403: errors.AuthenticationError,
    429: errors.RateLimitError,
    500: errors.UnavailableError,
    502: errors.UnavailableError,
    # some wires have a more specific error for a model that is still loading
    503: errors.ProviderError,
    529: errors.OverloadedError,
}
_BODIES = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b"oops",
    b"<html><body>Bad gateway</body></html>",
    b'{"error": {"message": "no"}}',
]


def _statuses_decide(codec: Codec) -> None:
    for status, kind in _STATUSES.items():
        for body in _BODIES:
            error = codec.error(status, {"retry-after": "7"}, body)
            finding = f"{status} with {body[:20]!r} is {type(error).__name__}"
            demand(isinstance(error, kind), f"{finding}, not {kind.__name__}")
            demand(status != 403 or not error.transient, f"{finding}, which is retried")
            demand_same(error.status, status, f"{finding}: its status")
            if kind is errors.RateLimitError and not isinstance(error, errors.QuotaExceededError):
                demand_same(error.retry_after, 7.0, f"{finding}: retry_after")


def _errors_hide_keys(codec: Codec) -> None:
    body = msgspec.json.encode(
        {"error": {"message": f"Incorrect API key provided: {_KEY}", "code": "invalid_api_key"}}
    )
    error = codec.error(401, {"authorization": f"Bearer {_KEY}"}, body)
    demand(
        _KEY not in str(error) + repr(error) + str(error.headers),
        "an error contains the rejected key",
    )


_SHAPES = [
    b"{}",
    b"[]",
    b"null",
    b'"text"',
    b"17",
    b'{"choices": null}',
    b'{"content": 3}',
    b'{"error": "no"}',
    b'{"candidates": [null]}',
    b"<html><body>It works!</body></html>",
    b"data: {}\n\n",
    b"data: null\n\ndata: [1]\n\n",
    b'event: x\ndata: {"type": 3}\n\n',
    b"data: {\n\n",
    b": only a comment\n\n",
    b"\xff\xfe\x00",
]


def _garbage_is_an_error(codec: Codec) -> None:
    dice = random.Random("conformance")  # noqa: S311 - must be reproducible, not secret
    noise = [dice.randbytes(dice.randint(1, 200)) for _ in range(30)]
    for stream in (False, True):
        for data in [b"", *_SHAPES, *noise, *[b"data: " + each + b"\n\n" for each in noise]]:
            for pieces in ([data], [data[:3], data[3:]]):
                _demand_failure(codec, plain_request(stream=stream), pieces)


def _demand_failure(codec: Codec, request: Request, pieces: list[bytes]) -> None:
    shown = b"".join(pieces)[:40]
    try:
        decoded = decode(codec, request, pieces)
    except StreamContractError as error:
        raise Violation(f"{shown!r} breaks a rule of the stream: {error}") from error
    except Exception as error:
        raise Violation(
            f"{shown!r} lets {type(error).__name__} escape from the decoder"
        ) from error
    demand(decoded.error is not None, f"{shown!r} is accepted as a complete reply")


# --- rules for readiness checks ----------------------------------------------------------------


def _ready_asks_for_nothing_billed(codec: Codec) -> None:
    for status, body in [
        (200, b"{}"),
        (200, b"oops"),
        (404, b""),
        (401, b""),
        (503, b"{}"),
        (500, b"<html>"),
    ]:
        _, error = drive_ready(codec, partial(_repeat, HttpReply(status, {}, body)))
        place = f"when every response is {status} {body!r}, ready()"
        if status == 401:
            demand(
                isinstance(error, errors.AuthenticationError),
                f"{place} does not report that the key is wrong",
            )
        elif status >= 500:
            demand(isinstance(error, errors.ProviderError), f"{place} finds the model ready")
            demand(
                error is None or error.transient, f"{place} raises an error that is not transient"
            )


def _repeat(answer: HttpReply, path: str) -> HttpReply:
    return answer


def _learns_only_from_refusals_it_knows(codec: Codec) -> None:
    request = plain_request(stream=False)
    for error in (
        errors.AuthenticationError("no", status=401),
        errors.RateLimitError("slow", status=429),
        errors.InvalidRequestError("what"),
    ):
        demand(
            codec.learn(error, request) is None,
            f"it learned something from {type(error).__name__}",
        )


RULES: dict[str, Check] = {
    "encode.same-request-same-bytes": _same_request_same_bytes,
    "encode.a-post-of-json": _a_post_of_json,
    "encode.asks-for-what-it-says": _sends_model_text_and_stream,
    "encode.nothing-unset-is-sent": _nothing_unset_is_sent,
    "encode.nothing-is-dropped-in-silence": _every_setting_is_sent_or_noted,
    "keys.in-headers-alone": _the_key_is_in_headers_alone,
    "keys.hidden-in-errors": _errors_hide_keys,
    "errors.statuses-decide": _statuses_decide,
    "decode.nothing-readable-is-no-success": _garbage_is_an_error,
    "ready.asks-for-nothing-billed": _ready_asks_for_nothing_billed,
    "learn.only-from-refusals-it-knows": _learns_only_from_refusals_it_knows,
}
"""All rules, indexed by name."""

"""The conformance kit detects faults: each provider here has one fault, and the named case finds
it.
"""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import force_setattr, replace

import dragoman as d
from dragoman.conformance import Violation, suite
from dragoman.conformance.provider import Spy
from dragoman.events import Assembler
from dragoman.messages.signatures import schema_of
from dragoman.provider import HttpProvider
from dragoman.transport import FixtureTransport
from dragoman.wire import CODECS, Encoded, HttpRequest

from ..listed import collect
from .test_third_party import Clockwork, ParrotCodec, ParrotDecoder

# --- providers with deliberate defects ---------------------------------------------------------

Change = Callable[[list[d.Event]], list[d.Event]]


def changing(change: Change) -> type[Clockwork]:
    """Return a provider class whose events are changed before they are emitted."""

    class Changed(Clockwork):
        async def events(self, request: d.Request) -> AsyncIterator[d.Event]:
            for event in change([event async for event in super().events(request)]):
                yield event

    return Changed


def each(kind: type, **facts: Any) -> Change:
    return lambda events: [
        replace(event, **facts) if isinstance(event, kind) else event for event in events
    ]


def ending(**facts: Any) -> type[Clockwork]:
    """Return a provider class whose replies end with other facts."""
    return changing(each(d.MessageComplete, **facts))


def both(first: Change, second: Change) -> Change:
    return lambda events: second(first(events))


def without(kind: type) -> Change:
    return lambda events: [event for event in events if not isinstance(event, kind)]


class Talkative(Clockwork):
    async def ready(self) -> None:
        await self.complete("are you there?")


class Locked(Clockwork):
    """Runs one call at a time: each call waits for the previous one."""

    def __init__(self, *args: Any, **facts: Any) -> None:
        super().__init__(*args, **facts)
        self._lock = asyncio.Lock()

    async def events(self, request: d.Request) -> AsyncIterator[d.Event]:
        async with self._lock:
            async for event in super().events(request):
                yield event


class Swallowing(Clockwork):
    async def events(self, request: d.Request) -> AsyncIterator[d.Event]:
        try:
            async for event in super().events(request):
                yield event
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
        async for event in super().events(request):
            yield event


class Bare(Clockwork):
    async def events(self, request: d.Request) -> AsyncIterator[d.Event]:
        if request.messages:
            raise KeyError("choices")
        yield d.MessageStart("m", "r", model="x")


class Meddling(Clockwork):
    async def complete(self, messages: Any, *args: Any, **facts: Any) -> d.Response:
        if isinstance(messages, list):
            messages.append({"role": "user", "content": "and be kind"})
        return await super().complete(messages, *args, **facts)


class Lenient(Clockwork):
    async def complete(self, messages: Any, *args: Any, **facts: Any) -> d.Response:
        return await super().complete(messages or "hello", *args, **facts)


class Hasty(Clockwork):
    """Calls the model first, and checks the arguments when the model has answered."""

    async def complete(self, messages: Any, *args: Any, **facts: Any) -> d.Response:
        await super().complete("hello")
        return await super().complete(messages, *args, **facts)


class Deaf(Clockwork):
    async def cancel(self, request_id: str) -> bool:
        return True


class Forgetful(Clockwork):
    def _check_request(self, request: Any) -> None:
        super()._check_request(request)
        force_setattr(request, "request_id", "same")


class OncePerLife(Clockwork):
    async def close(self) -> None:
        if self.__dict__.get("closed"):
            raise RuntimeError("closed twice")
        self.closed = True


class Slow(Clockwork):
    async def events(self, request: d.Request) -> AsyncIterator[d.Event]:
        await asyncio.Event().wait()
        yield d.MessageStart("m", "r", model="x")


class Nameless(Clockwork):
    name = ""


class Cancelling(Clockwork):
    """Cancels its own call without a reason."""

    async def events(self, request: d.Request) -> AsyncIterator[d.Event]:
        raise d.CallCancelledError("not now")
        yield d.MessageStart("m", "r", model="x")


class Breaking(Clockwork):
    """Breaks off and replaces its error by another, or by none, as if the reply was complete."""

    error: d.ProviderError | None = None

    def __init__(self) -> None:
        super().__init__(breaks=True)

    async def events(self, request: d.Request) -> AsyncIterator[d.Event]:
        try:
            async for event in super().events(request):
                yield event
        except d.ProviderError:
            if self.error is not None:
                raise self.error from None


class BreakingEmpty(Breaking):
    error = d.StreamInterruptedError("gone")


class Choosy(Clockwork):
    """A provider that declares features as supported, but rejects requests that use them."""

    async def events(self, request: d.Request) -> AsyncIterator[d.Event]:
        for message in request.messages:
            plain = isinstance(message.content, str) or all(
                isinstance(block, d.Text) for block in message.content
            )
            if isinstance(message, d.System | d.ToolResult) or (
                isinstance(message, d.User) and not plain
            ):
                raise d.UnsupportedFeatureError("not that")
        async for event in super().events(request):
            yield event


class Careless(Clockwork):
    """Accepts a request id that is already in flight."""

    def _check_request(self, request: Any) -> None:
        vars(self).pop("_calls", None)
        super()._check_request(request)


class Sulking(Clockwork):
    """Applies the token limit of one call to the calls after it."""

    limit = 999

    async def events(self, request: d.Request) -> AsyncIterator[d.Event]:
        self.limit = min(self.limit, request.config.max_tokens or 999)
        change = each(d.MessageComplete, final_content=()) if self.limit < 100 else list
        for event in change([event async for event in super().events(request)]):
            yield event


class Forgetting(d.EventStream):
    """Returns a stream whose final response differs from the events it emitted."""

    def _finish(self, complete: d.MessageComplete) -> None:
        super()._finish(replace(complete, usage=d.Usage(1, 1)))


class TwoFaced(Clockwork):
    def stream(self, messages: Any, *args: Any, **facts: Any) -> d.EventStream:
        made = super().stream(messages, *args, **facts)
        made.__class__ = Forgetting
        return made


class Untyped(Clockwork):
    async def complete(self, *args: Any, **facts: Any) -> d.Response:
        schema = facts.pop("response_schema", None)
        wanted = schema_of(schema) if isinstance(schema, type) else schema
        return await super().complete(*args, response_schema=wanted, **facts)


def renumbered(events: list[d.Event]) -> list[d.Event]:
    """Return the events of a reply whose final message has other call ids than its stream."""
    content = [
        replace(block, id="other") if isinstance(block, d.ToolCall) else block
        for block in _final(events)
    ]
    return each(d.MessageComplete, final_content=tuple(content))(events)


def _final(events: list[d.Event]) -> Any:
    return events[-1].final_content if isinstance(events[-1], d.MessageComplete) else ()


class Wordy(Clockwork):
    """Answers with text, even if a tool is forced."""

    def _say(self, request: d.Request, out: Assembler) -> None:
        out.text("It is sunny.")


NO_INTENT = each(d.ToolUseEnd, intent=None, problem="malformed")

WRONG: list[tuple[str, Callable[[], d.Provider], str]] = [
    ("system.is-taken", Choosy, "it raised UnsupportedFeatureError"),
    ("images.are-seen", Choosy, "it raised UnsupportedFeatureError"),
    ("tools.take-results", Choosy, "it raised UnsupportedFeatureError"),
    ("tools.ids-are-one", changing(renumbered), "not the sum of the deltas"),
    ("ids.in-flight-once", Careless, "a request_id that is in flight: not rejected"),
    ("concurrency.settings-are-one-calls", Sulking, "a later call has no text"),
    ("streams.fold-to-their-response", TwoFaced, "their usage"),
    ("structured.parses-into-a-type", Untyped, "not an instance of it"),
    ("shape.says-what-it-is", Nameless, "name is empty"),
    ("shape.answers-with-a-response", ending(usage=d.Usage(-1)), "usage.input_tokens is -1"),
    ("shape.answers-with-a-response", ending(final_content=()), "has no text"),
    ("shape.answers-with-a-response", ending(finish_reason="done"), "finish_reason is 'done'"),
    ("shape.answers-with-a-response", ending(parsed={}), "parsed is set"),
    ("shape.answers-with-a-response", changing(each(d.MessageStart, provider="other")),
     "the reply's provider"),
    ("shape.answers-with-a-response", Cancelling, "it raised CallCancelledError"),
    ("shape.takes-every-form", Bare, "KeyError came out"),
    ("shape.leaves-arguments-alone", Meddling, "were changed"),
    ("shape.closes-twice", OncePerLife, "RuntimeError came out"),
    ("validation.refuses-what-is-wrong", Lenient, "no messages: not rejected"),
    ("validation.refuses-what-is-wrong", Hasty, "although the request is invalid"),
    ("streams.keep-the-rules", changing(without(d.MessageStart)), "an event before message.start"),
    ("streams.keep-the-rules", changing(without(d.MessageComplete)),
     "ended before the message did"),
    ("streams.keep-the-rules", changing(lambda events: events + events[-1:]),
     "an event after message.complete"),
    ("streams.keep-the-rules", changing(each(d.TextDelta, text="?")), "not the sum of the deltas"),
    ("streams.keep-the-rules", changing(lambda events: events[:0]),
     "ended before the message did"),
    ("streams.can-be-left", Deaf, "still in flight"),
    ("cancel.a-stream", Deaf, "finished call returned True"),
    ("cancel.nothing-is-false", Deaf, "unknown id returned True"),
    ("cancel.a-call", Deaf, "returned True, but complete() returned"),
    ("cancel.from-outside", Swallowing, "swallowed"),
    ("ids.are-the-callers", changing(each(Struct, request_id="mine")),
     "do not have the given request_id"),
    ("ids.are-the-callers", changing(each(d.TextDelta, request_id="mine")),
     "differs from message.start's"),
    ("ids.differ", changing(lambda events: [replace(event, message_id="m") for event in events]),
     "the same message_id"),
    ("ids.differ", Forgetful, "two calls have the same request_id"),
    ("concurrency.many-at-once", Forgetful, "another call's id"),
    ("concurrency.no-waiting", Locked, "still running after"),
    ("streams.keep-the-rules", Slow, "still running after"),
    ("ready.costs-nothing", Talkative, "calls to the model that ready() made"),
    ("tools.are-proposed", changing(NO_INTENT), "a call that made no intent"),
    ("tools.are-proposed",
     changing(both(NO_INTENT, each(d.MessageComplete, finish_reason="error"))),
     "without an intent"),
    ("tools.are-proposed", changing(each(d.ToolUseStart, tool_use_id="other")),
     "a tool call that is not open"),
    ("tools.are-proposed", ending(finish_reason="stop"), "the finish reason of a reply"),
    ("tools.in-both-modes", ending(final_content=()), "complete() returned no call"),
    ("structured.parses-what-was-asked-for", ending(parsed=None), "parsed is empty"),
    ("structured.parses-what-was-asked-for", ending(parsed={"city": 1}), "violates the schema"),
    ("structured.parses-what-was-asked-for", ending(structured_path=None), "structured_path"),
]  # fmt: skip


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize(("name", "factory", "complaint"), WRONG)
async def test_each_conformance_case_detects_a_faulty_provider(
    name: str, factory: Callable[[], d.Provider], complaint: str
) -> None:
    cases = suite(factory, capabilities={"supports_images": True}, seconds=30)
    (case,) = [case for case in cases if str(case) == name]
    with pytest.raises(Violation) as caught:
        await case.run()
    assert complaint in str(caught.value)
    assert str(caught.value).startswith(name)


def unknown_key() -> d.Provider:
    return Clockwork(d.AuthenticationError("no"))


HOOKS: list[tuple[str, dict[str, Any], str]] = [
    ("errors.RateLimitError", {"failing": {d.RateLimitError: Clockwork}},
     "returned instead of raising"),
    ("errors.RateLimitError", {"failing": {d.RateLimitError: unknown_key}},
     "it raised AuthenticationError"),
    ("streams.break-off-well", {"breaking": Clockwork}, "counted as complete"),
    ("streams.break-off-well", {"breaking": Breaking}, "counted as complete"),
    ("streams.break-off-well", {"breaking": BreakingEmpty}, "lacks the partial response"),
    ("ready.ModelNotLoadedError", {"unready": {d.ModelNotLoadedError: Clockwork}},
     "returned instead of raising"),
    ("ready.ModelNotLoadedError", {"unready": {d.ModelNotLoadedError: unknown_key}},
     "raised AuthenticationError"),
    ("tools.are-refused", {"capabilities": {"supports_tools": False}}, "not rejected"),
    ("images.are-refused", {"capabilities": {"supports_images": False}}, "not rejected"),
    ("system.is-refused", {"capabilities": {"supports_system_prompt": False}}, "not rejected"),
    ("streams.are-refused", {"capabilities": {"supports_streaming": False}}, "not rejected"),
    ("swap.answers-are-alike", {"other": ending(finish_reason="length")}, "finish|form"),
    ("swap.conversation-continues", {"other": Choosy}, "UnsupportedFeatureError"),
    ("swap.conversation-continues", {"other": Wordy}, "did not continue"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "hooks", "complaint"), HOOKS)
def test_conformance_cases_check_declared_capabilities(
    name: str, hooks: dict[str, Any], complaint: str
) -> None:
    (case,) = [case for case in suite(Clockwork, **hooks) if str(case) == name]
    with pytest.raises(Violation, match=complaint):
        case.run_sync()


def test_every_conformance_case_has_a_faulty_provider() -> None:
    seen = {name for name, *_ in [*WRONG, *HOOKS]}
    both_cases = suite(Clockwork, capabilities={"supports_images": True}, other=Clockwork)
    every = {str(case) for case in both_cases}
    assert every <= seen


# --- HTTP providers are checked in complete and streamed calls ---------------------------------

BODY = (
    b'{"choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}'
)
FRAMES = (
    b'data: {"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}\n\ndata: '
    b"[DONE]\n\n"
)


class Eager(HttpProvider):  # type: ignore[misc]
    """Calls the model in its readiness check, and accepts a conversation without messages."""

    async def ready(self) -> None:
        await self.complete("are you there?")

    def _check_request(self, request: Any) -> None:
        if request.messages:
            super()._check_request(request)


class EagerStream(Eager):
    async def ready(self) -> None:
        await collect(self.stream("are you there?"))


def over_http(kind: type[HttpProvider]) -> Callable[[], d.Provider]:
    replies = [(200, {}, [FRAMES if kind is EagerStream else BODY])] * 20
    codec = CODECS["openai"].connect("m", "http://test", None, d.Capabilities())
    return lambda: kind(codec, FixtureTransport(*replies), name="acme", model="m")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Eager, EagerStream])
async def test_conformance_cases_detect_a_faulty_http_provider(kind: type[HttpProvider]) -> None:
    provider = over_http(kind)()
    spy = Spy(provider)
    await provider.complete("Hi")
    await collect(provider.stream("Hi"))
    await collect(provider.events(d.Request((d.User("Hi"),))))
    assert spy.calls == 3
    for name, complaint in (
        ("ready.costs-nothing", "calls to the model that ready() made"),
        ("validation.refuses-what-is-wrong", "no messages: not rejected"),
    ):
        (case,) = [case for case in suite(over_http(kind)) if str(case) == name]
        with pytest.raises(Violation, match=re.escape(complaint)):
            await case.run()


# --- codecs with deliberate defects ------------------------------------------------------------


def sending(change: Callable[[HttpRequest], HttpRequest]) -> type[ParrotCodec]:
    """Return a codec class whose HTTP requests are changed before they are sent."""

    class Changed(ParrotCodec):
        def encode(self, request: d.Request) -> Encoded:
            encoded = super().encode(request)
            return replace(encoded, http=change(encoded.http))

    return Changed


NUMBERS = itertools.count()
Restless = sending(lambda http: replace(http, headers={**http.headers, "x": str(next(NUMBERS))}))
Getting = sending(lambda http: replace(http, method="GET"))
Nulls = sending(lambda http: replace(http, body=http.body[:-1] + b',"top_p":null}'))


class Hasty(ParrotCodec):
    def encode(self, request: d.Request) -> Encoded:
        return super().encode(replace(request, stream=False))


class Silent(ParrotCodec):
    def encode(self, request: d.Request) -> Encoded:
        return super().encode(replace(request, config=replace(request.config, seed=None)))


class Keyless(ParrotCodec):
    def authorise(self, key: str) -> dict[str, str]:
        return {"x-cracker": "yes"}


class Unheeding(ParrotCodec):
    def error(
        self, status: int, headers: Any, body: bytes, now: float | None = None
    ) -> d.ProviderError:
        return d.RateLimitError("?", status=status)


class Quoting(ParrotCodec):
    def error(
        self, status: int, headers: Any, body: bytes, now: float | None = None
    ) -> d.ProviderError:
        error = super().error(status, headers, body, now)
        error.headers = dict(headers)
        return error


class Trusting(ParrotDecoder):
    def at_end(self) -> None:
        if not self.out.started:
            self.out.start()
        self.out.finish("stop")


class TrustingCodec(ParrotCodec):
    def decoder(self, request: d.Request, out: Any) -> Trusting:
        return Trusting(request, out)


class Always(ParrotCodec):
    def ready(self) -> Any:
        yield HttpRequest("GET", "http://127.0.0.1/awake", {})


class Billing(ParrotCodec):
    def ready(self) -> Any:
        yield HttpRequest("POST", "http://127.0.0.1/parrot", {}, b'{"say": "x"}')


class Learning(ParrotCodec):
    def learn(self, error: d.ProviderError, request: d.Request) -> Any:
        return self


WRONG_CODECS: list[tuple[str, type[ParrotCodec], str]] = [
    ("encode.same-request-same-bytes", Restless, "two encodings"),
    ("encode.a-post-of-json", Getting, "the method is GET"),
    ("encode.asks-for-what-it-says", Hasty, "a streamed request equals"),
    ("encode.nothing-unset-is-sent", Nulls, "null is sent at /top_p"),
    ("encode.nothing-is-dropped-in-silence", Silent, "config.seed is neither sent"),
    ("keys.in-headers-alone", Keyless, "does not carry the key"),
    ("errors.statuses-decide", Unheeding, "not InvalidRequestError"),
    ("keys.hidden-in-errors", Quoting, "contains the rejected key"),
    ("decode.nothing-readable-is-no-success", TrustingCodec, "accepted as a complete reply"),
    ("ready.asks-for-nothing-billed", Always, "does not report that the key is wrong"),
    ("ready.asks-for-nothing-billed", Billing, "a request that may be billed"),
    ("learn.only-from-refusals-it-knows", Learning, "it learned something"),
]


@pytest.mark.parametrize(("name", "kind", "complaint"), WRONG_CODECS)
def test_each_conformance_rule_detects_a_faulty_codec(
    name: str, kind: Any, complaint: str
) -> None:
    (case,) = [case for case in suite(wire="parrot", codec=kind) if str(case) == name]
    with pytest.raises(Violation, match=complaint):
        case.run()


def test_every_conformance_rule_has_a_faulty_codec() -> None:
    assert {name for name, *_ in WRONG_CODECS} == {
        str(case) for case in suite(wire="parrot", codec=ParrotCodec)
    }


@pytest.mark.parametrize("wire", sorted(CODECS))
def test_bundled_wires_pass_the_conformance_rules(wire: str) -> None:
    for case in suite(wire=wire):
        if "." in str(case):
            case.run()


def test_codec_of_another_wire_fails_the_conformance_cases() -> None:
    failed = 0
    for case in suite(wire="openai", codec=CODECS["anthropic"])[20:60]:
        try:
            case.run()
        except Exception:
            failed += 1
    assert failed > 15


# --- arguments of the conformance suite --------------------------------------------------------

MISUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "either a factory"),
    ({"factory": Clockwork, "wire": "openai"}, "either a factory"),
    ({"wire": "morse"}, "no wire 'morse'"),
    ({"wire": "openai", "failing": {}}, "failing do not apply to a codec"),
    ({"wire": "openai", "prompt": "x"}, "prompt do not apply"),
    ({"wire": "parrot", "codec": ParrotCodec, "cases": "/nowhere"}, "no cases found in"),
    ({"factory": Clockwork, "promt": "x"}, "unknown setting 'promt'"),
    ({"factory": Clockwork, "skip": ["tool.*"]}, "skip has 'tool.\\*'"),
    ({"factory": Clockwork, "capabilities": {"supports_x": True}}, "unknown name"),
]


@pytest.mark.parametrize(("given", "complaint"), MISUSED)
def test_error_names_an_invalid_argument_of_the_conformance_suite(
    given: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        suite(**given)


def test_factory_that_returns_no_provider_is_rejected() -> None:
    with pytest.raises(Violation, match=r"not a dragoman\.Provider"):
        suite(lambda: "x")[0].run_sync()  # type: ignore[arg-type, return-value]


async def test_provider_factory_may_be_async() -> None:
    async def make() -> d.Provider:
        return Clockwork()

    await suite(make)[1].run()

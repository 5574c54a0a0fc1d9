"""The checks for a live server.

Each check decides its outcome: it may return a text about what it found, or raise ``Failed``,
``Unsupported``, ``NotObserved`` or ``NotApplicable``. ``live.py`` runs the checks, and
``report.py`` writes what they found.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from .. import errors
from .. import messages as m
from ..events import Response, TextDelta, ToolUseEnd, ToolUseInputDelta
from ..validate.quality import SOUND
from ..wire import CODECS
from .families import FAMILIES, Family, describe_calls, judge_family
from .server import Server


class Failed(Exception):  # noqa: N818 - an outcome, not an error
    """A check failed: the server does not do what its wire specifies."""


class Unsupported(Exception):  # noqa: N818
    """The server or its model lacks an optional feature."""


class NotApplicable(Exception):  # noqa: N818
    """The check cannot have a conclusive result on this server."""


class NotObserved(Exception):  # noqa: N818
    """The server accepts the request, but its replies do not show whether it does what is asked."""


class Check(Struct, frozen=True):
    """One check of a server. If it is ``optional``, the server may reject the request cleanly."""

    name: str
    title: str
    run: Callable[[Any], Awaitable[str | None]]
    optional: bool = False

    def __str__(self) -> str:
        return self.name


CHECKS: list[Check] = []
"""All checks, in the order in which they are run."""


def _check(name: str, title: str, *, optional: bool = False) -> Callable[..., Any]:
    def add(run: Callable[[Server], Awaitable[str | None]]) -> Callable[..., Any]:
        CHECKS.append(Check(name, title, run, optional))
        return run

    return add


def _demand(holds: bool, found: str) -> None:
    if not holds:
        raise Failed(found)


def _require_word(reply: Response, word: str, otherwise: str) -> None:
    """Require a word in a reply that proves that the server read the request."""
    if word.lower() not in reply.text.lower():
        raise NotObserved(otherwise)


_QUESTION = "Tell me about the sea in a few sentences."
_WORD = "ultramarine"
_NAME = "Ottilie"
_RESULT = "Hail, 37 degrees."
_TOOL = m.Tool(
    "get_weather",
    "Get the current weather in a city.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
)
_OTHER = m.Tool("get_time", "Get the time in a city.", parameters=_TOOL.parameters)
_TOOL_QUESTION = "What is the weather in Bern right now? Use the tool."


# --- checks of readiness and text --------------------------------------------------------------


@_check("ready.answers", "reports whether the model is ready")
async def _ready(server: Server) -> None:
    await server.provider.ready()


@_check("text.complete", "answers a question")
async def _text(server: Server) -> str:
    reply = await server.ask(_QUESTION)
    _demand(bool(reply.text.strip() or reply.message.thinking), "the reply has no text")
    _demand(reply.finish_reason in ("stop", "length"), f"it ended with {reply.finish_raw!r}")
    return f"ended with {reply.finish_reason}"


@_check("text.system", "follows a system prompt", optional=True)
async def _system(server: Server) -> None:
    prompt = f"Answer every message with the single word {_WORD}."
    reply = await server.ask([m.System(prompt), m.User("Which word do you say?")])
    _require_word(reply, _WORD, "the system prompt is accepted, but the reply does not follow it")


@_check("text.turns", "reads earlier turns of a conversation")
async def _turns(server: Server) -> None:
    reply = await server.ask(
        [
            m.User(f"My name is {_NAME}."),
            m.Assistant("Hello."),
            m.User("What is my name? Answer with my name."),
        ]
    )
    _require_word(
        reply, _NAME, "the turns are accepted, but the reply does not show that they are read"
    )


@_check("text.unicode", "reads and writes text beyond ASCII")
async def _unicode(server: Server) -> None:
    reply = await server.ask("Repeat: Grüße, 世界, 🙂")
    if "\ufffd" in reply.text and "\ufffd" in (await server.ask("Say hello.")).text:
        raise NotApplicable("the model itself writes damaged characters")
    _demand("\ufffd" not in reply.text, "the reply contains damaged characters")
    if not any(text in reply.text for text in ("Grüße", "世界", "🙂")):
        raise NotObserved("the text is accepted, but the reply repeats none of it")


@_check("usage.reported", "reports the tokens of a reply")
async def _usage(server: Server) -> None:
    usage = (await server.ask(_QUESTION)).usage
    _demand(bool(usage.input_tokens), "the tokens of the prompt are missing")
    _demand(bool(usage.output_tokens), "the tokens of the reply are missing")
    total = (usage.input_tokens or 0) + (usage.output_tokens or 0)
    _demand(
        usage.total_tokens in (None, total),
        f"{total} tokens in total, but it reports {usage.total_tokens}",
    )


@_check("limits.max_tokens", "ends a reply at max_tokens")
async def _max_tokens(server: Server) -> None:
    reply = await server.ask("Count from one to a hundred in words.", config={"max_tokens": 5})
    used = reply.usage.output_tokens
    _demand(used is None or used <= 5, f"5 tokens were requested, it generated {used}")
    _demand(
        reply.finish_reason == "length", f"a reply that was cut ended with {reply.finish_raw!r}"
    )


@_check("limits.stop", "stops at a stop sequence", optional=True)
async def _stop(server: Server) -> None:
    whole = (await server.ask(_QUESTION)).text
    words = [word for word in whole.split() if len(word) > 2]
    if len(words) < 6:
        raise NotApplicable("the reply is too short to show whether it would be stopped")
    word = words[len(words) // 2]
    reply = await server.ask(_QUESTION, config={"stop_sequences": [word]})
    before = whole.split(word)[0]
    if reply.text.strip() == whole.strip():
        raise Failed("the stop sequence is accepted but ignored")
    if not before.startswith(reply.text.rstrip()[:10]):
        raise NotApplicable("two replies at temperature 0 differ: inconclusive")
    _demand(word not in reply.text, "the reply contains the stop sequence it ended at")
    _demand(reply.finish_reason == "stop", f"it ended with {reply.finish_raw!r}")


@_check("sampling.seed", "gives the same reply for the same seed", optional=True)
async def _seed(server: Server) -> None:
    replies = []
    for seed in (7, 7, 8, 9):
        config = {"seed": seed, "temperature": 1.0, "max_tokens": 24}
        replies.append((await server.ask(_QUESTION, config=config)).text)
    if replies[0] != replies[1]:
        raise Unsupported("the seed is accepted, but two replies differ")
    if len(set(replies)) == 1:
        raise NotObserved("every reply is the same, with other seeds too")


@_check("sampling.logprobs", "reports log probabilities", optional=True)
async def _logprobs(server: Server) -> None:
    if server.wire != "openai":
        raise NotApplicable(f"cannot be requested on the {server.wire} wire")
    reply = await server.ask(
        _QUESTION, config={"max_tokens": 4, "extras": {"logprobs": True, "top_logprobs": 2}}
    )
    raw = reply.raw if isinstance(reply.raw, dict) else {}
    listed = (raw.get("choices") or [{}])[0].get("logprobs") or {}
    if not (isinstance(listed, dict) and listed.get("content")):
        raise Unsupported("they were requested but are missing")


# --- checks of streams -------------------------------------------------------------------------


@_check("stream.rules", "streams by the rules, with the wire's end mark", optional=True)
async def _stream(server: Server) -> None:
    _, reply = await server.listen(_QUESTION)
    _demand(bool(reply.text.strip() or reply.message.thinking), "the stream has no text")


@_check("stream.incremental", "sends text as it is generated")
async def _incremental(server: Server) -> None:
    events, reply = await server.listen(_QUESTION)
    deltas = [event for event in events if isinstance(event, TextDelta)]
    if len(reply.text.split()) < 6:
        raise NotApplicable("the reply is too short to tell")
    _demand(len(deltas) > 2, f"the complete reply came in {len(deltas)} piece(s)")


@_check("stream.label", "labels a stream as one")
async def _label(server: Server) -> None:
    await server.listen(_QUESTION, config={"max_tokens": 2})
    wanted: str = getattr(CODECS[server.wire], "stream_media", "text/event-stream")
    found = server.witness.last_headers.get("content-type", "nothing")
    _demand(found.startswith(wanted), f"the content type is {found}")


@_check("stream.end_mark", "ends a stream with the wire's end mark")
async def _end_mark(server: Server) -> None:
    marks: Sequence[bytes] = getattr(CODECS[server.wire], "end_marks", ())
    if not marks:
        raise NotApplicable(f"the {server.wire} wire has no mark at the end of a stream")
    await server.listen(_QUESTION)
    tail = server.witness.last_tail.replace(b" ", b"")
    wanted = b" or ".join(marks).decode()
    _demand(any(mark in tail for mark in marks), f"the stream ends without {wanted}")


@_check("stream.usage", "reports the tokens of a stream", optional=True)
async def _stream_usage(server: Server) -> None:
    _, reply = await server.listen(_QUESTION)
    if not reply.usage.output_tokens:
        raise Unsupported("requested, but missing")


@_check("stream.same_text", "gives the same text streamed and unstreamed")
async def _same_text(server: Server) -> None:
    first = (await server.ask(_QUESTION)).text
    streamed = (await server.listen(_QUESTION))[1].text
    if first == streamed:
        return
    if (await server.ask(_QUESTION)).text != first:
        raise NotApplicable("two unstreamed replies at temperature 0 differ: inconclusive")
    raise Failed("streamed and unstreamed replies differ, but two unstreamed ones do not")


# --- checks of tools ---------------------------------------------------------------------------


@_check("tools.auto", "calls a tool when it sees fit", optional=True)
async def _auto(server: Server) -> None:
    reply = await server.ask(_TOOL_QUESTION, tools=[_TOOL], tool_choice="auto")
    if not reply.tool_calls:
        raise Unsupported("it answered in text, and named no tool")


@_check("tools.forced", "calls the tool that is forced", optional=True)
async def _forced(server: Server) -> None:
    reply = await server.ask(
        _TOOL_QUESTION, tools=[_OTHER, _TOOL], tool_choice=m.ForceTool(_TOOL.name)
    )
    _demand(bool(reply.tool_calls), "the forced tool choice is accepted but ignored: no call came")
    names = {call.name for call in reply.tool_calls}
    _demand(names == {_TOOL.name}, f"forced {_TOOL.name}, it called {', '.join(sorted(names))}")


@_check("tools.required", "calls some tool when one is required", optional=True)
async def _required(server: Server) -> None:
    reply = await server.ask(_TOOL_QUESTION, tools=[_TOOL], tool_choice="required")
    _demand(bool(reply.tool_calls), "tool_choice=required is accepted but ignored: no call came")


@_check("tools.none", "calls no tool when none is allowed", optional=True)
async def _none(server: Server) -> None:
    reply = await server.ask(_TOOL_QUESTION, tools=[_TOOL], tool_choice="none")
    _demand(not reply.tool_calls, "it called a tool although none is allowed")
    allowed = await server.ask(_TOOL_QUESTION, tools=[_TOOL], tool_choice="auto")
    if not allowed.tool_calls:
        raise NotObserved("it calls no tool when one is allowed, either")


@_check("tools.streamed", "streams a call", optional=True)
async def _streamed_call(server: Server) -> str:
    events, reply = await server.listen(_TOOL_QUESTION, tools=[_TOOL], tool_choice="required")
    if not reply.tool_calls:
        raise Unsupported("no call came")
    ends = [event for event in events if isinstance(event, ToolUseEnd)]
    _demand(all(end.intent is not None for end in ends), "the arguments of a call are incomplete")
    pieces = sum(isinstance(event, ToolUseInputDelta) for event in events)
    return f"in {pieces} piece(s)"


@_check("tools.parallel", "calls several tools in one reply", optional=True)
async def _parallel(server: Server) -> None:
    question = (
        "What is the weather in Bern, and what in Oslo? Call the tool once for each city, both at "
        "once."
    )
    reply = await server.ask(
        question, tools=[_TOOL], tool_choice="auto", config={"max_tokens": server.max_tokens * 2}
    )
    if len(reply.tool_calls) < 2:
        raise Unsupported(f"{len(reply.tool_calls)} call(s) came where two were asked for")
    ids = [call.id for call in reply.tool_calls]
    _demand(len(set(ids)) == len(ids), "two calls have the same id")


@_check("tools.results", "reads the result of a call", optional=True)
async def _results(server: Server) -> None:
    call = m.ToolCall("call_1", _TOOL.name, {"city": "Bern"})
    talk = [
        m.User(_TOOL_QUESTION),
        m.Assistant(tool_calls=[call]),
        m.ToolResult("call_1", _RESULT),
    ]
    reply = await server.ask(talk, tools=[_TOOL])
    _require_word(
        reply, "37", "the result is accepted, but the reply does not show that it is read"
    )


async def _judge(family: Family, server: Server) -> str:
    outcomes = await judge_family(family, server)
    if not outcomes:
        raise Unsupported("no complete call came")
    found = describe_calls(outcomes)
    if set(outcomes) != {SOUND}:
        raise Unsupported(found)
    return found


for _each in FAMILIES:
    _check(f"calls.{_each.name}", f"calls a tool with {_each.title}", optional=True)(
        partial(_judge, _each)
    )


# --- checks of structured output and images ----------------------------------------------------


@_check("schema.native", "keeps a JSON Schema", optional=True)
async def _schema(server: Server) -> None:
    quirks = getattr(CODECS[server.wire], "quirks_type", None)
    if quirks is not None and quirks().structured == "tool":
        raise NotApplicable("the wire has no field for a schema; it is the input of a tool")
    schema = {
        "type": "object",
        "properties": {
            "colour": {"enum": ["ultramarine", "vermilion"]},
            "count": {"type": "integer"},
        },
        "required": ["colour", "count"],
        "additionalProperties": False,
    }
    try:
        reply = await server.ask("Choose a colour and a small number.", response_schema=schema)
    except errors.StructuredOutputError as error:
        if error.finish_reason == "length":
            raise NotApplicable(
                "the reply was cut off before it was complete; try a larger --max-tokens"
            ) from error
        raise Failed(f"the schema is accepted but not followed: {error.error_message}") from error
    if reply.structured_path != "native":
        raise Unsupported("the server rejects a schema")
    _demand(isinstance(reply.parsed, dict), "the reply is not an object")


# Two squares of 32 by 32 pixels, since the colour of a single square could be guessed.
_SQUARES = {
    "red": (
        "iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAJ0lEQVR42u3NsQkAAAjAsP7/tF7hIASyp6lTCQQCgUAgEAgEgi/BAjLD/"
        "C5w/SM9AAAAAElFTkSuQmCC"
    ),
    "blue": (
        "iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAJklEQVR42u3NsQkAAAjAsP7/tF7hIASyp5pjAoFAIBAIBAKB4EmwOkv8L"
        "om8x/sAAAAASUVORK5CYII="
    ),
}
_COLOUR = re.compile(
    r"\b(red|orange|yellow|green|blue|purple|violet|pink|brown|black|white|gr[ae]y)\b",
    re.IGNORECASE,
)


@_check("images.inline", "sees a picture", optional=True)
async def _images(server: Server) -> str:
    """Ask for the colours of an image.

    Many servers accept an image that the model cannot see and let it guess, so the check requires
    the right colours.
    """
    for colour, square in _SQUARES.items():
        answer = await _show(server, square)
        if {word.lower() for word in _COLOUR.findall(answer)} != {colour}:
            raise NotObserved("accepted, but nothing proves that the model saw it")
    return f"it tells {' from '.join(_SQUARES)}"


async def _show(server: Server, square: str) -> str:
    question = "Which colour is this picture? Answer with one word."
    try:
        reply = await server.ask(
            [m.User([m.Text(question), m.Image(m.Inline(square), "image/png")])]
        )
    except errors.UnavailableError as error:
        if error.status not in (500, 501):
            raise
        raise Unsupported(f"rejected with status {error.status} instead of 4xx") from error
    return reply.text


# --- checks of errors --------------------------------------------------------------------------


@_check("errors.unknown_model", "rejects an unknown model")
async def _unknown_model(server: Server) -> None:
    try:
        await server.ask_as(model="dragoman-no-such-model")
    except errors.InvalidModelError:
        return
    except errors.UnavailableError:
        raise
    except errors.ProviderError as error:
        raise Failed(f"rejected, but with the wrong error: {type(error).__name__}") from error
    raise Failed("the server replies even if the requested model does not exist")


@_check("errors.malformed", "rejects a body that is not JSON")
async def _malformed(server: Server) -> str:
    reply = await server.post(lambda body: b'{"model": ')
    _demand(reply.status >= 300, "accepted as a request")
    _demand(400 <= reply.status < 500, f"answered with {reply.status}: a client would try again")
    _demand(bool(server.read_refusal(reply).provider_message), "the error has no message")
    return f"with {reply.status}"


@_check("errors.no_messages", "rejects a conversation without messages")
async def _no_messages(server: Server) -> str:
    name: str = getattr(CODECS[server.wire], "messages_field", "messages")
    reply = await server.post(lambda body: {**body, name: []})
    _demand(reply.status >= 300, "the server replies to an empty list of messages")
    _demand(400 <= reply.status < 500, f"answered with {reply.status}: a client would try again")
    return f"with {reply.status}"


@_check("errors.key", "rejects a wrong key")
async def _key(server: Server) -> None:
    if not server.has_key:
        raise NotApplicable("no key was given")
    try:
        await server.ask_as(key="dragoman-check-wrong-key")
    except errors.AuthenticationError:
        return
    raise Failed("it accepts any key")


@_check("limits.context", "rejects a prompt longer than its window", optional=True)
async def _context(server: Server) -> str:
    if server.window is None:
        raise NotApplicable(
            "the server does not report its context window; give it with --context"
        )
    if server.window > 40_000:
        raise NotApplicable(f"a window of {server.window} tokens is too large to fill in a check")
    prompt = "sea " * (server.window + server.window // 4)
    try:
        await server.ask(prompt, config={"max_tokens": 4})
    except errors.ContextOverflowError:
        return f"refused beyond {server.window} tokens"
    except errors.InvalidRequestError as error:
        raise Failed(f"rejected, but with the wrong error: {type(error).__name__}") from error
    raise Failed(
        f"more than {server.window} tokens are accepted: the server truncates the prompt without "
        "an error"
    )


# --- checks of concurrency and cancellation ----------------------------------------------------


@_check("concurrency.four", "answers four calls at once")
async def _four(server: Server) -> None:
    calls = [server.listen(_QUESTION, config={"max_tokens": 12}) for _ in range(4)]
    await asyncio.gather(*calls)


@_check("cancel.stops", "stops when the client hangs up", optional=True)
async def _cancel(server: Server) -> None:
    """Measure whether a server stops generating after the client disconnects.

    If it does not, the next call is much slower.
    """
    for _ in range(3):
        before = min([await _timed(_short_answer(server)) for _ in range(3)])
        for _ in range(4):
            await _hang_up(server)
        if await _timed(_short_answer(server)) <= 4 * before + 1.0:
            return
    raise Unsupported("the call after four that were cancelled is much slower than one before")


async def _short_answer(server: Server) -> Response:
    return await server.ask(_QUESTION, config={"max_tokens": 4})


async def _hang_up(server: Server) -> None:
    stream = server.provider.stream(_QUESTION, config={"max_tokens": 400, "temperature": 1.0})
    async with stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                return


async def _timed(call: Awaitable[Response]) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await call
    return loop.time() - began


REFUSALS = (
    errors.UnsupportedFeatureError,
    errors.UnsupportedContentError,
    errors.InvalidRequestError,
)
"""The errors with which a server reports that it lacks a feature."""

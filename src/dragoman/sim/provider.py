"""A provider whose replies come from a script."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import math
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ..capabilities import Capabilities
from ..errors import (
    InvalidRequestError,
    ProviderError,
    StreamInterruptedError,
    UnavailableError,
)
from ..events import Assembler, Event, Usage
from ..messages import Issuer, Opaque, RedactedThinking, Request, Text, Thinking
from ..provider import AssembledReply, Reply, ReplyProvider
from ..provider.http_model import read_capabilities
from ..tokens import estimate_input_tokens, estimate_text, loaded_tools
from ..validate import Expectation
from ..wire import CODECS, SERVER_CODECS, Asked, Codec
from ..wire.endpoint import NOT_DEFERRED, offers_search
from ..wire.errors import Failure, build_error
from .faults import Mangler
from .script import Answer, Call, Fault, Said, Script, ScriptRule, check_day, find_error
from .strict import StrictModel
from .yaml import read_script

log = logging.getLogger("dragoman")

_WORDS = re.compile(r"\s*\S+\s*$|\s*\S+|\s+")
_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # the characters of a ULID

Sleep = Callable[[float], Awaitable[object]]


class Scene(Struct, frozen=True):
    """One scripted call: its events, and the fault applied to its bytes."""

    batches: AsyncGenerator[list[Event], None]
    out: Assembler
    fault: Fault
    dice: random.Random


class ScriptedProvider(ReplyProvider):
    """Answer requests by rules.

    A string, an ``Answer`` or an error answers one call; the last one answers all further calls.

    ::

        model = ScriptedProvider("Hello.")
        model = ScriptedProvider(RateLimitError("slow down"), "Hello.")
        search = Answer(tool_calls=[Call("search", {"q": "x"})])
        model = ScriptedProvider(ScriptRule(search, RequestMatch(turn=1)), "Done.")
        model = ScriptedProvider.from_file("script.yaml")

    The same script, seed and order of calls give the same events, ids included. ``requests`` has
    the requests received. ``sleep`` is the function used for delays. Without a server, byte-level
    faults are applied to the bytes of ``wire``, between its server codec and its client codec.
    With ``strict``, a server of this script refuses what the vendor of the model refuses, and
    signs its thinking; ``vendor`` names the vendor if the model's name alone does not select the
    rules. With ``today``, such as ``2026-12-11``, it also refuses the models that the vendor has
    switched off by this day.
    """

    def __init__(
        self,
        *rules: ScriptRule | Answer | str | ProviderError,
        seed: int = 0,
        name: str = "sim",
        model: str = "sim",
        capabilities: Capabilities | Mapping[str, Any] | None = None,
        sleep: Sleep = asyncio.sleep,
        wire: str = "openai",
        strict: bool = False,
        vendor: str | None = None,
        today: str | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.capabilities = read_capabilities(capabilities)
        self.requests: list[Request] = []
        self.rules = tuple(
            [_as_rule(rule, last=at == len(rules) - 1) for at, rule in enumerate(rules)]
        )
        if wire not in SERVER_CODECS:
            raise ValueError(
                f"wire must be one that can be served: {', '.join(sorted(SERVER_CODECS))}, not "
                f"{wire!r}"
            )
        self.wire = wire
        self.strict = strict
        self.vendor = vendor
        check_day(today)
        self.today = today
        self._seed = seed
        self._sleep = sleep
        self._used = [0] * len(self.rules)

    @classmethod
    def from_script(cls, script: Script, **settings: Any) -> ScriptedProvider:
        """Return a provider that answers from a script."""
        given = {
            "seed": script.seed,
            "model": script.model,
            "capabilities": script.capabilities,
            "strict": script.strict,
            "vendor": script.vendor,
            "today": script.today,
        }
        return cls(*script.rules, **{**given, **settings})

    @classmethod
    def from_file(cls, path: str | Path, **settings: Any) -> ScriptedProvider:
        """Return a provider for a YAML script; an error in the script names file and line."""
        return cls.from_script(read_script(path), **settings)

    def open(self, request: Request) -> Reply:
        return _ScriptedReply(self, request)

    def begin(self, request: Request, wire: str = "sim") -> Scene:
        """Choose the rule for a request; return its events and its byte-level fault separately.

        ``wire`` is the issuer of the reply's opaque blocks.
        """
        number = len(self.requests)
        self.requests.append(request)
        rule = self._choose(request, number)
        dice = self._dice(number, "id")
        new_id = lambda: "0" + "".join(dice.choices(_LETTERS, k=25))
        out = self._assembler(request, issuer=Issuer(wire, None, self.model), new_id=new_id)
        events = self._perform(request, rule, out, wire)
        fault = rule.fault or Fault()
        return Scene(events, out, fault, self._dice(number, "bytes"))

    def break_bytes(self, request: Request, scene: Scene) -> Scene:
        """Apply a byte-level fault: encode the reply with a server codec, damage it, decode it."""
        out = self._assembler(request)
        return replace(scene, batches=self._over_bytes(request, scene, out), out=out)

    async def _perform(
        self, request: Request, rule: ScriptRule, out: Assembler, wire: str
    ) -> AsyncGenerator[list[Event], None]:
        fault = rule.fault or Fault()
        await asyncio.sleep(0)
        if (refusal := _refusal(fault)) is not None:
            raise self._named(refusal, request)
        answer = self._answer(rule, request)
        if self.strict and wire in SERVER_CODECS:
            answer = StrictModel(wire, request.model or self.model, self.vendor).sign(
                answer, request
            )
        await self._wait(answer.delay)
        out.start()
        for count, say in enumerate(_pieces(answer)):
            if count == fault.after:
                await self._break(fault, out, request)
            elif count:
                await self._wait(answer.pace)
            if out.complete is not None:
                break
            say(out)
            if events := out.take():
                yield events
        if out.complete is None:
            await self._end(answer, fault, out, request)
        if events := out.take():
            yield events
        if out.error is not None:
            raise self._named(out.error, request)

    async def _over_bytes(
        self, request: Request, scene: Scene, out: Assembler
    ) -> AsyncGenerator[list[Event], None]:
        codec: Codec = CODECS[self.wire].connect(
            self.model, "http://sim.invalid", None, Capabilities()
        )
        mangler = Mangler(scene.fault, scene.dice)
        decoder = codec.decoder(request, out)
        encoder = SERVER_CODECS[self.wire].encoder(Asked(request=request))
        last = b""
        begun = False
        try:
            async for event in read_batches(scene.batches):
                begun = True
                sent = mangler.feed(encoder.feed(event))
                if sent.data and (events := decoder.feed(sent.data)):
                    yield events
                if sent.then != "on" or decoder.done:
                    break
            else:
                last = encoder.end()
        except ProviderError as error:
            if scene.fault.body is not None:
                raise self._named(_read_refusal(codec, error, scene.fault), request) from None
            if not begun:
                raise
            last = encoder.fail(error)
        finally:
            await scene.batches.aclose()
        sent = mangler.end(last)
        closing = decoder.feed(sent.data)
        lost = mangler.cut and not decoder.done
        closing += (
            decoder.fail(StreamInterruptedError("the connection was lost"))
            if lost
            else decoder.end()
        )
        if closing:
            yield closing
        if decoder.error is not None:
            raise self._named(decoder.error, request)

    def _answer(self, rule: ScriptRule, request: Request) -> Answer:
        try:
            with self._blame(rule, "reply"):
                return rule.answer(request)
        except ProviderError as error:
            raise self._named(error, request).with_traceback(None) from error.__cause__

    @contextlib.contextmanager
    def _blame(self, rule: ScriptRule, part: str) -> Iterator[None]:
        """Note in the exception of a script's function which rule raised it."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, ProviderError):
                error.add_note(f"raised by the {part} of {self._label(rule)}")
            raise

    def _label(self, rule: ScriptRule) -> str:
        return rule.name or f"rule {self.rules.index(rule) + 1}"

    async def _end(self, answer: Answer, fault: Fault, out: Assembler, request: Request) -> None:
        if fault.after >= sum(1 for _ in _pieces(answer)):
            await self._break(fault, out, request)
        if out.complete is None:
            out.usage(answer.usage if answer.usage is not None else _count(request, answer))
            finish = answer.finish or ("tool_calls" if out.has_calls else "stop")
            out.finish(finish, finish, answer.stop_sequence)

    async def _break(self, fault: Fault, out: Assembler, request: Request) -> None:
        """Apply the fault at its position in the reply."""
        if fault.stall is not None:
            await self._wait(fault.stall)
        if fault.error is not None:
            out.fail(self._named(_make_error(fault), request))

    async def _wait(self, seconds: float) -> None:
        if math.isinf(seconds):
            await asyncio.Event().wait()
        elif seconds > 0:
            await self._sleep(seconds)

    def _choose(self, request: Request, number: int) -> ScriptRule:
        for at, rule in enumerate(self.rules):
            if rule.times is not None and self._used[at] >= rule.times:
                continue
            with self._blame(rule, "match"):
                if not rule.match.fits(request):
                    continue
            if rule.chance < 1 and self._dice(number, at).random() >= rule.chance:
                continue
            self._used[at] += 1
            return rule
        tried = [self._label(rule) for rule in self.rules]
        raise self._named(InvalidRequestError(_unanswered(tried, request)), request)

    def _dice(self, number: int, about: object) -> random.Random:
        return random.Random(f"{self._seed}:{number}:{about}")  # noqa: S311 - to be repeated, not to be secret

    def _assembler(self, request: Request, **settings: Any) -> Assembler:
        is_deferred = any(tool.deferred for tool in request.tools)
        is_whole = is_deferred and not offers_search(request)
        return Assembler(
            request_id=request.request_id,
            model=request.model or self.model,
            provider=self.name,
            expected=Expectation(request),
            structured_path="native" if request.response_schema is not None else None,
            warnings=(NOT_DEFERRED,) if is_whole else (),
            **settings,
        )

    def _named(self, error: ProviderError, request: Request) -> ProviderError:
        return error.attribute(self.name, self.model, request.request_id)


async def read_batches(batches: AsyncGenerator[list[Event], None]) -> AsyncIterator[Event]:
    """Yield the events of a scripted call one by one, from batches of events."""
    async for batch in batches:
        for event in batch:
            yield event


class _ScriptedReply(AssembledReply):
    """The reply to one request. The script chooses the rule for it when it is first read."""

    def __init__(self, provider: ScriptedProvider, request: Request) -> None:
        super().__init__(request, provider.name, provider.model)
        self._provider = provider
        self._source: AsyncGenerator[list[Event], None] | None = None

    async def next(self) -> list[Event]:
        if self._source is None:
            scene = self._provider.begin(self.request)
            if scene.fault.is_of_bytes:
                scene = self._provider.break_bytes(self.request, scene)
            self.out = scene.out
            self._source = scene.batches
        try:
            batch: list[Event] = await anext(self._source, [])
        except ProviderError as error:
            self._charge(error)
            raise
        return self._close(batch) if batch else batch

    async def aclose(self) -> None:
        if self._source is not None:
            await self._source.aclose()


def _as_rule(rule: ScriptRule | Answer | str | ProviderError, *, last: bool) -> ScriptRule:
    times = None if last else 1
    if isinstance(rule, ScriptRule):
        return rule
    if isinstance(rule, ProviderError):
        return ScriptRule(lambda _: _raise(rule), times=times)
    if isinstance(rule, Answer | str):
        return ScriptRule(rule, times=times)
    raise ValueError(
        f"a rule is a ScriptRule, an Answer, a string or an error, not {type(rule).__name__}"
    )


def _raise(error: ProviderError) -> Answer:
    """Raise a copy of an error, so that the original does not collect attributes of every call."""
    # Create a copy without calling the error's own __init__.
    fresh = type(error).__new__(type(error))
    fresh.args = error.args
    vars(fresh).update({name: copy.copy(value) for name, value in vars(error).items()})
    raise fresh from error.__cause__


def explain(error: Exception) -> ProviderError:
    """Return the error that a server sends for a call that failed, even in a script's function."""
    if isinstance(error, ProviderError):
        return error
    log.error("a function of the script failed", exc_info=error)
    notes = ", ".join(getattr(error, "__notes__", ()))
    text = f"the script failed: {type(error).__name__}: {error}"
    return UnavailableError(f"{text} ({notes})" if notes else text, status=500)


def _unanswered(named: list[str], request: Request) -> str:
    last = type(request.messages[-1]).__name__
    offered = f" and {len(request.tools)} tools" if request.tools else ""
    return (
        f"no rule of the script answers this request: {len(request.messages)} messages, the last "
        f"from {last}{offered}; tried {', '.join(named) or 'none, the script is empty'}"
    )


# --- emitting scripted replies -----------------------------------------------------------------

Say = Callable[[Assembler], None]


def _pieces(answer: Answer) -> Iterator[Say]:
    """Yield the streamed pieces of an answer, each as a function that emits the piece."""
    for key, block in enumerate(answer.said):
        yield from _pieces_of(key, block, answer.piece)


def _pieces_of(key: int, block: Said, size: int | None) -> Iterator[Say]:
    if isinstance(block, Call):
        yield lambda out: out.tool_start(key, block.id, block.name, block.signature)
        for piece in _split(block.written, size or 12):
            yield lambda out, piece=piece: out.tool_input(key, piece)  # type: ignore[misc]
        yield lambda out: out.block_end(key)
        return
    if isinstance(block, RedactedThinking | Opaque):
        yield lambda out: out.whole(block)
        return
    is_text = isinstance(block, Text)
    for piece in _split(block.text, size):
        yield lambda out, piece=piece: out.text(piece) if is_text else out.thinking(piece)  # type: ignore[misc]
    state = block.continuity
    if state is not None:
        yield lambda out: out.attach(Text if is_text else Thinking, state.signature, state.opaque)
    yield lambda out: out.block_end()


def _split(text: str, size: int | None) -> list[str]:
    if size is None:
        return _WORDS.findall(text)
    return [text[at : at + size] for at in range(0, len(text), size)]


def _count(request: Request, answer: Answer) -> Usage:
    """Return estimated token counts of a request and its reply, as a provider reports them."""
    tools = loaded_tools(request.tools, searched=offers_search(request))
    asked = estimate_input_tokens(request.messages, tools)
    counts = [estimate_text(_text_of(each)).tokens for each in answer.said]
    thought = [
        count
        for count, each in zip(counts, answer.said, strict=True)
        if isinstance(each, Thinking)
    ]
    return Usage(
        asked,
        sum(counts),
        reasoning_tokens=sum(thought) if thought else None,
        total_tokens=asked + sum(counts),
    )


def _text_of(block: Said) -> str:
    return block.written if isinstance(block, Call) else getattr(block, "text", "")


# --- emitting scripted failures ----------------------------------------------------------------


def _refusal(fault: Fault) -> ProviderError | None:
    """Return the error of a fault that precedes the reply; ``None`` for any other fault."""
    if fault.status is not None or (
        fault.error is not None and not fault.after and fault.stall is None
    ):
        return _make_error(fault)
    return None


def _read_refusal(codec: Codec, error: ProviderError, fault: Fault) -> ProviderError:
    """Return the error that a client's codec derives from a scripted error body."""
    headers = {} if fault.retry_after is None else {"retry-after": f"{fault.retry_after:g}"}
    return codec.error(fault.status or error.status or 500, headers, (fault.body or "").encode())


def _make_error(fault: Fault) -> ProviderError:
    kind = find_error(fault.error) if fault.error is not None else None
    message = fault.message or "scripted failure"
    if kind is not None:
        return kind(
            message,
            status=fault.status,
            retry_after=fault.retry_after,
            provider_code=fault.code or None,
            provider_message=fault.message or None,
        )
    headers = {} if fault.retry_after is None else {"retry-after": f"{fault.retry_after:g}"}
    return build_error(fault.status or 500, headers, Failure(message, fault.code), ())

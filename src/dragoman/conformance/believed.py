"""Ask a vendor's server whether what the catalogue believes about it is true.

Each belief is a quirk that a row of ``catalog/families`` sets for a model. A question is one short
request, written as if the belief were false, which the server should refuse, or by the belief,
which it should accept. Nothing is learned from the replies; the report states what the server did.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from ..errors import AuthenticationError, ProviderError, UnsupportedFeatureError, cut, scrub
from ..events import Usage
from ..messages import (
    Assistant,
    Request,
    RuntimeConfig,
    System,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    User,
)
from ..prices import Unpriced
from ..provider import HttpProvider, connect
from ..wire.beliefs import find_rows, strict_vendors

Expected: TypeAlias = Literal["accepted", "refused"]
Verdict: TypeAlias = Literal["holds", "contradicted", "unclear", "not_asked"]

MAX_TOKENS = 64
_REFUSING = (400, 404, 422, 501)
_SHOWN = 300  # characters of a server's reply
_BYTES_PER_TOKEN = 3

TOOL = Tool("look", "Looks.", parameters={"type": "object", "properties": {}})
SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string"}},
    "required": ["word"],
    "additionalProperties": False,
}
HELLO = User("Say hello.")
_LOOP = (HELLO, Assistant(ToolCall("call00001", "look", {})), ToolResult("call00001", "a sea"))
_THINKING_LOOP = (
    HELLO,
    Assistant((Thinking("I look."), ToolCall("call00001", "look", {}))),
    ToolResult("call00001", "a sea"),
)
# Values that differ from every default.
_SETTINGS: dict[str, Any] = {
    "temperature": 0.3,
    "top_p": 0.4,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "stop_sequences": ("zzzz",),
    "seed": 7,
}
_UNREFUSED: dict[str, Any] = {"refused_settings": {}, "refused_while_reasoning": {}}


class Question(Struct, frozen=True, kw_only=True):
    """A request that shows whether a belief is true.

    ``quirks`` replace those of the model: they write the request as if the belief were false.
    """

    asks: str
    expected: Expected
    request: Request
    quirks: dict[str, Any] = field(default_factory=dict)


class Believed(Struct, frozen=True, kw_only=True):
    """A quirk of a model, where it was seen, and the questions that show whether it is true."""

    quirk: str
    value: Any
    source: str
    as_of: str
    guess: bool = False
    questions: tuple[Question, ...] = ()


class BeliefOutcome(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a server did with a question, or that a belief was not asked about."""

    quirk: str
    value: Any
    source: str
    as_of: str
    verdict: Verdict
    guess: bool = False
    asks: str = ""
    expected: Expected | None = None
    status: int | None = None
    detail: str = ""


class BeliefReport(Struct, frozen=True, kw_only=True):
    """The beliefs about a model of a vendor, and what its server did. It has no headers and no key."""

    vendor: str
    model: str
    wire: str
    by: str
    at: str
    outcomes: tuple[BeliefOutcome, ...] = ()

    @property
    def contradicted(self) -> bool:
        """Whether the server contradicted a belief."""
        return any(outcome.verdict == "contradicted" for outcome in self.outcomes)

    @property
    def counts(self) -> dict[str, int]:
        """The number of outcomes with each verdict."""
        verdicts = ("holds", "contradicted", "unclear", "not_asked")
        return {each: sum(one.verdict == each for one in self.outcomes) for each in verdicts}

    def to_json(self) -> bytes:
        """Return the report as JSON."""
        record = {**msgspec.to_builtins(self), "counts": self.counts}
        return msgspec.json.format(msgspec.json.encode(record), indent=2)


# --- beliefs and their questions ---------------------------------------------------------------


def list_believed(vendor: str, model: str, wire: str) -> list[Believed]:
    """Return what the catalogue believes about a model of a vendor on a wire."""
    rows = find_rows(wire, vendor, model)
    style = rows["reasoning"].quirks["reasoning"] if "reasoning" in rows else {}
    found: list[Believed] = []
    for quirk, row in rows.items():
        value = row.quirks[quirk]
        make = _QUESTIONS.get(quirk)
        asked = tuple(make(value, style)) if make is not None else ()
        found.append(
            Believed(
                quirk=quirk,
                value=value,
                source=row.source,
                as_of=row.as_of,
                guess=row.guess,
                questions=asked,
            )
        )
    if vendor in strict_vendors():
        found.append(_unknown_fields(vendor))
    return found


def _unknown_fields(vendor: str) -> Believed:
    request = _make_request(extras={"dragoman_unknown_field": True})
    return Believed(
        quirk="unknown_fields", value="refused", source=f"families/hosts.json strict: {vendor}",
        as_of="", questions=(_refused("a field that no API has", request),),
    )  # fmt: skip


def _make_request(
    messages: Iterable[Any] = (HELLO,), *, stream: bool = False, **given: Any
) -> Request:
    """Return a short request; settings of ``Request`` and of ``RuntimeConfig`` may be given."""
    names = given.keys() & {"tools", "tool_choice", "response_schema"}
    own = {name: given.pop(name) for name in names}
    config = RuntimeConfig(max_tokens=MAX_TOKENS, **given)
    return Request(tuple(messages), config=config, stream=stream, **own)


def _accepted(asks: str, request: Request, **quirks: Any) -> Question:
    return Question(asks=asks, expected="accepted", request=request, quirks=quirks)


def _refused(asks: str, request: Request, **quirks: Any) -> Question:
    return Question(asks=asks, expected="refused", request=request, quirks=quirks)


def _ask_settings(value: Mapping[str, Any], style: Mapping[str, Any]) -> Iterator[Question]:
    for name in value:
        if name in _SETTINGS:
            request = _make_request(**{name: _SETTINGS[name]})
            yield _refused(f"{name}={_SETTINGS[name]!r}", request, **_UNREFUSED)


def _ask_reasoning_settings(
    value: Mapping[str, Any], style: Mapping[str, Any]
) -> Iterator[Question]:
    reasoning = _lowest(style)
    for name in value:
        if name in _SETTINGS and reasoning is not None:
            request = _make_request(**{name: _SETTINGS[name], "reasoning": reasoning})
            asks = f"{name}={_SETTINGS[name]!r} while it reasons"
            yield _refused(asks, request, **_UNREFUSED)


def _lowest(style: Mapping[str, Any]) -> str | None:
    """Return the least effort that makes a model reason, if it has efforts."""
    efforts = style.get("efforts") or ()
    return next(iter(efforts), None)


def _ask_choice(value: str, style: Mapping[str, Any]) -> Iterator[Question]:
    forced: dict[str, Any] = {"tools": (TOOL,), "tool_choice": "required"}
    if value == "not_reasoning":
        if (effort := _lowest(style)) is not None:
            asks = "a forced tool while it reasons"
            yield _refused(asks, _make_request(**forced, reasoning=effort), forced_tools="yes")
    elif value == "no":
        yield _refused("a forced tool", _make_request(**forced), forced_tools="yes")
    else:
        yield _accepted("a forced tool", _make_request(**forced))


def _ask_prefill(value: bool, style: Mapping[str, Any]) -> Iterator[Question]:
    request = _make_request((HELLO, Assistant("Hel")))
    asks = "a conversation that ends with its own text"
    yield _accepted(asks, request) if value else _refused(asks, request, prefill=True)


def _ask_reasoning(value: Mapping[str, Any], style: Mapping[str, Any]) -> Iterator[Question]:
    for effort in value.get("efforts") or ():
        yield _accepted(f"reasoning={effort!r}", _make_request(reasoning=effort))
    if value.get("off"):
        yield _accepted("reasoning='off'", _make_request(reasoning="off"))


def _ask_history(value: bool, style: Mapping[str, Any]) -> Iterator[Question]:
    if value:
        request = _make_request(_LOOP, tools=(TOOL,))
        asks = "a turn with a call and no thinking"
        yield _refused(asks, request, reasoning_required=False)


def _ask_thinking(value: str | None, style: Mapping[str, Any]) -> Iterator[Question]:
    if value is not None:
        yield _accepted(f"thinking in {value}", _make_request(_THINKING_LOOP, tools=(TOOL,)))


def _ask_schema(value: str, style: Mapping[str, Any]) -> Iterator[Question]:
    request = _make_request(response_schema=SCHEMA)
    asks = "a response schema"
    if value == "native":
        yield _accepted(asks, request)
    else:
        yield _refused(asks, request, structured="native")


def _ask_schema_with_tools(value: str, style: Mapping[str, Any]) -> Iterator[Question]:
    if value == "prompt":
        request = _make_request(response_schema=SCHEMA, tools=(TOOL,))
        asks = "a response schema next to tools"
        yield _refused(asks, request, structured_with_tools="native")


def _ask_schema_streamed(value: str, style: Mapping[str, Any]) -> Iterator[Question]:
    if value == "prompt":
        request = _make_request(response_schema=SCHEMA, stream=True)
        asks = "a response schema in a stream"
        yield _refused(asks, request, structured_streamed="native")


def _ask_tools(value: bool, style: Mapping[str, Any]) -> Iterator[Question]:
    effort = _lowest(style)
    if not value and effort is not None:
        request = _make_request(tools=(TOOL,), reasoning=effort)
        yield _refused("a tool while it reasons", request, tools_while_reasoning=True)


def _ask_usage(value: bool, style: Mapping[str, Any]) -> Iterator[Question]:
    if not value:
        yield _refused("stream_options", _make_request(stream=True), stream_usage=True)


def _ask_late_system(value: str, style: Mapping[str, Any]) -> Iterator[Question]:
    talk = (HELLO, Assistant("Hello."), HELLO, System("Be brief."))
    asks = "instructions in the middle of the conversation"
    if value == "in_place":
        yield _accepted(asks, _make_request(talk))
    else:
        yield _refused(asks, _make_request(talk), late_system="in_place")


def _ask_seed(value: str, style: Mapping[str, Any]) -> Iterator[Question]:
    yield _accepted(f"{value}=7", _make_request(seed=7))
    if value != "seed":
        yield _refused("seed=7", _make_request(seed=7), seed_field="seed")


_QUESTIONS: dict[str, Callable[[Any, Mapping[str, Any]], Iterator[Question]]] = {
    "forced_tools": _ask_choice,
    "late_system": _ask_late_system,
    "prefill": _ask_prefill,
    "reasoning": _ask_reasoning,
    "reasoning_required": _ask_history,
    "refused_settings": _ask_settings,
    "refused_while_reasoning": _ask_reasoning_settings,
    "seed_field": _ask_seed,
    "send_reasoning": _ask_thinking,
    "stream_usage": _ask_usage,
    "structured": _ask_schema,
    "structured_streamed": _ask_schema_streamed,
    "structured_with_tools": _ask_schema_with_tools,
    "tools_while_reasoning": _ask_tools,
}


# --- asking ------------------------------------------------------------------------------------


class BeliefCheck:
    """The beliefs about one model, and the calls that ask its vendor's server about them.

    ``settings`` are those of ``connect``, such as ``base_url`` and ``api_key``.
    """

    def __init__(self, vendor: str, model: str, wire: str | None = None, **settings: Any) -> None:
        self.vendor = vendor
        self.model = model
        self._settings = {**settings, "wire": wire, "retries": 0, "timeouts": 60.0}
        self.wire = wire or self._open({}).codec.wire
        self._settings["wire"] = self.wire
        self.believed = [
            replace(each, questions=tuple(filter(self._can_write, each.questions)))
            for each in list_believed(vendor, model, self.wire)
        ]

    def _open(self, quirks: Mapping[str, Any]) -> HttpProvider:
        settings = dict(self._settings)
        if quirks.get("structured") == "native":
            # A capability that the catalogue denies would put the schema into the prompt.
            settings["capabilities"] = {"supports_structured_output": True}
        provider = connect(f"{self.vendor}:{self.model}", quirks=dict(quirks), **settings)
        if not isinstance(provider, HttpProvider):
            raise ValueError(f"{self.vendor}:{self.model} is not a model at one address")
        return provider

    def _can_write(self, question: Question) -> bool:
        """Return whether the wire has what a question is about."""
        try:
            self._open(question.quirks).preview(question.request)
        except UnsupportedFeatureError:
            return False
        return True

    @property
    def calls(self) -> int:
        """The number of calls that the check makes."""
        return sum(len(each.questions) for each in self.believed)

    def estimate(self) -> Decimal | None:
        """Return the most that the calls cost in dollars, or ``None`` if no price is known."""
        total = Decimal(0)
        for believed in self.believed:
            for question in believed.questions:
                provider = self._open(question.quirks)
                sent = len(provider.preview(question.request).http.body) // _BYTES_PER_TOKEN
                price = provider.priced_as.cost(Usage(sent, MAX_TOKENS))
                if isinstance(price, Unpriced):
                    return None
                total += price.total
        return total

    def describe(self) -> BeliefReport:
        """Return the beliefs as a report in which nothing has been asked."""
        outcomes: list[BeliefOutcome] = []
        for each in self.believed:
            planned = [
                replace(_note_unasked(each), asks=question.asks, expected=question.expected)
                for question in each.questions
            ]
            outcomes += planned or [_note_unasked(each)]
        return self._report(outcomes)

    async def run(self, progress: Callable[[int, int, str], None] | None = None) -> BeliefReport:
        """Ask every question, and return what the server did.

        Raises ``AuthenticationError`` at the first reply that rejects the key.
        """
        outcomes: list[BeliefOutcome] = []
        asked = 0
        for believed in self.believed:
            if not believed.questions:
                outcomes.append(_note_unasked(believed))
            for question in believed.questions:
                if progress is not None:
                    progress(asked, self.calls, believed.quirk)
                outcomes.append(await self._ask(believed, question))
                asked += 1
        return self._report(outcomes)

    async def _ask(self, believed: Believed, question: Question) -> BeliefOutcome:
        provider = self._open(question.quirks)
        outcome = replace(_note_unasked(believed), asks=question.asks, expected=question.expected)
        try:
            http = provider.preview(question.request).http
            async with await provider.exchange(http, stream=question.request.stream) as reply:
                status = reply.status
                error = None
                if status >= 400:
                    error = await provider.read_failure(reply, provider.codec, http.url)
        except AuthenticationError:
            raise
        except ProviderError as failed:
            why = scrub(cut(f"{type(failed).__name__}: {failed.message}", _SHOWN))
            return replace(outcome, verdict="unclear", detail=why)
        finally:
            await provider.close()
        if isinstance(error, AuthenticationError):
            raise provider.annotate(error)
        if error is not None:
            error = provider.annotate(error)
        text = "" if error is None else error.provider_message or error.message
        return replace(
            outcome, status=status, verdict=_judge(status, question.expected),
            detail=cut(" ".join(text.split()), _SHOWN),
        )  # fmt: skip

    def _report(self, outcomes: Iterable[BeliefOutcome]) -> BeliefReport:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return BeliefReport(
            vendor=self.vendor, model=self.model, wire=self.wire, by="dragoman check", at=now,
            outcomes=tuple(outcomes),
        )  # fmt: skip


def _note_unasked(believed: Believed) -> BeliefOutcome:
    return BeliefOutcome(
        quirk=believed.quirk, value=believed.value, source=believed.source, as_of=believed.as_of,
        guess=believed.guess, verdict="not_asked",
    )  # fmt: skip


def _judge(status: int, expected: Expected) -> Verdict:
    """Return what a status shows about a belief; a busy server shows nothing."""
    if status < 300:
        return "holds" if expected == "accepted" else "contradicted"
    if status in _REFUSING:
        return "holds" if expected == "refused" else "contradicted"
    return "unclear"


def write_beliefs(report: BeliefReport) -> str:
    """Return a report as text: a line for each question, with the source of the belief below."""
    lines = [f"{report.vendor}:{report.model} ({report.wire})"]
    source = None
    for each in report.outcomes:
        if (each.quirk, each.source) != source:
            source = (each.quirk, each.source)
            value = msgspec.json.encode(each.value).decode()
            lines += ["", f"{each.quirk}: {value}"]
            guess = ", a guess" if each.guess else ""
            lines.append(f"  seen {each.as_of or 'earlier'}{guess}: {each.source}")
        if each.verdict == "not_asked":
            lines.append(f"  not asked: {each.asks}" if each.asks else "  not asked")
        else:
            found = each.status if each.status is not None else "no reply"
            word = each.verdict.upper() if each.verdict == "contradicted" else each.verdict
            lines.append(f"  {word}: {each.asks} should be {each.expected}, and got {found}")
            lines += [f"    {each.detail}"] if each.detail and each.verdict != "holds" else []
    counts = [f"{count} {name.replace('_', ' ')}" for name, count in report.counts.items()]
    return "\n".join([*lines, "", ", ".join(counts)])

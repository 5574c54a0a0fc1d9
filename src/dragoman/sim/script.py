"""The script of a simulated model: rules that match requests and define the replies."""

from __future__ import annotations

import datetime
import fnmatch
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, get_args

import msgspec
from msgspec import Struct

from .. import errors
from .. import messages as m
from ..errors import ProviderError
from ..events import FinishReason, Usage
from ..middleware.layer import check_number

FINISHES: tuple[str, ...] = get_args(FinishReason)


def find_error(name: str) -> type[ProviderError] | None:
    """Return the error class with this name."""
    kind = getattr(errors, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, ProviderError) else None


def check_day(day: str | None) -> None:
    """Raise ``ValueError`` if a text is not a day, such as ``2026-12-11``."""
    try:
        datetime.date.fromisoformat(day or "2026-01-01")
    except ValueError:
        raise ValueError(f"today must be a day such as 2026-12-11, not {day!r}") from None


class Call(Struct, frozen=True):
    """A tool call to propose.

    ``arguments`` given as a string are sent unchanged, well formed or not. ``signature`` is the
    opaque state of the call, as Gemini has it.
    """

    name: str
    arguments: dict[str, Any] | str = {}
    id: str | None = None
    signature: str | None = None

    @property
    def written(self) -> str:
        """The arguments as text, as they are sent."""
        if isinstance(self.arguments, str):
            return self.arguments
        return msgspec.json.encode(self.arguments).decode()


Said: TypeAlias = m.Text | m.Thinking | m.RedactedThinking | m.Opaque | Call


class _Text(Struct, frozen=True):
    text: str = ""


class Answer(_Text, frozen=True, kw_only=True):
    """A reply: ``content`` in order, or ``thinking``, ``text`` and ``tool_calls`` in this order.

    ``usage`` is estimated if omitted; ``Usage()`` reports nothing. ``finish`` is derived from the
    content if omitted. ``delay`` is the wait before the first event and ``pace`` the wait before
    each later piece, in seconds; ``piece`` is the length of a piece in characters, by default a
    word.
    """

    thinking: str = ""
    tool_calls: Sequence[Call] = ()
    content: Sequence[Said] = ()
    usage: Usage | None = None
    finish: FinishReason | None = None
    stop_sequence: str | None = None
    delay: float = 0.0
    pace: float = 0.0
    piece: int | None = None

    def __post_init__(self) -> None:
        if self.content and (self.text or self.thinking or self.tool_calls):
            raise ValueError("answer: content excludes text, thinking and tool_calls")
        if self.finish is not None and self.finish not in FINISHES:
            raise ValueError(
                f"answer: finish must be one of {', '.join(FINISHES)}, not {self.finish!r}"
            )
        _check_numbers(self, "answer", "delay", "pace")
        _check_numbers(self, "answer", "piece", least=1, whole=True)

    @property
    def said(self) -> tuple[Said, ...]:
        """The content blocks of the reply, in order."""
        if self.content:
            return tuple(self.content)
        thinking: tuple[Said, ...] = (m.Thinking(self.thinking),) if self.thinking else ()
        text: tuple[Said, ...] = (m.Text(self.text),) if self.text else ()
        return (*thinking, *text, *self.tool_calls)


class Fault(Struct, frozen=True, kw_only=True):
    """A scripted failure.

    Faults of the reply: ``status`` rejects the call with ``message``, ``code`` and
    ``retry_after``; ``error`` names the error class to raise after ``after`` pieces; ``stall``
    waits that many seconds at that point (``inf``: forever).

    Faults of the bytes, if the reply is served over HTTP: ``cut_at`` drops the connection at that
    byte and ``end_at`` ends the body there as if it were complete; ``garbage_at`` inserts
    ``garbage`` random bytes; ``duplicate`` sends every n-th chunk twice; ``interleave`` mixes the
    fragments of parallel tool calls; ``drip`` sends that many bytes at a time with ``pace``
    seconds between; ``content_type`` sends a wrong Content-Type; ``body`` replaces the body of an
    error response.
    """

    status: int | None = None
    message: str = ""
    code: str = ""
    retry_after: float | None = None
    error: str | None = None
    after: int = 0
    stall: float | None = None
    cut_at: int | None = None
    end_at: int | None = None
    garbage_at: int | None = None
    garbage: int = 16
    duplicate: int | None = None
    interleave: bool = False
    drip: int | None = None
    pace: float = 0.0
    content_type: str | None = None
    body: str | None = None

    def __post_init__(self) -> None:
        if self.status is not None and not 300 <= self.status <= 599:
            raise ValueError(
                f"fault: status must be an error status, 300 to 599, not {self.status!r}"
            )
        if self.error is not None and find_error(self.error) is None:
            raise ValueError(
                f"fault: error must name a class such as RateLimitError, not {self.error!r}"
            )
        if self.error is not None and self.status is not None and self.after:
            raise ValueError(
                "fault: 'status' is sent before the reply; leave out 'after', or use 'error'"
            )
        _check_numbers(self, "fault", "after", "cut_at", "end_at", "garbage_at", whole=True)
        _check_numbers(self, "fault", "garbage", "duplicate", "drip", least=1, whole=True)
        _check_numbers(self, "fault", "retry_after", "pace")
        if self.stall != math.inf:
            _check_numbers(self, "fault", "stall")

    @property
    def is_of_bytes(self) -> bool:
        """Whether the fault affects the bytes of the reply rather than its contents."""
        return self.interleave or any(getattr(self, name) is not None for name in _OF_BYTES)


_OF_BYTES = ("cut_at", "end_at", "garbage_at", "duplicate", "drip", "content_type", "body")


def _check_numbers(value: Struct, owner: str, *names: str, **bounds: Any) -> None:
    for name in names:
        if (number := getattr(value, name)) is not None:
            check_number(owner, name, number, **bounds)


class RequestMatch(Struct, frozen=True, kw_only=True):
    """Which requests a rule answers; all conditions that are set must hold.

    ``text`` must occur in the last user message and ``system`` in the system prompt, ignoring
    case; ``pattern`` is a regular expression for the last user message; ``tool_result`` must occur
    in the tool results at the end of the conversation; ``tools`` must all be offered; ``model``
    may contain ``*``; ``turn`` counts the model's turns from 1; ``where`` is a predicate on the
    request.
    """

    text: str | None = None
    pattern: str | None = None
    system: str | None = None
    tool_result: str | None = None
    tools: Sequence[str] = ()
    model: str | None = None
    turn: int | None = None
    schema: bool | None = None
    stream: bool | None = None
    where: Callable[[m.Request], bool] | None = None

    def __post_init__(self) -> None:
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ValueError(f"match: pattern is not a regular expression: {error}") from None
        _check_numbers(self, "match", "turn", least=1, whole=True)

    def fits(self, request: m.Request) -> bool:
        """Return whether the request meets all conditions."""
        return (
            _holds(self.text, _last_user(request))
            and (self.pattern is None or re.search(self.pattern, _last_user(request)) is not None)
            and _holds(self.system, _system(request))
            and (self.tool_result is None or _holds(self.tool_result, _last_results(request)))
            and set(self.tools) <= {tool.name for tool in request.tools}
            and (self.model is None or fnmatch.fnmatchcase(request.model, self.model))
            and (self.turn is None or self.turn == _turn(request))
            and (self.schema is None or self.schema == (request.response_schema is not None))
            and (self.stream is None or self.stream == request.stream)
            and (self.where is None or bool(self.where(request)))
        )


def _holds(wanted: str | None, text: str | None) -> bool:
    return wanted is None or (text is not None and wanted.casefold() in text.casefold())


def _last_user(request: m.Request) -> str:
    return next(
        (message.text for message in reversed(request.messages) if isinstance(message, m.User)), ""
    )


def _system(request: m.Request) -> str:
    return "\n\n".join(
        [message.content for message in request.messages if isinstance(message, m.System)]
    )


def _last_results(request: m.Request) -> str | None:
    """Return the tool results that end the conversation, or ``None`` if there are none."""
    found: list[str] = []
    for message in reversed(request.messages):
        if not isinstance(message, m.ToolResult):
            break
        found.append(message.text)
    return "\n".join(reversed(found)) if found else None


def _turn(request: m.Request) -> int:
    return 1 + sum(isinstance(message, m.Assistant) for message in request.messages)


Reply: TypeAlias = Answer | str | Callable[[m.Request], Answer | str]


class _Exchange(Struct, frozen=True):
    reply: Reply = ""
    match: RequestMatch = RequestMatch()


class ScriptRule(_Exchange, frozen=True, kw_only=True):
    """A rule of a script: answer a matching request with ``reply``, damaged by ``fault``.

    ``times`` limits how many calls the rule answers; ``chance`` is the probability that it
    answers, drawn with the script's seed. ``name`` is for error messages.
    """

    fault: Fault | None = None
    times: int | None = None
    chance: float = 1.0
    name: str = ""

    def __post_init__(self) -> None:
        _check_numbers(self, "rule", "times", least=1, whole=True)
        _check_numbers(self, "rule", "chance", most=1)

    def answer(self, request: m.Request) -> Answer:
        """Return the answer to a request."""
        reply = self.reply(request) if callable(self.reply) else self.reply
        return Answer(reply) if isinstance(reply, str) else reply


class _Rules(Struct, frozen=True):
    rules: Sequence[ScriptRule] = ()


class Script(_Rules, frozen=True, kw_only=True):
    """Rules in the order they are tried, and the properties of the simulated provider."""

    seed: int = 0
    model: str = "sim"
    models: Sequence[str] = ()
    capabilities: Mapping[str, Any] = {}
    strict: bool = False
    vendor: str | None = None
    today: str | None = None

    @property
    def served(self) -> tuple[str, ...]:
        """The names of the models that the simulated provider serves."""
        return tuple(self.models) or (self.model,)

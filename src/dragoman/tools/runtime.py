"""Tools and their results: validate, execute, observe.

Permission decisions are made in ``dragoman.permission``.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, get_args

import msgspec
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from ..errors import InvalidRequestError, quote
from ..events import ToolIntent
from ..log import SideEffect
from ..messages import Audio, Document, Image, Inline, Text, Tool, UserBlock
from ..permission import Decision, Withheld
from ..validate.content import check_media
from ..validate.schema import compile_schema, first_error
from .call_context import CONTEXT, ToolContext

DEFAULT_TIMEOUT = 120.0
# output limit in characters: about 8,000 tokens, so several results fit into a context window
DEFAULT_OUTPUT_LIMIT = 30_000

SEARCH_TOOLS = "search_tools"
"""The name of the tool with which a model finds deferred tools, if its provider has no search."""
FailureKind: TypeAlias = Literal[
    "timeout", "cancelled", "not_started", "crashed", "lost", "unreadable", "not_recorded"
]
# A function that returns whether the running call must hide a path of the workspace. A tool that
# walks a folder omits such paths and reports how many it omitted. The session derives the function
# from the rules of its policy.
WITHHELD: ContextVar[Withheld | None] = ContextVar("withheld", default=None)
# A function that asks the approver of the session on behalf of the running call.
Ask: TypeAlias = Callable[[dict[str, Any]], Awaitable[Decision]]
ASK: ContextVar[Ask | None] = ContextVar("ask", default=None)
# What a resumed session does with a call that was interrupted, or a function that finds out what
# the call did: it returns the result of the call, one of the two words, or ``None`` if it is not
# known.
OnResume: TypeAlias = "Literal['ask', 'run'] | Callable[[ToolIntent], Any]"
Rejection: TypeAlias = tuple[Literal["unknown_tool", "invalid_arguments"], str]


class _Content(Struct, frozen=True):
    content: str | tuple[UserBlock, ...]


class Observation(_Content, frozen=True, omit_defaults=True, kw_only=True):
    """What a tool returned. The only addition to its text is a mark where output was truncated."""

    is_error: bool = False
    truncated: bool = False
    exit_code: int | None = None
    duration_ms: float | None = None
    details: dict[str, Any] = field(default_factory=dict)


class ToolFailure(Exception):  # noqa: N818 - it is what happened, and no mistake of the caller's
    """A tool could not be run to completion, so there is no observation."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.message = message
        self.duration_ms: float | None = None


class CallWaits(ToolFailure):
    """A call waits for something from outside of its session, such as a decision.

    Nothing about it is recorded, and the session ends its run with the outcome ``waiting``. A
    resumed session runs the call again.
    """

    def __init__(self, message: str) -> None:
        super().__init__("not_started", message)


class ToolSource(Protocol):
    """Where tools come from that may change while a session runs, such as an MCP server."""

    tools: list[ExecutableTool]

    async def refresh(self) -> bool:
        """Read the tools again if they may have changed; return whether that was done."""
        ...


class ExecutableTool(ABC):
    """A tool that this process can run. A model and its provider receive only ``description``.

    A tool that does not declare its side effect counts as one that executes programs.
    """

    side_effect: SideEffect = "execute"
    timeout: float | None = DEFAULT_TIMEOUT
    output_limit: int = DEFAULT_OUTPUT_LIMIT
    interruptible: ClassVar[bool] = True
    external: bool = False  # whether the session only waits for the result of its calls
    on_resume: OnResume | None = None
    source: ToolSource | None = None

    def __init__(
        self,
        description: Tool,
        *,
        side_effect: SideEffect = "execute",
        timeout: float | None = DEFAULT_TIMEOUT,
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
    ) -> None:
        if side_effect not in get_args(SideEffect):
            raise ValueError(
                f"side_effect: must be one of {', '.join(get_args(SideEffect))}, not "
                f"{side_effect!r}"
            )
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout: must be seconds above 0, or None, not {timeout!r}")
        if output_limit < 200:
            raise ValueError(
                f"output_limit: must be at least 200 characters, not {output_limit!r}"
            )
        try:
            compile_schema(description.parameters, f"{description.name}.parameters")
        except InvalidRequestError as error:
            raise ValueError(error.message) from None
        self.description = description
        self.side_effect = side_effect
        self.timeout = timeout
        self.output_limit = output_limit

    @property
    def name(self) -> str:
        """The name by which the model calls the tool."""
        return self.description.name

    @property
    def digest(self) -> str:
        """The SHA-256 of the definition that the model receives: name, description and schema."""
        sent = {
            name: value
            for name, value in asdict(self.description).items()
            if name not in ("deferred", "external")
        }
        return hashlib.sha256(msgspec.json.encode(sent, order="sorted")).hexdigest()

    def check(self, arguments: Mapping[str, Any]) -> str | None:
        """Check rules that the schema cannot express; return the problem, or ``None`` if valid."""
        return None

    def locate(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the paths in the workspace that a call uses."""
        return ()

    @property
    def if_interrupted(self) -> OnResume | None:
        """What a resumed session does with a call that began to run and has no recorded end.

        By default a call that changes nothing runs again; for any other the model receives a
        result that the effect is not known.
        """
        if self.on_resume is None and self.side_effect in ("none", "read"):
            return "run"
        return self.on_resume

    @property
    def names_paths(self) -> bool:
        """Whether ``locate`` returns paths, so that a rule with a path can match a call."""
        return type(self).locate is not ExecutableTool.locate

    def follow(self, tools: Toolbox) -> None:  # noqa: B027 - most tools know of no others
        """Take note of other tools after a change of the toolbox."""

    def context(self) -> dict[str, Any]:
        """Return how the tool will run (folder, sandbox and similar), for the log."""
        return {}

    @abstractmethod
    async def execute(self, arguments: Mapping[str, Any]) -> Observation:
        """Run the tool and return its observation; raise ``ToolFailure`` if it did not finish."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} ({self.side_effect})>"


class Toolbox:
    """The tools of a session by name."""

    def __init__(self, tools: Iterable[ExecutableTool] = ()) -> None:
        self._tools: dict[str, ExecutableTool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ValueError(f"tools: two are named {tool.name!r}")
            self._tools[tool.name] = tool

    async def refresh(self) -> bool:
        """Take the tools again of every source that has read them again.

        Return whether there was one. Tools that are still there keep their places, so that the
        list of tools begins as before. A new tool with the name of another is left out.
        """
        sources = dict.fromkeys([tool.source for tool in self if tool.source is not None])
        changed = [source for source in sources if await source.refresh()]
        found: dict[str, ExecutableTool] = {}
        for source in changed:
            found = {tool.name: tool for tool in source.tools} | found
        kept: dict[str, ExecutableTool] = {}
        for name, tool in self._tools.items():
            if tool.source not in changed:
                kept[name] = tool
            elif name in found:
                kept[name] = found[name]
        self._tools = kept | {name: tool for name, tool in found.items() if name not in kept}
        if changed:
            for tool in self:
                tool.follow(self)
        return bool(changed)

    def describe(self) -> tuple[Tool, ...]:
        """Return the names, descriptions and schemas of the tools."""
        return tuple([tool.description for tool in self._tools.values()])

    def offer(self, found: Iterable[str], *, searched: bool) -> tuple[Tool, ...]:
        """Return the tools that the model receives.

        If the provider searches deferred tools (``searched``), return all but ``search_tools``.
        Otherwise return the tools that are not deferred, then the deferred tools in ``found``, in
        the order of ``found``, so that each list of tools begins with the previous list.
        """
        tools = self.describe()
        if searched:
            return tuple([tool for tool in tools if tool.name != SEARCH_TOOLS])
        deferred = {tool.name: replace(tool, deferred=False) for tool in tools if tool.deferred}
        loaded = [deferred[name] for name in found if name in deferred]
        return (*[tool for tool in tools if not tool.deferred], *loaded)

    def __iter__(self) -> Iterator[ExecutableTool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def find(self, name: str) -> ExecutableTool:
        """Return the tool with this name; raise ``KeyError`` if there is none."""
        return self._tools[name]

    def validate(self, name: str, arguments: Mapping[str, Any]) -> Rejection | None:
        """Return why a call cannot be run, or ``None`` if it can."""
        tool = self._tools.get(name)
        if tool is None:
            return "unknown_tool", f"there is no tool named {quote(name)}"
        wrong = first_error(
            compile_schema(tool.description.parameters, name), arguments
        ) or tool.check(arguments)
        return None if wrong is None else ("invalid_arguments", wrong)

    def may_overlap(self, names: Iterable[str]) -> bool:
        """Return whether these tools may run concurrently: all of them must be read-only."""
        found = [self._tools.get(name) for name in names]
        return all(tool is None or tool.side_effect in ("none", "read") for tool in found)

    async def execute(
        self,
        name: str,
        arguments: Mapping[str, Any],
        withheld: Withheld | None = None,
        ask: Ask | None = None,
        context: ToolContext[Any] | None = None,
    ) -> Observation:
        """Run a tool within its timeout and output limit.

        Raise ``ToolFailure`` if it does not finish.

        ``withheld`` is a function that returns whether the tool must hide a path; ``ask`` is one
        that asks the approver, within the timeout. ``context`` is passed to the tool.
        """
        tool = self._tools[name]
        began = time.perf_counter()
        token = WITHHELD.set(withheld)
        asked = ASK.set(ask)
        passed = CONTEXT.set(context)
        try:
            observation = await self._run(tool, arguments)
        except ToolFailure as failure:
            failure.duration_ms = _since(began)
            raise
        finally:
            CONTEXT.reset(passed)
            WITHHELD.reset(token)
            ASK.reset(asked)
        return replace(limit_output(observation, tool.output_limit), duration_ms=_since(began))

    async def _run(self, tool: ExecutableTool, arguments: Mapping[str, Any]) -> Observation:
        deadline = asyncio.timeout(tool.timeout)
        try:
            async with deadline:
                return await tool.execute(arguments)
        except TimeoutError as error:
            if deadline.expired():
                problem = f"still running after {tool.timeout:g} s"
                if not tool.interruptible:
                    problem += "; it cannot be interrupted and may still be running"
                raise ToolFailure("timeout", problem) from None
            raise ToolFailure("crashed", f"TimeoutError: {error}") from error
        except ToolFailure:
            raise
        except Exception as error:
            raise ToolFailure("crashed", f"{type(error).__name__}: {error}") from error


def _since(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 3)


# --- limiting the output of tools --------------------------------------------------------------


def cut_text(text: str, limit: int) -> tuple[str, int]:
    """Replace the middle of a long string by a mark; return the result and the omitted length."""
    if len(text) <= limit:
        return text, 0
    kept = max(limit - 100, 2)  # leave space for the mark that replaces the middle
    head = kept - kept // 2
    tail = kept // 2
    missing = len(text) - kept
    mark = (
        f"\n[... {missing} of {len(text)} characters left out here: the output limit is {limit} "
        "...]\n"
    )
    return text[:head] + mark + text[len(text) - tail :], missing


def limit_output(observation: Observation, limit: int) -> Observation:
    """Truncate an observation to ``limit``, replace invalid Unicode, and note what was changed."""
    details = dict(observation.details)
    content = observation.content
    if isinstance(content, str):
        content, left_out = _limit_text(content, limit, details)
    else:
        content, left_out = _limit_blocks(content, limit, details)
    if left_out:
        details["left_out_characters"] = left_out
    if content == observation.content:
        return observation
    return replace(
        observation,
        content=content,
        truncated=observation.truncated or bool(left_out),
        details=details,
    )


def _limit_text(text: str, limit: int, details: dict[str, Any]) -> tuple[str, int]:
    whole = text
    clean = text.encode("utf-8", "replace").decode()
    if clean != text:  # the text has lone surrogates, which JSON cannot represent
        details["replaced_characters"] = sum(0xD800 <= ord(char) <= 0xDFFF for char in text)
    text, left_out = cut_text(clean, limit)
    if left_out:
        details["sha256"] = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()
    return text, left_out


def _limit_blocks(
    blocks: tuple[UserBlock, ...], limit: int, details: dict[str, Any]
) -> tuple[tuple[UserBlock, ...], int]:
    kept: list[UserBlock] = []
    left_out = 0
    for block in blocks:
        if isinstance(block, Text):
            text, missing = _limit_text(block.text, max(limit, 200), details)
            if text:
                kept.append(block if text == block.text else Text(text))
            limit -= len(text)
        else:
            problem = find_problem(block)
            missing = max(_media_size(block), 1) if problem else 0
            kept.append(
                Text(f"[{type(block).__name__.lower()} left out: {problem}]") if problem else block
            )
        left_out += missing
    return tuple(kept), left_out


_MEDIA_TYPE = re.compile(r"[a-z]+/[a-zA-Z0-9][a-zA-Z0-9.+_-]{0,126}")


def find_problem(block: Image | Document | Audio) -> str | None:
    """Return why providers would reject an image, a document or audio; ``None`` if they accept it.

    A tool result stays in the conversation, so a rejected block would make every later call fail.
    """
    try:
        check_media(block, "it")
    except InvalidRequestError as error:
        return error.message
    if (size := _media_size(block)) > _MEDIA_LIMIT:
        return f"it has {size} characters; the limit is {_MEDIA_LIMIT}"
    if block.media_type is not None and not _MEDIA_TYPE.fullmatch(block.media_type):
        return f"its media type is {quote(block.media_type)}"
    if not isinstance(block.source, Inline):
        return None if _URL.match(block.source.url) else "its URL is neither http: nor data:"
    try:
        base64.b64decode(block.source.base64_data, validate=True)
    except ValueError:
        return "its data is not base64"
    return None


_URL = re.compile(r"(?i)https?://\S|data:\S")
_MEDIA_LIMIT = 8 * 1024 * 1024  # size limit of media, which are never truncated, only omitted


def _media_size(block: Image | Document | Audio) -> int:
    if isinstance(block.source, Inline):
        return len(block.source.base64_data)
    return len(block.source.url)

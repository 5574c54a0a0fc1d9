"""Tools of a Model Context Protocol server.

This module needs the extra ``dragoman[mcp]``, which is imported when a server is opened.

A server's own description of its tools is not trusted: its hint that a tool only reads has no
effect, unless ``trust_hints`` is set. Declare side effects in ``side_effects``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import logging
import math
import os
import re
from collections.abc import Coroutine, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from ..errors import scrub
from ..log import SideEffect
from ..messages import Tool
from ..transport.connect import is_loopback
from .call_context import CONTEXT
from .mcp_changes import watch_tools
from .mcp_content import observe
from .mcp_context import CONTEXT_TOOLS, to_content
from .mcp_http import MAX_ITEMS, MAX_REPLY, open_http
from .mcp_oauth import Guard, McpOAuth, check_place, make_auth
from .mcp_questions import Questions
from .mcp_stdio import ProgramStream, answer_requests, open_program
from .mcp_tasks import make_tasks
from .pins import AcceptChange, ToolPins
from .process import KeptOutput, open_pipe
from .runtime import (
    ASK,
    DEFAULT_OUTPUT_LIMIT,
    DEFAULT_TIMEOUT,
    ExecutableTool,
    FailureKind,
    Observation,
    ToolFailure,
)

log = logging.getLogger("dragoman")

_MAX_PAGES = 100
_SCHEME = re.compile(r"^(?:bearer|basic|token)\s+", re.IGNORECASE)  # not a secret in a header
_MAX_COMPLAINTS = 4000  # bytes of a server's standard error to keep
# A name is sent to the model, used in rules and shown in the terminal. A Cyrillic letter or a
# control character could imitate another tool, and vendors reject a complete request if one tool's
# name is invalid. The protocol allows 128 characters (specification of 2025-11-25, server/tools);
# the wires shorten a name that is too long for a vendor.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_NAME_RULE = "1 to 128 of A-Z, a-z, 0-9, '_', '.' and '-'"
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{0,64}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SHOWN = 60  # characters of a rejected tool name to show
_MAX_REASONS = 20
_MAX_REASON = 300  # characters of the reason why a tool's schema is refused


class McpServer:
    """An MCP server: a program over standard input and output, or a server at a URL.

    ::

        async with McpServer(["python", "server.py"], side_effects={"search": "read"}) as server:
            session = Session(provider, server.tools, policy, log)

    ``side_effects`` are by the name of a tool on the server, or by a pattern such as ``get_*``; a
    name counts before a pattern, and an earlier pattern before a later one. A tool that it does
    not name has the effect ``execute``. With ``trust_hints``, it has ``read`` if the server states
    in ``readOnlyHint`` that the tool changes nothing.

    A program gets a clean environment: pass the variables that it needs in ``env``. Tools whose
    names are not plain ASCII of at most 128 characters, or whose schemas are not valid JSON
    Schema, are left out; ``refused`` has the reasons. ``prefix`` begins the names of all tools.

    ``headers``, such as ``{"Authorization": f"Bearer {token}"}``, are sent only to the origin of
    the URL, and their values are hidden in errors and in what tools return. ``oauth`` is an
    ``McpOAuth``, or an ``httpx2.Auth`` of the MCP library. With ``pins``, a tool whose definition
    is not the pinned one is offered only if ``accept`` agrees. With ``deferred``, the tools are
    offered once a tool search finds them.

    With ``context``, the server's resources and prompts are offered by up to four tools with the
    side effect ``read``: ``list_resources``, ``read_resource``, ``list_prompts``, ``get_prompt``.

    A session reads the list of tools again before a turn if the server reported a change, or if
    the lifetime of the list (``ttlMs``) is over; ``refresh`` does the same. A call that the server
    turns into a task is polled until the task ends; if the call is stopped, the task is cancelled.
    """

    def __init__(
        self,
        target: str | Sequence[str],
        *,
        prefix: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        side_effects: Mapping[str, SideEffect] | None = None,
        trust_hints: bool = False,
        timeout: float | None = DEFAULT_TIMEOUT,
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
        start_timeout: float = 30.0,
        headers: Mapping[str, str] | None = None,
        oauth: McpOAuth | Any = None,
        pins: ToolPins | None = None,
        accept: AcceptChange | None = None,
        deferred: bool = False,
        context: bool = False,
    ) -> None:
        if isinstance(target, str) and not target.startswith(("http://", "https://")):
            raise ValueError("target: must be a URL, or a list of the program and its arguments")
        if not target:
            raise ValueError("target: must not be empty")
        if not _PREFIX.fullmatch(prefix):
            rule = "at most 64 of A-Z, a-z, 0-9, '_', '.' and '-'"
            raise ValueError(f"prefix: must be {rule}, not {prefix!a}")
        self._target = target
        self._headers = dict(headers or {})
        _check_headers(self._headers, target)
        self._oauth = oauth
        if oauth is not None:
            _check_oauth(self._headers, target)
        self._secrets = [_SCHEME.sub("", value) for value in self._headers.values()]
        self._pins = pins
        self._accept = accept
        self._deferred = deferred
        self._context = context
        self._prefix = prefix
        self._side_effects: dict[str, SideEffect] = dict(side_effects or {})
        self._trust_hints = trust_hints
        self._env = dict(env or {})
        self._cwd = cwd
        self._limits: Any = {"timeout": timeout, "output_limit": output_limit}
        self._start_timeout = start_timeout
        self._client: Any = None
        self._program: ProgramStream | None = None
        self._owner: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()
        self._running: list[Questions] = []  # the questions of the running calls
        self._is_stale = False  # whether the server reported a change of its tools
        self._expires = math.inf  # the time of the event loop up to which the tools hold
        self.tools: list[ExecutableTool] = []
        self.refused: list[str] = []

    @property
    def label(self) -> str:
        """The server's program without arguments, or its URL without user name and query string.

        The omitted parts may contain keys.
        """
        if not isinstance(self._target, str):
            return self._argv[0]
        parts = urlsplit(self._target)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def key(self) -> str:
        """The name of the server in the file of pinned tools.

        It consists of the label and a hash of the command or URL. The hash is omitted if the label
        is already the complete URL.
        """
        if self._target == self.label:
            return self.label
        whole = msgspec.json.encode(self._target if isinstance(self._target, str) else self._argv)
        return f"{self.label} {hashlib.sha256(whole).hexdigest()[:16]}"

    @property
    def _argv(self) -> list[str]:
        return [os.fspath(part) for part in self._target]

    async def open(self) -> None:
        """Start the server and read its list of tools; raise ``ToolFailure`` if either fails."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # One task opens and closes the connection, because the MCP library ties it to the task
        # that opened it.
        self._owner = asyncio.create_task(self._own(ready))
        try:
            async with asyncio.timeout(self._start_timeout):
                await ready
            # This step has no timeout, because the user may have to accept a changed tool.
            await self._check_pins()
        except BaseException as error:
            await self.close()
            if not isinstance(error, TimeoutError):
                raise
            problem = f"{self.label}: not ready after {self._start_timeout:g} s"
            raise ToolFailure("not_started", problem) from None

    async def close(self) -> None:
        """Close the connection, and stop the program if there is one."""
        owner, self._owner = self._owner, None
        client, self._client = self._client, None
        if owner is None:
            return
        self._leave.set()
        # a server that is still being opened does not notice that it should leave
        done, _ = await asyncio.wait([owner], timeout=0 if client is None else 10)
        if not done:
            owner.cancel()
            await asyncio.wait([owner])

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        """Call a tool by the server's own name for it.

        ``_meta`` of the request has the idempotency key of the call.
        The details have the questions that the server asks during the call, and the answers.
        """
        questions = Questions(ASK.get())
        self._running.append(questions)
        try:
            result = await self._send("call_tool", name, dict(arguments), **_identify_call())
            facts = result.structured_content, bool(result.is_error)
            seen = observe(result.content, self._secrets, *facts)
        finally:
            self._running.remove(questions)
            questions.close()
        asked = {"questions": questions.asked} if questions.asked else {}
        return replace(seen, details=seen.details | asked)

    async def read(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        """List or read resources or prompts; ``name`` is the name of one of the four tools."""
        return observe(to_content(name, await self._send(name, **arguments)), self._secrets)

    async def refresh(self) -> bool:
        """Read the list of tools again if it may have changed; return whether that was done.

        The tools stay the same if the list cannot be read.
        """
        now = asyncio.get_running_loop().time()
        client = self._client
        owner = self._owner
        if client is None or owner is None or not (self._is_stale or now >= self._expires):
            return False
        self._is_stale = False  # a change from here on concerns the next time
        self._expires = math.inf
        try:
            async with asyncio.timeout(self._start_timeout):
                await self._wait(self._list_tools(client), owner)
            await self._check_pins()
        except (ToolFailure, TimeoutError) as error:
            log.warning(
                "%s: its tools may have changed, but cannot be read: %s", self.label, error
            )
            return False
        return True

    async def _list_tools(self, client: Any) -> None:
        found, lifetime = await _list(client)
        self._take_tools(found)
        if self._context:
            self._add_context(client.server_capabilities)
        self._expires = asyncio.get_running_loop().time() + lifetime

    async def _send(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the MCP library; raise ``ToolFailure`` if it fails."""
        if self._client is None or self._owner is None or self._owner.done():
            raise ToolFailure("lost", f"{self.label}: the connection is closed")
        return await self._wait(getattr(self._client, method)(*arguments, **named), self._owner)

    async def _wait(self, request: Coroutine[Any, Any, Any], owner: asyncio.Task[None]) -> Any:
        """Return the result of a request; raise ``ToolFailure`` if it fails."""
        asking = asyncio.ensure_future(request)
        # Raise the failure outside of ``except``. Otherwise the library's exception, which may
        # quote the headers, would stay attached to it as its context.
        try:
            # If the connection is lost, the call never ends, but the task that owns the connection
            # does. Wait for both.
            await asyncio.wait([asking, owner], return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise ToolFailure("lost", f"{self.label}: the connection ended during the call")
            return asking.result()
        except ToolFailure:
            raise
        except Exception as error:
            failure = self._fail("crashed", f"{type(error).__name__}: {error}", error)
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
        raise failure

    def _fail(self, kind: FailureKind, message: str, cause: Exception) -> ToolFailure:
        """Return a failure without secrets.

        It has no cause if the server is at a URL: the cause may have the request as an attribute,
        and with it the URL and the headers.
        """
        if self._program is not None and self._program.excess is not None:
            kind = "unreadable"
            message = self._program.excess
        failure = ToolFailure(kind, scrub(f"{self.label}: {message}", self._secrets))
        failure.__cause__ = None if isinstance(self._target, str) else cause
        return failure

    async def _own(self, ready: asyncio.Future[None]) -> None:
        # The program's standard error is not shown. Its end is kept, to explain a failed start.
        complaints = KeptOutput(_MAX_COMPLAINTS)
        async with open_pipe(complaints) as pipe:
            try:
                async with contextlib.AsyncExitStack() as stack:
                    client = await self._connect(stack, pipe.write_end)
                    await self._list_tools(client)
                    self._client = client
                    watching = asyncio.create_task(self._watch(client))
                    stack.push_async_callback(_stop, watching)
                    if not ready.done():
                        ready.set_result(None)
                    await self._leave.wait()
            except Exception as error:
                if not ready.done():
                    pipe.close_write_end()
                    await asyncio.wait([pipe.ended], timeout=1)
                    message = f"{_innermost(error)}{_quote_end(complaints)}"
                    ready.set_exception(self._fail("not_started", message, error))

    async def _watch(self, client: Any) -> None:
        try:
            await watch_tools(client, self._mark_stale)
        except Exception as error:  # the library may raise anything for what a server sends
            problem = scrub(f"{type(error).__name__}: {error}", self._secrets)
            log.warning("%s: changes of its tools are no longer noticed: %s", self.label, problem)

    async def _connect(self, stack: contextlib.AsyncExitStack, errors_to: int) -> Any:
        # Importing the library takes half a second, which only users of MCP should pay.
        try:
            from mcp import Client
            from mcp_types import ElicitResult, ToolListChangedNotification
        except ImportError:
            problem = "MCP servers need the extra: pip install 'dragoman[mcp]'"
            raise ToolFailure("not_started", problem) from None
        if isinstance(self._target, str):
            settings = self._headers, self._start_timeout, self._make_guard()
            transport = await open_http(stack, self._target, *settings)
        else:
            program = open_program(self._argv, self._env, self._cwd, errors_to)
            self._program = await stack.enter_async_context(program)
            transport = contextlib.nullcontext((self._program, self._program))

        async def ask(context: Any, params: Any) -> ElicitResult:
            given = params.model_dump(mode="json", by_alias=True)
            return ElicitResult.model_validate(await self._elicit(given))

        async def hear(message: Any) -> None:
            if isinstance(message, ToolListChangedNotification):
                self._mark_stale()

        streams = answer_requests(transport, self._elicit)
        callbacks: Any = {"elicitation_callback": ask, "message_handler": hear}
        client = Client(streams, extensions=[make_tasks()], **callbacks)
        return await stack.enter_async_context(client)

    def _mark_stale(self) -> None:
        self._is_stale = True

    async def _elicit(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a question of the server. It does not name the call that it belongs to."""
        asked = self._running[0] if len(self._running) == 1 else Questions(None)
        return await asked.answer(params)

    def _make_guard(self) -> Guard | None:
        auth = self._oauth
        target = str(self._target)
        secrets = self._secrets
        if isinstance(auth, McpOAuth):
            auth = make_auth(auth, target, secrets)
        return Guard(auth, target, secrets) if auth is not None else None

    async def _check_pins(self) -> None:
        """Remove new or changed tools that the caller does not accept; pin the others."""
        if self._pins is None:
            return
        left_out: set[str] = set()
        for change in self._pins.find_changes(self.key, self.tools):
            answer = self._accept(change) if self._accept is not None else False
            if not (await answer if inspect.isawaitable(answer) else answer):
                left_out.add(change.tool.name)
                what = "is new" if change.pinned is None else "has another definition"
                reason = f"the tool {change.tool.name} {what} since its tools were pinned"
                self.refused.append(f"{self.label}: {reason}")
        self.tools = [tool for tool in self.tools if tool.name not in left_out]
        self._pins.keep(self.key, self.tools)

    def _take_tools(self, found: list[Any]) -> None:
        """Keep the tools with valid names and schemas, and list the others in ``refused``."""
        self.tools = []
        odd = []
        for each in found:
            try:
                self.tools.append(self._make_tool(each))
            except ValueError as error:
                shown = ascii(self._prefix + each.name[:_SHOWN])
                odd.append(f"the tool {shown} is refused: {ascii(str(error))[1:-1][:_MAX_REASON]}")
        if (more := len(odd) - _MAX_REASONS) > 0:
            odd[_MAX_REASONS:] = [f"{more} more tools are refused for their names or schemas"]
        self.refused = [f"{self.label}: {reason}" for reason in odd]
        for reason in self.refused:
            log.warning("%s", reason)

    def _add_context(self, capabilities: Any) -> None:
        taken = {tool.name for tool in self.tools}
        for name, tool in CONTEXT_TOOLS.items():
            kind = "resources" if "resource" in name else "prompts"
            if getattr(capabilities, kind) is None:
                continue
            description = replace(tool, name=self._prefix + name)
            if description.name in taken:
                self.refused.append(f"{self.label}: its tool {description.name} hides another")
                continue
            effect = _find_effect(self._side_effects, name) or "read"
            made = McpTool(self, name, description, side_effect=effect, **self._limits)
            made.call = self.read
            self.tools.append(made)

    def _make_tool(self, found: Any) -> McpTool:
        name = self._prefix + found.name
        text = found.description or ""
        if not _NAME.fullmatch(found.name):
            raise ValueError(f"a name must be {_NAME_RULE}")
        description = Tool(
            name, text, parameters=dict(found.input_schema), deferred=self._deferred
        )
        effect = _find_effect(self._side_effects, found.name)
        if effect is None and self._trust_hints and found.annotations is not None:
            effect = "read" if found.annotations.read_only_hint is True else None
        effect = effect or "execute"
        return McpTool(self, found.name, description, side_effect=effect, **self._limits)


class McpTool(ExecutableTool):
    """One tool of an MCP server."""

    def __init__(
        self, server: McpServer, remote_name: str, description: Tool, **settings: Any
    ) -> None:
        super().__init__(description, **settings)
        self._server = server
        self._remote_name = remote_name
        self.source = server
        self.call = server.call

    def context(self) -> dict[str, Any]:
        return {"server": self._server.label, "remote_name": self._remote_name}

    async def execute(self, arguments: Mapping[str, Any]) -> Observation:
        return await self.call(self._remote_name, arguments)


def _find_effect(declared: Mapping[str, SideEffect], name: str) -> SideEffect | None:
    """Return the side effect that was declared for a tool, by its name or by a pattern."""
    if name in declared:
        return declared[name]
    for pattern, effect in declared.items():
        if fnmatchcase(name, pattern):
            return effect
    return None


def _identify_call() -> dict[str, Any]:
    """Return the settings of a call that identify it to the server, and report its progress."""
    context = CONTEXT.get()
    if context is None:
        return {}

    async def report(progress: float, total: float | None, message: str | None) -> None:
        facts = {"progress": progress, "total": total, "message": (message or "")[:_MAX_REASON]}
        # a server may send a number that JSON cannot represent
        with contextlib.suppress(ValueError):
            context.report({key: value for key, value in facts.items() if value not in (None, "")})

    meta = {
        "dragoman/intent-id": context.intent_id,
        "dragoman/session": context.session,
        "dragoman/attempt": context.attempt,
    }
    return {"meta": meta, "progress_callback": report}


async def _list(client: Any) -> tuple[list[Any], float]:
    """Return the tools of a server, and how many seconds the list holds.

    A server without caching sends 0, and one of an earlier protocol nothing: then the list holds
    until the server reports a change.
    """
    found: list[Any] = []
    lifetime = math.inf
    size = 0
    asked = dict[str, str]()
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(**asked, cache_mode="refresh")
        found += page.tools
        if page.ttl_ms > 0:
            lifetime = min(lifetime, page.ttl_ms / 1000)
        size += len(page.model_dump_json())
        if len(found) > MAX_ITEMS or size > MAX_REPLY:
            problem = f"it has more than {MAX_ITEMS:,} tools, or {MAX_REPLY:,} bytes of them"
            raise ToolFailure("not_started", problem)
        if not page.next_cursor:
            return found, lifetime
        asked = {"cursor": page.next_cursor}
    raise ToolFailure("not_started", f"its list of tools has more than {_MAX_PAGES} pages")


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _check_headers(headers: Mapping[str, str], target: str | Sequence[str]) -> None:
    if not headers:
        return
    if not isinstance(target, str):
        raise ValueError("headers: a program has none; give it what it needs in env")
    parts = urlsplit(target)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ValueError("headers: would be sent unencrypted; use an https:// URL")
    for name, value in headers.items():
        is_valid = value.isascii() and value.isprintable() and value.strip()
        if not is_valid or not _HEADER.fullmatch(name):
            # The error does not quote the header's value, because it is a secret.
            problem = "is not a header, or its value is empty or not printable ASCII"
            raise ValueError(f"headers: {name!a} {problem}")


def _check_oauth(headers: Mapping[str, str], target: str | Sequence[str]) -> None:
    if not isinstance(target, str):
        raise ValueError("oauth: a program has no login; give it what it needs in env")
    if "authorization" in map(str.lower, headers):
        raise ValueError("oauth: the header Authorization is set already; leave one of them out")
    check_place(target, target)


def _quote_end(complaints: KeptOutput) -> str:
    text = " ".join(complaints.text()[-500:].split())
    return f". Its standard error ends with: {scrub(text)}" if text else ""


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return str(error) if isinstance(error, ToolFailure) else f"{type(error).__name__}: {error}"

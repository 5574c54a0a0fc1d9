"""Serve ``dragoman agent`` to an editor by the Agent Client Protocol, agentclientprotocol.com.

The editor starts the process and exchanges JSON-RPC messages with it, one per line, over standard
input and output. Each of its sessions is an ordinary ``Session``, which is resumed from the log
when the editor loads it. Only ``dragoman agent --acp`` imports this module, because it needs the
extra ``dragoman[acp]``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import click
import msgspec
from acp import PROTOCOL_VERSION, RequestError, schema, stdio_streams
from acp.agent.router import build_agent_router
from acp.connection import Connection
from msgspec import Struct
from pydantic import ValidationError

from .. import log as logs
from ..calls import redact
from ..errors import AuthenticationError, ProviderError
from ..events import Event, TextDelta, ThinkingDelta, ToolIntent
from ..messages import (
    NO_CONFIG,
    Assistant,
    Image,
    Inline,
    RuntimeConfig,
    Text,
    Thinking,
    User,
    UserBlock,
)
from ..permission import Decision, Proposal, Verdict, find_prefix
from ..provider import Provider
from ..replay import describe_action, make_headline
from ..session import Outcome, Session, SessionError
from ..tools import ToolFailure
from .acp_history import list_sessions
from .acp_models import EditorModels, SessionOptions
from .approval import read_answer
from .errors import to_record

log = logging.getLogger("dragoman")

_AUTH_REQUIRED = -32000
# Registries list only agents with a method of the type agent or terminal
# (agentclientprotocol/registry, AUTHENTICATION.md, 2026-08-12). The second needs an editor that
# opens a terminal.
_STORED_KEY = {
    "id": "stored-key",
    "name": "Stored API key",
    "description": "Run `dragoman keys set VENDOR` in a terminal, then try again.",
}
_TERMINAL = {
    "type": "terminal",
    "id": "terminal",
    "name": "Enter an API key",
    "description": "Enter the key of the model's vendor; it is stored for later.",
    "args": ["--login"],
}
_INVALID_REQUEST = -32600
_INVALID_PARAMS = -32602
_INTERNAL_ERROR = -32603
_NOT_FOUND = -32002
_SHOWN = 3  # mistakes of a request that its error names
# kinds of tool calls, by side effects; the kinds "read" and "execute" have the same names
_KINDS = {"none": "other", "write": "edit", "network": "fetch"}
_KINDS_OF_ANSWERS = {"yes": "allow_once", "edit": "allow_once", "no": "reject_once"}
# the types of arguments that a form of the editor can change
_FIELDS: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
# the records that end a tool call without a result
_STOPPED: TypeAlias = (
    logs.ToolFailed | logs.PermissionDenied | logs.ToolIntentRejected | logs.ToolIntentClosed
)


async def open_stdio() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return the streams of the protocol; what other libraries print goes to standard error."""
    own = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with contextlib.redirect_stdout(own):
        return await stdio_streams()


class EditorSession:
    """Run the prompts of a session, and send the editor what happens in it.

    The text of the model is sent from events, as it streams; tool calls are sent from records.
    """

    def __init__(self, connection: Connection, workspace: Path, *, has_forms: bool) -> None:
        self.session: Session[Any]
        self.options: SessionOptions
        # the stack holds MCP servers
        self.stack = AsyncExitStack()
        self.workspace = workspace
        self._connection = connection
        self._has_forms = has_forms
        self._run: asyncio.Task[Outcome[Any]] | None = None
        self._is_cancelled = False
        self._sending: set[asyncio.Task[None]] = set()
        self._edits: set[str] = set()  # ids of calls that the editor shows as a diff

    async def prompt(self, goal: User) -> str:
        """Pursue a goal, and return the protocol's name for the reason of its end."""
        self.refuse_running()
        self._is_cancelled = False
        self._run = run = asyncio.create_task(self.session.run(goal))
        await asyncio.wait([run])  # if the editor disconnects here, close_session stops the run
        self._run = None
        if run.cancelled():
            return "cancelled"
        outcome = run.result()
        if outcome.outcome == "failed":
            raise RequestError(_INTERNAL_ERROR, f"the session failed: {outcome.detail}")
        if outcome.outcome != "exhausted":
            return "cancelled" if outcome.outcome == "cancelled" else "end_turn"
        self._send("agent_message_chunk", content=_write(f"\n\n[Stopped: {outcome.detail}]"))
        await self.flush()
        is_cut = self.session.state.messages[-1].finish_reason == "length"
        return "max_tokens" if is_cut else "max_turn_requests"

    async def cancel(self) -> None:
        """Stop the prompt, if one runs, and wait until that is recorded."""
        if (run := self._run) is None:
            return
        if not self._is_cancelled:
            self._is_cancelled = True
            if not await self.session.cancel("cancelled in the editor"):
                run.cancel()  # the prompt has arrived, but its run has not begun
        await asyncio.wait([run])

    def refuse_running(self) -> None:
        """Raise an error if a prompt runs."""
        if self._run is not None:
            message = "the session still runs a prompt; wait for it, or cancel it"
            raise RequestError(_INVALID_REQUEST, message)

    # --- updates --------------------------------------------------------------------------------

    def show_event(self, event: Event) -> None:
        """Send a piece of text or of thinking."""
        if isinstance(event, TextDelta | ThinkingDelta) and event.text:
            kind = "message" if isinstance(event, TextDelta) else "thought"
            self._send(f"agent_{kind}_chunk", content=_write(event.text))

    def show_record(self, record: logs.LogRecord, *, replayed: bool = False) -> None:
        """Send a record of a tool call, or usage; send messages only if they are replayed."""
        it = record.payload
        if isinstance(it, ToolIntent):
            call = self._describe(it.id, it.tool_name, it.input)
            self._send("tool_call", **call, status="pending")
        elif isinstance(it, logs.ToolIntentValidated):
            self._update(it, **self._classify(it))
        elif isinstance(
            it, logs.ToolStarted | logs.ToolRestarted
        ):  # the user may have edited the input
            call = self._describe(it.intent_id, it.tool_name, it.input)
            self._update(it, **call, status="in_progress")
        elif isinstance(it, logs.ToolObserved):
            parts = [it.content] if isinstance(it.content, str) else it.content
            blocks = [_write(part, is_code=True) for part in parts]
            content = [{"type": "content", "content": block} for block in blocks]
            # the result of an edit is its diff, which the editor already shows
            is_shown = it.intent_id in self._edits and not it.is_error
            more = {} if is_shown else {"content": content}
            self._update(it, status="failed" if it.is_error else "completed", **more)
        elif isinstance(it, _STOPPED):
            reason = {"type": "content", "content": _write(str(make_headline(it)))}
            self._update(it, status="failed", content=[reason])
        elif isinstance(it, logs.CallCompleted):
            self._show_usage(it)
        elif isinstance(it, logs.MessageRecorded):
            self._show_message(it, replayed=replayed and record.actor != "system")

    def _show_message(self, it: logs.MessageRecorded, *, replayed: bool) -> None:
        is_reply = isinstance(it.message, Assistant)
        if not is_reply and not isinstance(it.message, User):
            return
        content = it.message.content
        for part in [content] if isinstance(content, str) else content:
            kind = "agent_thought" if isinstance(part, Thinking) else "agent_message"
            # no event has the data of an image that the model made
            is_news = replayed or (is_reply and isinstance(part, Image))
            if is_news and isinstance(part, str | Text | Thinking | Image):
                self._send(f"{kind if is_reply else 'user_message'}_chunk", content=_write(part))

    def _show_usage(self, call: logs.CallCompleted) -> None:
        size = self.session.provider.capabilities.known("max_context_tokens")
        if size is not None:  # the protocol requires the size of the context window
            used = (call.input_tokens or 0) + (call.output_tokens or 0)
            spent = self.session.state.spent
            cost = {"amount": float(spent.cost_usd), "currency": "USD"}
            more = {"cost": cost} if spent.cost_unknown is None else {}
            self._send("usage_update", used=used, size=size, **more)

    def _describe(self, call: str, tool: str, given: dict[str, Any]) -> dict[str, Any]:
        """Return a tool call as the editor shows it: with a diff if it replaces text."""
        facts = {"toolCallId": call, "title": describe_action(tool, given), "rawInput": given}
        path, old, new = [given.get(name) for name in ("path", "old", "new")]
        if not (isinstance(path, str) and isinstance(old, str) and isinstance(new, str)):
            return facts
        self._edits.add(call)
        diff = {"type": "diff", "path": str(self.workspace / path), "newText": new}
        # an empty old text makes a new file
        return facts | {"content": [diff | ({"oldText": old} if old else {})]}

    def _classify(self, it: logs.ToolIntentValidated | Proposal) -> dict[str, Any]:
        places = [{"path": str(self.workspace / path)} for path in it.paths]
        return {"kind": _KINDS.get(it.side_effect, it.side_effect), "locations": places}

    def _update(self, it: Any, **facts: Any) -> None:
        self._send("tool_call_update", **({"toolCallId": it.intent_id} | facts))

    def _send(self, update: str, /, **facts: Any) -> None:
        """Send an update. Tasks start in the order of their creation, so updates keep it."""
        params = {"sessionId": self.session.id, "update": {"sessionUpdate": update, **facts}}
        self._sending.add(task := asyncio.create_task(self._deliver(params)))
        task.add_done_callback(self._sending.discard)

    async def _deliver(self, params: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the editor has closed the connection
            await self._connection.send_notification("session/update", params)

    async def flush(self) -> None:
        """Wait until every update is sent, so that none arrives after the next reply."""
        await asyncio.gather(*self._sending)

    # --- questions about permission -------------------------------------------------------------

    async def approve(self, proposal: Proposal, verdict: Verdict) -> Decision:
        """Ask the editor about a tool call, with the answers that the terminal offers."""
        if self.options.mode == "allow" and "question" not in proposal.input:
            return Decision(True, "user", reason="the editor allows all calls")
        tool = proposal.tool_name
        prefix = find_prefix(proposal.input)
        answers = {
            "yes": "Allow",
            "always": f"Always allow {tool}",
            "path": f"Always allow {tool} {', '.join(proposal.paths)}" if proposal.paths else "",
            "command": f"Always allow commands with {prefix!r}" if prefix else "",
            "edit": "Edit and allow" if self._has_forms else "",
            "no": "Reject",
        }
        options = [
            {"optionId": key, "name": name, "kind": _KINDS_OF_ANSWERS.get(key, "allow_always")}
            for key, name in answers.items()
            if name
        ]
        call = self._describe(proposal.intent_id, tool, proposal.input) | self._classify(proposal)
        question = {"sessionId": proposal.session, "toolCall": call, "options": options}
        answer = await self._connection.send_request("session/request_permission", question)
        outcome = answer["outcome"]
        key = outcome.get("optionId") if outcome.get("outcome") == "selected" else None
        if key is None:
            return Decision(False, "nobody", reason="the editor cancelled the question")
        if key not in [option["optionId"] for option in options]:
            return Decision(
                False, "nobody", reason="the editor chose an answer that was not offered"
            )
        return await self._edit(proposal) if key == "edit" else read_answer(key, proposal)

    async def _edit(self, proposal: Proposal) -> Decision:
        """Ask for another input in a form; arguments that the form cannot show stay the same."""
        fields = {
            name: {"type": _FIELDS[type(value)], "default": value}
            for name, value in proposal.input.items()
            if type(value) in _FIELDS
        }
        message = f"Change the input of {proposal.tool_name}, and run it."
        form = {"message": message, "requestedSchema": {"type": "object", "properties": fields}}
        about = {"sessionId": proposal.session, "toolCallId": proposal.intent_id, "mode": "form"}
        answer = await self._connection.send_request("elicitation/create", about | form)
        if answer["action"] != "accept":
            return Decision(False, "user", reason="no edit was made")
        return Decision(True, "user", input=proposal.input | (answer.get("content") or {}))


# Opens a session in a folder with a model and MCP servers, or resumes the session that is named.
OpenSession: TypeAlias = Callable[
    [EditorSession, Provider, Any, str | None], Awaitable[Session[Any]]
]


class EditorAgent:
    """Handle the requests of one editor.

    The methods have the names and the parameters of ``acp.Agent``. ``_meta`` of a request, which
    the protocol reserves for extensions, is ignored.
    """

    def __init__(
        self,
        open_session: OpenSession,
        models: EditorModels,
        log: logs.EventLog,
        config: RuntimeConfig = NO_CONFIG,
    ) -> None:
        self._open_session = open_session
        self._models = models
        self._log = log
        self._config = config
        self._opened: dict[str, EditorSession] = {}
        self._has_forms = False
        self._connection: Connection

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle requests until the editor closes the connection; then stop every session."""
        router = build_agent_router(self, use_unstable_protocol=True)  # type: ignore[arg-type]

        async def handle(method: str, params: Any, is_notification: bool) -> Any:
            try:
                return await router(method, params, is_notification)
            except Exception as error:
                raise _explain(error) from None

        messages = asyncio.StreamReader()
        reading = asyncio.create_task(_pass_messages(reader, messages))
        self._connection = Connection(handle, writer, messages, listening=False)
        try:
            await self._connection.main_loop()
        finally:
            reading.cancel()
            with contextlib.suppress(OSError):  # the editor has closed its end of the pipe
                await self._connection.close()
            for session_id in [*self._opened]:
                await self.close_session(session_id)

    async def initialize(
        self, client_capabilities: schema.ClientCapabilities | None = None, **_: Any
    ) -> dict[str, Any]:
        has_images = True
        # A model without a key must not keep the editor from showing how to log in.
        with contextlib.suppress(ProviderError, click.ClickException):
            provider = await self._models.open()
            has_images = provider.capabilities.known("supports_images") is not False
        auth = client_capabilities.auth if client_capabilities is not None else None
        forms = client_capabilities.elicitation if client_capabilities is not None else None
        self._has_forms = forms is not None and forms.form is not None
        info = {"name": "dragoman", "title": "Dragoman", "version": version("dragoman")}
        can = {
            "loadSession": True,
            "promptCapabilities": {"image": has_images, "embeddedContext": True},
            "mcpCapabilities": {"http": True},
            "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
        }
        methods = [_STORED_KEY, _TERMINAL] if auth is not None and auth.terminal else [_STORED_KEY]
        facts = {"protocolVersion": PROTOCOL_VERSION, "agentInfo": info, "agentCapabilities": can}
        return facts | {"authMethods": methods}

    async def authenticate(self, method_id: str, **_: Any) -> dict[str, Any]:
        """Try the model: its key may have been stored since the last attempt."""
        if method_id not in (_STORED_KEY["id"], _TERMINAL["id"]):
            raise _refuse(f"methodId: no method of authentication is named {method_id!r}")
        await self._models.open()
        return {}

    async def new_session(self, cwd: str, **asked: Any) -> dict[str, Any]:
        opened = await self._open(cwd, **asked)
        return {"sessionId": opened.session.id, "configOptions": opened.options.describe()}

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: Any
    ) -> dict[str, Any]:
        return await asyncio.to_thread(list_sessions, self._log, cwd, cursor)

    async def set_config_option(
        self, session_id: str, config_id: str, value: Any, **_: Any
    ) -> dict[str, Any]:
        opened = self._find(session_id)
        opened.refuse_running()
        await opened.options.choose(config_id, value)
        return {"configOptions": opened.options.describe()}

    async def load_session(self, cwd: str, session_id: str, **asked: Any) -> dict[str, Any]:
        opened = await self._open(cwd, session_id, **asked)
        for record in await asyncio.to_thread(lambda: list(self._log.read(session_id))):
            opened.show_record(record, replayed=True)
        await opened.flush()
        return {"configOptions": opened.options.describe()}

    async def resume_session(self, cwd: str, session_id: str, **asked: Any) -> dict[str, Any]:
        opened = await self._open(cwd, session_id, **asked)
        return {"configOptions": opened.options.describe()}

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> dict[str, Any]:
        opened = self._find(session_id)
        goal = User([_read_block(block, opened.workspace) for block in prompt])
        return {"stopReason": await opened.prompt(goal)}

    async def cancel(self, session_id: str, **_: Any) -> None:
        if session_id in self._opened:
            await self._opened[session_id].cancel()

    async def close_session(self, session_id: str, **_: Any) -> None:
        await (opened := self._find(session_id)).cancel()
        await opened.stack.aclose()
        self._opened.pop(session_id, None)

    async def _open(self, cwd: str, resume: str | None = None, **asked: Any) -> EditorSession:
        workspace = Path(cwd)
        if not workspace.is_absolute() or not await asyncio.to_thread(workspace.is_dir):
            raise _refuse(f"cwd: is not the path of a folder: {cwd!r}")
        if asked["additional_directories"]:
            raise _refuse("additionalDirectories: an agent works in one folder, which is cwd")
        servers = [_read_server(server) for server in asked["mcp_servers"] or ()]
        if resume in self._opened:
            self._opened[resume].refuse_running()
            await self.close_session(resume)
        opened = EditorSession(self._connection, workspace, has_forms=self._has_forms)
        try:
            provider = await self._models.open()
            opened.session = await self._open_session(opened, provider, servers, resume)
            opened.options = SessionOptions(self._models, opened.session, self._config)
        except BaseException:
            await opened.stack.aclose()
            raise
        self._opened[opened.session.id] = opened
        return opened

    def _find(self, session_id: str) -> EditorSession:
        if session_id not in self._opened:
            message = f"sessionId: no session {session_id!r} is open; load it first"
            raise RequestError(_NOT_FOUND, message)
        return self._opened[session_id]


class _Message(Struct):
    """What every message of JSON-RPC has; the library ends at one with other types."""

    id: str | int | float | None = None
    method: str | None = None


async def _pass_messages(source: asyncio.StreamReader, target: asyncio.StreamReader) -> None:
    """Pass on the lines that are messages of JSON-RPC, and report the others.

    The ``acp`` library would end the connection, and with it every session, at a line such as
    ``[]`` or ``null``.
    """
    line: list[bytes] = []
    try:
        while data := await source.read(2**16):
            *ends, rest = data.split(b"\n")
            for end in ends:
                _pass_line(b"".join([*line, end]), target)
                line.clear()
            line.append(rest)
        _pass_line(b"".join(line), target)
    finally:
        target.feed_eof()


def _pass_line(line: bytes, target: asyncio.StreamReader) -> None:
    if not line.strip():
        return
    try:
        msgspec.json.decode(line, type=_Message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        log.warning("a line of the editor is not a message of JSON-RPC and is skipped: %s", error)
        return
    target.feed_data(line + b"\n")


# --- the content of messages -------------------------------------------------------------------


def _write(block: Any, *, is_code: bool = False) -> dict[str, Any]:
    """Return a block of the protocol. Code is fenced, because editors render Markdown."""
    if isinstance(block, Image) and isinstance(block.source, Inline):
        kind = block.media_type or "image/png"
        return {"type": "image", "data": block.source.base64_data, "mimeType": kind}
    named = f"[{type(block).__name__.lower()}]"
    text = block if isinstance(block, str) else getattr(block, "text", named)
    if is_code:
        fence = "`" * max([2, *map(len, re.findall("`+", text))]) + "`"
        text = f"{fence}\n{text.rstrip()}\n{fence}"
    return {"type": "text", "text": text}


def _read_block(block: Any, workspace: Path) -> UserBlock:
    if isinstance(block, schema.TextContentBlock):
        return Text(block.text)
    if isinstance(block, schema.ImageContentBlock):
        return Image(Inline(block.data), block.mime_type)
    if isinstance(block, schema.ResourceContentBlock):
        return Text(f"[{block.name}]({_name_resource(block.uri, workspace)})")
    found = block.resource if isinstance(block, schema.EmbeddedResourceContentBlock) else None
    if isinstance(found, schema.TextResourceContents):
        return Text(f"{_name_resource(found.uri, workspace)}:\n\n{found.text}")
    raise _refuse(f"prompt: this kind of {block.type!r} cannot be sent; use text and images")


def _name_resource(uri: str, workspace: Path) -> str:
    """Return a file of the workspace by the path that the tools accept, or the URI unchanged."""
    parts = urlsplit(uri)
    path = Path(unquote(parts.path))
    is_inside = parts.scheme == "file" and path.is_relative_to(workspace)
    return path.relative_to(workspace).as_posix() if is_inside else uri


def _read_server(server: Any) -> dict[str, Any]:
    # The name of the server begins the names of its tools: two servers may have a tool "search".
    prefix = re.sub(r"[^A-Za-z0-9_-]", "_", server.name)[:63] + "_"
    if isinstance(server, schema.McpServerStdio):
        env = {variable.name: variable.value for variable in server.env}
        return {"target": [server.command, *server.args], "prefix": prefix, "env": env}
    if isinstance(server, schema.HttpMcpServer):
        headers = {header.name: header.value for header in server.headers}
        return {"target": server.url, "prefix": prefix, "headers": headers}
    raise _refuse(f"the MCP server {server.name!r} uses {server.type!r}, not stdio or http")


# --- errors ------------------------------------------------------------------------------------


def _refuse(message: str) -> RequestError:
    return RequestError(_INVALID_PARAMS, message)


def _explain(error: Exception) -> RequestError:
    """Return the JSON-RPC error for an exception, without secrets."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ValidationError):
        # the values themselves may be secrets, such as the headers of an MCP server
        places = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        return _refuse("; ".join(places[:_SHOWN]))
    if isinstance(error, AuthenticationError):
        record = to_record(error)
        return RequestError(_AUTH_REQUIRED, record["message"], record)
    if isinstance(error, ProviderError):
        record = to_record(error)
        return RequestError(_INTERNAL_ERROR, record["message"], record)
    if isinstance(error, click.ClickException | SessionError | ValueError):
        return _refuse(redact(str(error)))
    if isinstance(error, logs.LogError | ToolFailure):
        return RequestError(_INTERNAL_ERROR, redact(str(error)))
    log.error("a request of the editor failed", exc_info=error)
    return RequestError(_INTERNAL_ERROR, f"internal error: {type(error).__name__}")

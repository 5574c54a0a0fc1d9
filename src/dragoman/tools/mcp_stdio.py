"""The connection to an MCP server that is a program, with bounds on what the server may send.

The MCP library's own connection keeps a line of any length, and starts a task for each message.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Self, TypeAlias

from .mcp_http import MAX_REPLY
from .process import check_platform, clean_environment, end_process, signal_group, supervise

log = logging.getLogger("dragoman")

Elicit: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]
_GRACE = 2.0  # seconds that a program has to end after its standard input was closed
_METHOD_NOT_FOUND = -32601  # a code of JSON-RPC
_INTERNAL_ERROR = -32603  # the same


class _Stream:
    """Define the methods that the MCP library calls on both streams of a connection."""

    async def __aenter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Do nothing: the context manager of the connection closes it."""


class ProgramStream(_Stream):
    """The messages to and from a program, one in each line."""

    def __init__(self, output: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._output = output
        self._writer = writer
        self.excess: str | None = None

    async def __anext__(self) -> Any:
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        # The library starts a task for each message. Let the tasks of earlier messages end.
        await asyncio.sleep(0)
        try:
            line = await self._output.readline()
        except ValueError:
            self.excess = f"it sent a line of more than {MAX_REPLY:,} bytes, and was closed"
            raise StopAsyncIteration from None
        if not line:
            raise StopAsyncIteration
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError as error:
            return error

    async def send(self, item: Any) -> None:
        import anyio  # anyio is a dependency of the MCP library

        line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        self._writer.write(f"{line}\n".encode())
        try:
            await self._writer.drain()
        except OSError:
            raise anyio.BrokenResourceError from None


class AnsweringStream(_Stream):
    """Answer the requests of a server one after the other, and yield its other messages.

    The library would start a task for each request: a server that sends many and does not read
    the answers would fill the memory. ``elicit`` answers the questions of the server: a task
    waits for the answer to one, and others are refused until then.
    """

    def __init__(self, read: Any, write: Any, elicit: Elicit) -> None:
        self._read = read
        self._write = write
        self._elicit = elicit
        self._asking: asyncio.Task[None] | None = None

    async def __anext__(self) -> Any:
        from mcp.shared.message import SessionMessage
        from mcp_types import ErrorData, JSONRPCError, JSONRPCRequest, JSONRPCResponse

        while True:
            item = await anext(self._read)
            message = getattr(item, "message", None)
            if not isinstance(message, JSONRPCRequest):
                return item
            is_idle = self._asking is None or self._asking.done()
            if message.method == "elicitation/create" and is_idle:
                self._asking = asyncio.create_task(self._ask(message))
                continue
            answer: Any = JSONRPCResponse(jsonrpc="2.0", id=message.id, result={})
            if message.method != "ping":
                error = ErrorData(code=_METHOD_NOT_FOUND, message="the client does not offer it")
                answer = JSONRPCError(jsonrpc="2.0", id=message.id, error=error)
            await self._write.send(SessionMessage(answer))

    async def _ask(self, message: Any) -> None:
        from mcp.shared.message import SessionMessage
        from mcp_types import ErrorData, JSONRPCError, JSONRPCResponse

        answer: Any
        try:
            result = await self._elicit(message.params or {})
            answer = JSONRPCResponse(jsonrpc="2.0", id=message.id, result=result)
        except Exception:
            # otherwise the server, and the call, would wait for an answer that never comes
            log.exception("a question of an MCP server could not be answered")
            error = ErrorData(code=_INTERNAL_ERROR, message="the client could not answer")
            answer = JSONRPCError(jsonrpc="2.0", id=message.id, error=error)
        await self._write.send(SessionMessage(answer))

    async def aclose(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await self._read.aclose()


@contextlib.asynccontextmanager
async def answer_requests(transport: Any, elicit: Elicit) -> AsyncIterator[tuple[Any, Any]]:
    """Open a connection of the MCP library whose requests from the server are answered here."""
    async with transport as (read, write):
        yield AnsweringStream(read, write, elicit), write


@contextlib.asynccontextmanager
async def open_program(
    argv: Sequence[str], env: Mapping[str, str], cwd: str | None, errors_to: int
) -> AsyncIterator[ProgramStream]:
    """Start a program; yield the stream of its messages. The program ends with the context."""
    check_platform()
    output = asyncio.StreamReader(limit=MAX_REPLY)
    read_end, write_end = os.pipe()
    # The pipe is our own: with one of asyncio, a program that has ended counts as running until
    # all of its output was read.
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(output), os.fdopen(read_end, "rb", 0)
    )
    with contextlib.closing(transport):
        try:
            process = await asyncio.create_subprocess_exec(
                *supervise(argv), cwd=cwd, env=clean_environment(env), start_new_session=True,
                stdin=asyncio.subprocess.PIPE, stdout=write_end, stderr=errors_to,
            )  # fmt: skip
        finally:
            os.close(write_end)
        assert process.stdin is not None
        try:
            yield ProgramStream(output, process.stdin)
        finally:
            process.stdin.close()
            await asyncio.shield(_stop(process))


async def _stop(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(_GRACE):
            await process.wait()
    except TimeoutError:
        signal_group(process.pid, signal.SIGTERM)
    await end_process(process)

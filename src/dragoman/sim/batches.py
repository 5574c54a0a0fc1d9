"""Simulate the batch APIs of three wires: files, states, partial failures and expiry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from email import message_from_bytes
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from ..errors import InvalidRequestError
from ..validate import check_request
from ..wire import SERVER_CODECS, HttpReply, ServerCodec
from .provider import ScriptedProvider, explain, read_batches

if TYPE_CHECKING:
    from starlette.requests import Request

_Handler = Callable[["Request"], Awaitable[HttpReply]]


class BatchScript(Struct, frozen=True):
    """How simulated batches behave: how many polls a batch takes, and how it ends.

    After ``polls`` status requests the batch is complete. With ``expire_after`` only that many
    rows are answered and the batch expires; ``refuse`` is the reason why the server rejects every
    batch, on wires that can report a rejected batch.
    """

    polls: int = 1
    expire_after: int | None = None
    refuse: str | None = None


class _Batch(Struct):
    id: str
    wire: str
    rows: Sequence[tuple[str, Any]]  # the key and the request body of each row
    path: str
    asked: int = 0
    is_cancelled: bool = False
    # The answer to each row, None for a row without one.
    answers: list[tuple[str, HttpReply | None]] | None = None

    @property
    def lost(self) -> str:
        return "cancelled" if self.is_cancelled else "expired"


class SimBatches:
    """The batches of a simulated server. The script answers the rows when the batch completes."""

    def __init__(self, provider: ScriptedProvider, script: BatchScript) -> None:
        self._provider = provider
        self.script = script
        self.batches: dict[str, _Batch] = {}
        self._files: dict[str, bytes] = {}

    def list_routes(self) -> list[tuple[str, str, _Handler]]:
        """Return the method, the path and the handler of each route of the three batch APIs."""
        return [
            ("POST", "/v1/files", self._upload),
            ("GET", "/v1/files/{id}/content", self._content),
            ("POST", "/v1/batches", self._create_openai),
            ("GET", "/v1/batches/{id}", partial(self._show, "openai", self._openai)),
            ("POST", "/v1/batches/{id}/cancel", self._cancel),
            ("POST", "/v1/messages/batches", self._create_anthropic),
            (
                "GET",
                "/v1/messages/batches/{id}",
                partial(self._show, "anthropic", self._anthropic),
            ),
            ("POST", "/v1/messages/batches/{id}/cancel", self._cancel),
            ("GET", "/v1/messages/batches/{id}/results", self._results),
            ("POST", "/v1beta/models/{model:path}:batchGenerateContent", self._create_gemini),
            ("POST", "/v1beta/batches/{id}:cancel", self._cancel),
            ("GET", "/v1beta/batches/{id}", partial(self._show, "gemini", self._gemini)),
        ]

    # --- the batch APIs of three wires

    async def _upload(self, request: Request) -> HttpReply:
        form = _read_form(request.headers.get("content-type", ""), await request.body())
        content = form.get("file")
        if form.get("purpose") != b"batch" or content is None:
            return _refuse("openai", "purpose must be batch, and file must be a file")
        name = f"file-{len(self._files) + 1}"
        self._files[name] = content
        return show({"id": name, "object": "file", "bytes": len(content), "purpose": "batch"})

    async def _content(self, request: Request) -> HttpReply:
        content = self._files.get(request.path_params["id"])
        if content is None:
            return _refuse("openai", "no such file", 404)
        return HttpReply(200, {"content-type": "application/octet-stream"}, content)

    async def _create_openai(self, request: Request) -> HttpReply:
        body = msgspec.json.decode(await request.body())
        content = self._files.get(body.get("input_file_id"))
        if content is None or body.get("completion_window") != "24h":
            return _refuse("openai", "input_file_id or completion_window is invalid")
        rows = [msgspec.json.decode(line) for line in content.splitlines()]
        if any(row["url"] != body.get("endpoint") or row["method"] != "POST" for row in rows):
            return _refuse("openai", "a row has another url or method than the batch")
        wire = "responses" if str(body["endpoint"]).endswith("/responses") else "openai"
        batch = self._add(wire, [(row["custom_id"], row["body"]) for row in rows])
        return show(self._openai(batch))

    async def _create_anthropic(self, request: Request) -> HttpReply:
        rows = msgspec.json.decode(await request.body())["requests"]
        batch = self._add("anthropic", [(row["custom_id"], row["params"]) for row in rows])
        return show(self._anthropic(batch))

    async def _create_gemini(self, request: Request) -> HttpReply:
        given = msgspec.json.decode(await request.body())["batch"]["input_config"]["requests"]
        rows = [(row["metadata"]["key"], row["request"]) for row in given["requests"]]
        path = f"/v1beta/models/{request.path_params['model']}:generateContent"
        return show(self._gemini(self._add("gemini", rows, path)))

    async def _show(
        self, wire: str, write: Callable[[_Batch], dict[str, Any]], request: Request
    ) -> HttpReply:
        """Answer a poll; the batch ends after the scripted number of polls."""
        batch = self.batches.get(request.path_params["id"])
        if batch is None:
            return _refuse(wire, "no such batch", 404)
        batch.asked += 1
        if batch.answers is None and batch.asked > self.script.polls:
            await self._end(batch)
        return show(write(batch))

    async def _cancel(self, request: Request) -> HttpReply:
        batch = self.batches.get(request.path_params["id"])
        if batch is None:
            return _refuse("openai", "no such batch", 404)
        if batch.answers is None:
            batch.is_cancelled = True
            await self._end(batch)
        return show({"id": batch.id})

    async def _results(self, request: Request) -> HttpReply:
        batch = self.batches.get(request.path_params["id"])
        if batch is None or batch.answers is None:
            return _refuse("anthropic", "there are no results yet", 404)
        lines: list[bytes] = []
        # results are returned in reverse, because the API documents that their order is undefined
        for key, reply in reversed(batch.answers):
            result: dict[str, Any] = {"type": "canceled" if batch.is_cancelled else "expired"}
            if reply is not None:
                body = msgspec.Raw(reply.body)
                result = {"type": "errored", "error": body}
                if reply.status == 200:
                    result = {"type": "succeeded", "message": body}
            lines.append(msgspec.json.encode({"custom_id": key, "result": result}))
        return HttpReply(200, {"content-type": "application/x-jsonl"}, b"\n".join(lines))

    # --- the JSON of a batch on each wire

    def _openai(self, batch: _Batch) -> dict[str, Any]:
        record: dict[str, Any] = {"id": batch.id, "object": "batch", "status": "in_progress"}
        if batch.answers is None:
            return record
        if self.script.refuse is not None:
            errors = {"data": [{"message": self.script.refuse}]}
            return {**record, "status": "failed", "errors": errors}
        sound: list[bytes] = []
        failed: list[bytes] = []
        for key, reply in batch.answers:
            lines = sound if reply is not None and reply.status == 200 else failed
            lines.append(_openai_line(key, reply, batch))
        over = batch.lost if any(reply is None for _, reply in batch.answers) else "completed"
        files = {"output_file_id": self._keep(sound), "error_file_id": self._keep(failed)}
        return {**record, "status": over, **files}

    def _anthropic(self, batch: _Batch) -> dict[str, Any]:
        state = "in_progress" if batch.answers is None else "ended"
        return {"id": batch.id, "type": "message_batch", "processing_status": state}

    def _gemini(self, batch: _Batch) -> dict[str, Any]:
        record: dict[str, Any] = {
            "name": f"batches/{batch.id}",
            "metadata": {"state": "BATCH_STATE_RUNNING"},
        }
        if batch.answers is None:
            return record
        lost = any(reply is None for _, reply in batch.answers)
        state = batch.lost.upper() if lost else "SUCCEEDED"
        if self.script.refuse is not None:
            result: dict[str, Any] = {"error": {"message": self.script.refuse}}
            state = "FAILED"
        else:
            answers = [_gemini_answer(key, reply, batch) for key, reply in batch.answers]
            result = {"response": {"inlinedResponses": {"inlinedResponses": answers}}}
        ended = {"metadata": {"state": f"BATCH_STATE_{state}"}, "done": True}
        return {**record, **ended, **result}

    # --- methods that all batch APIs share

    def _add(self, wire: str, rows: Sequence[tuple[str, Any]], path: str = "") -> _Batch:
        batch = _Batch(f"batch_{len(self.batches) + 1}", wire, rows, path)
        self.batches[batch.id] = batch
        return batch

    async def _end(self, batch: _Batch) -> None:
        limit = self.script.expire_after
        if batch.is_cancelled:
            limit = len(batch.rows) // 2
        codec = SERVER_CODECS[batch.wire]
        answers: list[tuple[str, HttpReply | None]] = []
        for at, (key, body) in enumerate(batch.rows if self.script.refuse is None else ()):
            is_lost = limit is not None and at >= limit
            answers.append((key, None if is_lost else await self._answer(codec, body, batch.path)))
        batch.answers = answers

    async def _answer(self, codec: ServerCodec, body: Any, path: str) -> HttpReply:
        try:
            asked = codec.decode(msgspec.json.encode(body), path)
            check_request(asked.request)
            encoder = codec.encoder(asked)
            async for event in read_batches(self._provider.begin(asked.request).batches):
                encoder.feed(event)
            return HttpReply(200, {}, encoder.end())
        except Exception as error:
            return codec.error(explain(error))

    def _keep(self, lines: list[bytes]) -> str | None:
        if not lines:
            return None
        name = f"file-{len(self._files) + 1}"
        self._files[name] = b"\n".join(lines) + b"\n"
        return name


def _openai_line(key: str, reply: HttpReply | None, batch: _Batch) -> bytes:
    response = error = None
    if reply is None:
        error = {"code": f"batch_{batch.lost}", "message": f"the batch was {batch.lost}"}
    else:
        body = msgspec.Raw(reply.body)
        response = {"status_code": reply.status, "request_id": key, "body": body}
    line = {"id": f"batch_req_{key}", "custom_id": key, "response": response, "error": error}
    return msgspec.json.encode(line)


def _gemini_answer(key: str, reply: HttpReply | None, batch: _Batch) -> dict[str, Any]:
    metadata = {"metadata": {"key": key}}
    if reply is None:
        error = {"code": 1 if batch.is_cancelled else 4, "message": batch.lost}
        return {"error": error, **metadata}
    if reply.status == 200:
        return {"response": msgspec.Raw(reply.body), **metadata}
    return {"error": msgspec.json.decode(reply.body)["error"], **metadata}


def _refuse(wire: str, message: str, status: int = 400) -> HttpReply:
    return SERVER_CODECS[wire].error(InvalidRequestError(message, status=status))


def show(record: Any) -> HttpReply:
    """Return a response with a record as JSON."""
    return HttpReply(200, {"content-type": "application/json"}, msgspec.json.encode(record))


def _read_form(kind: str, body: bytes) -> dict[str, bytes]:
    """Return the fields of a form (``multipart/form-data``) by their names."""
    head = f"content-type: {kind}\r\n\r\n".encode()
    form: Any = message_from_bytes(head + body)
    parts: list[Any] = form.get_payload() if form.is_multipart() else []
    return {
        part.get_param("name", header="content-disposition"): part.get_payload(decode=True)
        for part in parts
    }

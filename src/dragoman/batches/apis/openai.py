"""OpenAI's batch API: upload a file of requests, create a batch, and download files of answers.

https://platform.openai.com/docs/guides/batch
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from .contract import BatchApi, KeyedAnswer, KeyedRequest, Progress, read_text

_BOUNDARY = "dragoman-batch-3b1f7c90"
_OVER = ("completed", "failed", "expired", "cancelled")
_LOST = {"batch_expired": "expired", "batch_cancelled": "cancelled"}


class OpenAIBatches(BatchApi):
    """Submit, poll and download batches of Chat Completions and Responses requests."""

    def __init__(self, provider: Any) -> None:
        super().__init__(provider)
        suffix = "/responses" if self.url.endswith("/responses") else "/chat/completions"
        self._root = self.url.removesuffix(suffix)
        self._endpoint = f"/v1{suffix}"

    async def submit(self, tag: str, requests: Sequence[KeyedRequest]) -> str:
        head = {"method": "POST", "url": self._endpoint}
        lines = [
            msgspec.json.encode({"custom_id": each.key, **head, "body": each.body})
            for each in requests
        ]
        form = _write_form(f"{tag}.jsonl", b"\n".join(lines) + b"\n")
        uploaded = await self.post(
            f"{self._root}/files", form, f"multipart/form-data; boundary={_BOUNDARY}"
        )
        batch = {
            "input_file_id": read_text(uploaded, "id"),
            "endpoint": self._endpoint,
            "completion_window": "24h",
            "metadata": {"dragoman": tag},
        }
        return read_text(await self.post(f"{self._root}/batches", batch), "id")

    async def poll(self, batch_id: str) -> Progress:
        record = await self.get(f"{self._root}/batches/{batch_id}")
        state = read_text(record, "status")
        refusal = None
        if state == "failed":  # the provider rejected the input file, so no row has an answer
            errors = (record.get("errors") or {}).get("data") or []
            refusal = (
                "; ".join([str(each.get("message")) for each in errors if isinstance(each, dict)])
                or "no reason"
            )
        return Progress(state in _OVER, state, refusal, record)

    async def cancel(self, batch_id: str) -> None:
        await self.post(f"{self._root}/batches/{batch_id}/cancel", {})

    async def download(self, batch_id: str, progress: Progress) -> AsyncIterator[KeyedAnswer]:
        for name in ("output_file_id", "error_file_id"):
            file = progress.record.get(name)
            if file:
                async for line in self.lines(f"{self._root}/files/{file}/content"):
                    yield _read(line)


def _read(line: dict[str, Any]) -> KeyedAnswer:
    key = read_text(line, "custom_id")
    reply = line.get("response")
    error = line.get("error")
    if isinstance(reply, dict) and reply.get("status_code"):
        return KeyedAnswer(
            key, 0, int(reply["status_code"]), msgspec.json.encode(reply.get("body"))
        )
    lost: Any = _LOST.get(str(error.get("code"))) if isinstance(error, dict) else None
    return KeyedAnswer(key, 0, 500, msgspec.json.encode({"error": error}), lost)


def _write_form(file: str, content: bytes) -> bytes:
    part = f"--{_BOUNDARY}\r\nContent-Disposition: form-data; name="
    head = f'{part}"purpose"\r\n\r\nbatch\r\n{part}"file"; filename="{file}"\r\n'
    kind = "Content-Type: application/jsonl\r\n\r\n"
    return f"{head}{kind}".encode() + content + f"\r\n--{_BOUNDARY}--\r\n".encode()

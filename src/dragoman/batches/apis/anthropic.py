"""Anthropic's batch API: requests go in one body, answers are downloaded as JSON lines.

https://docs.anthropic.com/en/api/creating-message-batches
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from ...wire.anthropic.errors import STATUSES
from .contract import BatchApi, KeyedAnswer, KeyedRequest, Progress, read_text


class AnthropicBatches(BatchApi):
    """Submit, poll and download Anthropic's message batches."""

    async def submit(self, tag: str, requests: Sequence[KeyedRequest]) -> str:
        body = {"requests": [{"custom_id": each.key, "params": each.body} for each in requests]}
        return read_text(await self.post(f"{self.url}/batches", body), "id")

    async def poll(self, batch_id: str) -> Progress:
        record = await self.get(f"{self.url}/batches/{batch_id}")
        state = read_text(record, "processing_status")
        return Progress(state == "ended", state, None, record)

    async def cancel(self, batch_id: str) -> None:
        await self.post(f"{self.url}/batches/{batch_id}/cancel", {})

    async def download(self, batch_id: str, progress: Progress) -> AsyncIterator[KeyedAnswer]:
        async for line in self.lines(f"{self.url}/batches/{batch_id}/results"):
            yield _read(line)


def _read(line: dict[str, Any]) -> KeyedAnswer:
    key = read_text(line, "custom_id")
    kind = read_text(line, "result", "type")
    result = line["result"]
    if kind == "succeeded":
        return KeyedAnswer(key, 0, 200, msgspec.json.encode(result.get("message")))
    if kind in ("expired", "canceled"):
        return KeyedAnswer(key, lost="expired" if kind == "expired" else "cancelled")
    error = result.get("error")
    inner = error.get("error") if isinstance(error, dict) and "error" in error else error
    name = inner.get("type") if isinstance(inner, dict) else None
    body = msgspec.json.encode({"type": "error", "error": inner})
    return KeyedAnswer(key, 0, STATUSES.get(str(name), 500), body)

"""Gemini's batch API: requests go in one body; the state of a finished batch contains the answers.

https://ai.google.dev/api/batch-api
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from .contract import BatchApi, KeyedAnswer, KeyedRequest, Progress, read_text

_OVER = ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED")
# An answer in a batch has a code of google.rpc.Status. These are the equivalent HTTP statuses.
_STATUS = {3: 400, 5: 404, 7: 403, 8: 429, 9: 400, 13: 500, 14: 503, 16: 401}


class GeminiBatches(BatchApi):
    """Submit, poll and download batches of ``generateContent`` requests."""

    max_bytes = 15_000_000  # Gemini allows 20 MB for a batch whose requests are inline

    def __init__(self, provider: Any) -> None:
        super().__init__(provider)
        self._root = self.url.partition("/models/")[0]

    async def submit(self, tag: str, requests: Sequence[KeyedRequest]) -> str:
        listed = [{"request": each.body, "metadata": {"key": each.key}} for each in requests]
        batch = {"display_name": tag, "input_config": {"requests": {"requests": listed}}}
        url = self.url.partition("?")[0].replace(":generateContent", ":batchGenerateContent")
        return read_text(await self.post(url, {"batch": batch}), "name")

    async def poll(self, batch_id: str) -> Progress:
        record = await self.get(f"{self._root}/{batch_id}")
        # The name of the state begins with JOB_STATE_ or BATCH_STATE_, depending on the API
        # version.
        state = read_text(record, "metadata", "state").rpartition("STATE_")[2]
        error = record.get("error")
        refusal = (
            str(error.get("message")) if isinstance(error, dict) and state == "FAILED" else None
        )
        return Progress(state in _OVER or record.get("done") is True, state, refusal, record)

    async def cancel(self, batch_id: str) -> None:
        await self.post(f"{self._root}/{batch_id}:cancel", {})

    async def download(self, batch_id: str, progress: Progress) -> AsyncIterator[KeyedAnswer]:
        listed = (progress.record.get("response") or {}).get("inlinedResponses") or []
        # the API nests the list of answers in an object of the same name
        if isinstance(listed, dict):
            listed = listed.get("inlinedResponses") or []
        for place, each in enumerate(listed):
            yield _read(each if isinstance(each, dict) else {}, place, progress.state)


def _read(each: dict[str, Any], place: int, state: str) -> KeyedAnswer:
    # some API versions omit the key; answers are in the order of the requests
    metadata = each.get("metadata")
    key = metadata.get("key") if isinstance(metadata, dict) else None
    if "response" in each:
        return KeyedAnswer(key, place, 200, msgspec.json.encode(each["response"]))
    error = each.get("error") if isinstance(each.get("error"), dict) else {}
    assert isinstance(error, dict)
    code = error.get("code")
    if code == 1 or (not error and state == "CANCELLED"):
        return KeyedAnswer(key, place, lost="cancelled")
    if code == 4 or (not error and state == "EXPIRED"):
        return KeyedAnswer(key, place, lost="expired")
    code = code if isinstance(code, int) else 13
    status = code if code >= 400 else _STATUS.get(code, 500)
    return KeyedAnswer(
        key, place, status, msgspec.json.encode({"error": {**error, "code": status}})
    )

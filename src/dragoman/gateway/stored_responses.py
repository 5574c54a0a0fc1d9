"""Stored responses: insert the items that a request refers to, and store the reply.

If the request has ``previous_response_id`` or ``conversation``, the earlier items are inserted
before the input. An ``item_reference`` is replaced by the item. A response is stored unless the
client sets ``store: false``, whichever wire the model uses.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import InvalidRequestError, ProviderError, cut
from ..messages import LossWarning, new_ulid
from ..wire.responses.echo import DEFAULTS, write_echo
from ..wire.responses.server_request import as_items
from ..wire.seal import holds_sealed
from .recent_responses import RecentOfLane
from .store import ResponseStore

log = logging.getLogger("dragoman")

RESPONSE = "response"
ITEM = "item"
CONVERSATION = "conversation"
MAX_REFERENCES = 1000


def refuse_unknown(message: str, *, is_response: bool = False) -> InvalidRequestError:
    """Return the error for an id that is not stored for the key of the client.

    ``is_response`` is whether the request continues from a response that is not stored.
    """
    if is_response:
        # Clients send the complete conversation again if they read this code with status 400, as
        # OpenAI sends both (2026-11: Codex, and gateways in front of it).
        return InvalidRequestError(
            message, status=400, provider_code="previous_response_not_found"
        )
    return InvalidRequestError(message, status=404)


class Memory:
    """The stored items that a request refers to, and the new items in its input."""

    def __init__(
        self,
        store: ResponseStore | None,
        owner: str,
        response_id: str | None = None,
        recent: RecentOfLane | None = None,
    ) -> None:
        self._store = store
        self._owner = owner
        self._recent = recent
        self._input: list[Any] = []  # all input items of the request, including earlier ones
        self._new: list[Any] = []  # the input items that the client sent, without earlier ones
        self._conversation: str | None = None
        self._fields: dict[str, Any] = {}
        self._is_stored = store is not None
        # whether the earlier items may contain sealed state
        self.holds_sealed = False
        # the id of the background response that this request generates
        self._response_id = response_id

    async def recall(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Extend a request's input with the stored items that it refers to; return its fields."""
        self._fields = dict(fields)
        taken = _STATE if self._store is not None else _STATE[:1]
        made = {name: value for name, value in fields.items() if name not in taken}
        self._is_stored = self._store is not None and fields.get("store") is not False
        earlier = await self._find_earlier(fields)
        self._new = await self._resolve(as_items(fields.get("input")))
        self._input = [*earlier, *self._new]
        if earlier or isinstance(fields.get("input"), list):
            made["input"] = self._input
        return made

    async def _find_earlier(self, fields: Mapping[str, Any]) -> list[Any]:
        previous = fields.get("previous_response_id")
        conversation = fields.get("conversation")
        if previous is not None and conversation is not None:
            raise InvalidRequestError(
                "previous_response_id and conversation cannot be used together"
            )
        if previous is not None:
            record = None if self._recent is None else self._recent.find(previous)
            if record is None:
                record = await self._need(RESPONSE, previous, "previous_response_id")
            self.holds_sealed = holds_sealed(msgspec.json.encode(record))
            return [*record["input"], *record["response"].get("output", [])]
        if conversation is None or self._store is None:
            return []
        name = conversation.get("id") if isinstance(conversation, dict) else conversation
        record = await self._need(CONVERSATION, name, "conversation")
        self._conversation = str(name)
        return list(record["items"])

    async def _resolve(self, items: list[Any]) -> list[Any]:
        wanted = [item.get("id") for item in items if _is_reference(item)]
        if not wanted or self._store is None:
            return items
        if len(wanted) > MAX_REFERENCES:
            raise InvalidRequestError(
                f"input refers to more than {MAX_REFERENCES} items", status=413
            )
        found = await self._store.get(self._owner, ITEM, [str(name) for name in wanted])
        made = []
        for at, item in enumerate(items):
            if not _is_reference(item):
                made.append(item)
            elif (kept := found.get(str(item.get("id")))) is not None:
                made.append(kept)
            else:
                raise refuse_unknown(
                    f"input[{at}]: no item {cut(str(item.get('id')), 80)!r} is kept for this key"
                )
        return made

    async def _need(self, kind: str, name: Any, field: str) -> Any:
        if not isinstance(name, str):
            raise InvalidRequestError(f"{field} must be a string")
        found = {} if self._store is None else await self._store.get(self._owner, kind, [name])
        if name not in found:
            raise refuse_unknown(
                f"{field}: nothing is kept for this key under {cut(name, 80)!r}",
                is_response=kind == RESPONSE,
            )
        return found[name]

    def echo(self) -> dict[str, Any]:
        """Return the request fields that the response repeats, such as ``store``."""
        shown: dict[str, Any] = {**write_echo(self._fields), "store": self._is_stored}
        if self._response_id is not None:
            shown |= {"id": self._response_id, "background": True}
        if self._conversation is not None:
            shown["conversation"] = {"id": self._conversation}
        return shown

    async def keep(self, last: bytes) -> tuple[bytes, tuple[LossWarning, ...]]:
        """Store the response in the end of a reply, and its items; add these to the conversation.

        Return the end of the reply. If storing fails, the client still gets its reply, but the
        response in it has ``store: false``, and a warning is returned. A background response
        fails instead, since its client reads only what is stored.
        """
        try:
            await self._keep(_find_response(last)[2])
        except ProviderError as error:
            log.warning("a response was not kept: %s", error)
            if self._response_id is not None:
                raise
            text, value, response = _find_response(last)
            response["store"] = False
            return last.replace(text, msgspec.json.encode(value)), (_NOT_STORED,)
        return last, ()

    async def _keep(self, response: Any) -> None:
        if not isinstance(response, dict) or not isinstance(response.get("id"), str):
            return
        output = [item for item in response.get("output") or () if isinstance(item, dict)]
        record = {"response": response, "input": self._input}
        if self._recent is not None and response.get("status") in _CONTINUED:
            self._recent.keep(response["id"], record)
        if self._store is None:
            return
        rows: list[tuple[str, str, Any]] = []
        if self._conversation is not None:
            kept = await self._store.get(self._owner, CONVERSATION, [self._conversation])
            items = kept.get(self._conversation, {"items": []})
            items["items"] = [*items["items"], *self._new, *output]
            rows.append((CONVERSATION, self._conversation, items))
        if self._is_stored or self._response_id is not None:
            rows.append((RESPONSE, response["id"], record))
            rows += [
                (ITEM, item["id"], item) for item in output if isinstance(item.get("id"), str)
            ]
        if rows:
            await self._store.put(self._owner, rows)


def _is_reference(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "item_reference"


_NOT_STORED = LossWarning("response_not_stored", "store", "the store cannot be used at the moment")
# The states of a response from which a client can continue.
_CONTINUED = ("completed", "incomplete")
_STATE = ("previous_response_id", "conversation", "store", "background")


def _find_response(data: bytes) -> tuple[bytes, Any, Any]:
    """Return the JSON in the end of a reply that contains the response: as bytes and as a value.

    The third value is the response, which is the JSON itself unless the reply is a stream.
    """
    if data.startswith(b"{"):
        value = msgspec.json.decode(data)
        return data, value, value
    for line in reversed(data.splitlines()):
        if line.startswith(b"data: ") and b'"response"' in line:
            event = msgspec.json.decode(line.removeprefix(b"data: "))
            if isinstance(event.get("response"), dict):
                return line.removeprefix(b"data: "), event, event["response"]
    return b"", None, None


def new_response(
    response_id: str, fields: Mapping[str, Any], status: str, **facts: Any
) -> dict[str, Any]:
    """Return a response object without an answer, for a response that is not generated yet."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": status,
        "model": fields.get("model"),
        "output": [],
        **DEFAULTS,
        **write_echo(fields),
        "background": True,
        "store": True,
        "usage": None,
        **facts,
    }


def new_id(prefix: str) -> str:
    """Return a random id that cannot be guessed."""
    return f"{prefix}_{new_ulid().lower()}"

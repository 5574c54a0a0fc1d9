"""The routes to read, change and delete stored responses and conversations."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.requests import Request as HttpAsked
from starlette.routing import Route

from ..errors import InvalidRequestError
from ..wire import SERVER_CODECS
from ..wire.fields import read_body
from .access import Caller, Service
from .pages import Page, serve_page
from .store import ResponseStore
from .stored_responses import CONVERSATION, RESPONSE, new_id, refuse_unknown

_CODEC = next(codec for codec in SERVER_CODECS.values() if codec.keeps_responses)
_MAX_BODY = 1024 * 1024


def kept_routes(service: Service) -> list[Route]:
    """Return the routes for stored responses; without a store, return no routes."""
    if service.store is None:
        return []
    pages = _KeptPages(service, service.store)
    response = "/v1/responses/{name}"
    conversation = "/v1/conversations/{name}"
    table: list[tuple[str, str, Page]] = [
        ("GET", response, pages.response),
        ("DELETE", response, partial(pages.delete, RESPONSE)),
        ("GET", f"{response}/input_items", pages.input_items),
        ("POST", f"{response}/cancel", pages.cancel),
        ("POST", "/v1/conversations", pages.create_conversation),
        ("GET", conversation, pages.conversation),
        ("DELETE", conversation, partial(pages.delete, CONVERSATION)),
        ("GET", f"{conversation}/items", pages.items),
        ("POST", f"{conversation}/items", pages.add_items),
    ]
    return [
        Route(path, serve_page(service, make, _CODEC), methods=[method])
        for method, path, make in table
    ]


class _KeptPages:
    def __init__(self, service: Service, store: ResponseStore) -> None:
        self._service = service
        self._store = store

    # --- handlers for stored responses

    async def response(self, asked: HttpAsked, caller: Caller) -> Any:
        """Return the current state of a response."""
        return (await self._find(asked, caller, RESPONSE))["response"]

    async def input_items(self, asked: HttpAsked, caller: Caller) -> Any:
        """Return the input items that were sent to the model for a response."""
        return _list((await self._find(asked, caller, RESPONSE))["input"])

    async def cancel(self, asked: HttpAsked, caller: Caller) -> Any:
        """Stop a background response."""
        record = await self._find(asked, caller, RESPONSE)
        if not record["response"].get("background"):
            raise InvalidRequestError("only a background response can be cancelled")
        if self._service.background is not None:
            await self._service.background.cancel(caller.owner, record["response"]["id"])
        return (await self._find(asked, caller, RESPONSE))["response"]

    # --- handlers for stored conversations

    async def create_conversation(self, asked: HttpAsked, caller: Caller) -> Any:
        """Create a conversation that contains the items in the body."""
        fields = await _read(asked)
        name = new_id("conv")
        metadata = fields.get("metadata") or {}
        record = {
            "items": _read_items(fields),
            "metadata": metadata,
            "created_at": int(time.time()),
        }
        await self._store.put(caller.owner, [(CONVERSATION, name, record)])
        return _show(name, record)

    async def conversation(self, asked: HttpAsked, caller: Caller) -> Any:
        """Return a conversation without its items."""
        record = await self._find(asked, caller, CONVERSATION)
        return _show(asked.path_params["name"], record)

    async def items(self, asked: HttpAsked, caller: Caller) -> Any:
        """Return the items of a conversation."""
        return _list((await self._find(asked, caller, CONVERSATION))["items"])

    async def add_items(self, asked: HttpAsked, caller: Caller) -> Any:
        """Add items to a conversation."""
        record = await self._find(asked, caller, CONVERSATION)
        added = _read_items(await _read(asked))
        record["items"] = [*record["items"], *added]
        await self._store.put(caller.owner, [(CONVERSATION, asked.path_params["name"], record)])
        return _list(added)

    # --- both kinds

    async def delete(self, kind: str, asked: HttpAsked, caller: Caller) -> Any:
        """Remove a response or a conversation."""
        name = asked.path_params["name"]
        if not await self._store.delete(caller.owner, kind, name):
            raise _reject(kind)
        return {"id": name, "object": f"{kind}.deleted", "deleted": True}

    async def _find(self, asked: HttpAsked, caller: Caller, kind: str) -> Any:
        name = asked.path_params["name"]
        found = await self._store.get(caller.owner, kind, [name])
        if name not in found:
            raise _reject(kind)
        return found[name]


def _reject(kind: str) -> InvalidRequestError:
    return refuse_unknown(f"no {kind} of this id is kept for this key")


async def _read(asked: HttpAsked) -> dict[str, Any]:
    if (
        asked.headers.get("content-type", "").partition(";")[0].strip().lower()
        != "application/json"
    ):
        raise InvalidRequestError("content-type must be application/json", status=415)
    body = b""
    async for piece in asked.stream():
        body += piece
        if len(body) > _MAX_BODY:
            raise InvalidRequestError(f"the body is longer than {_MAX_BODY} bytes", status=413)
    return read_body(body or b"{}")


def _read_items(fields: dict[str, Any]) -> list[Any]:
    items = fields.get("items") or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidRequestError("items must be a list of objects")
    return [{"id": new_id("msg"), **item} for item in items]


def _show(name: str, record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": name,
        "object": "conversation",
        "created_at": record.get("created_at", 0),  # 0 if an earlier release stored it
        "metadata": record.get("metadata") or {},
    }


def _list(items: list[Any]) -> dict[str, Any]:
    shown = [
        {"id": f"item_{at}", **_show_item(item)}
        for at, item in enumerate(items)
        if isinstance(item, dict)
    ]
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    return {"object": "list", "data": shown, "first_id": first, "last_id": last, "has_more": False}


def _show_item(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item in its full form; clients may send messages in a short form."""
    if item.get("type", "message") != "message":
        return item
    content = item.get("content")
    if isinstance(content, str):
        is_said = item.get("role") == "assistant"
        part = {"type": "output_text" if is_said else "input_text", "text": content}
        content = [{**part, "annotations": []} if is_said else part]
    return {"status": "completed", **item, "type": "message", "content": content}

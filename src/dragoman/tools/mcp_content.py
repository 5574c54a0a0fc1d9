"""Convert the content of MCP results to the blocks that a model receives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..messages import Audio, Document, Image, Inline, Text, UserBlock
from .mcp_http import MAX_ITEMS
from .runtime import Observation, ToolFailure

_SHORTEST_SECRET = 8
_READABLE = ("text/", "application/pdf")  # the beginnings of the types of documents


def observe(
    found: Sequence[Any], secrets: Sequence[str], structured: Any = None, is_error: bool = False
) -> Observation:
    """Return a server's result as an observation, without secrets.

    If the content has nothing to read, the structured value is the content: since 2025-06-18 the
    copy in a text is only recommended, and some servers send ``content: []``
    (ggml-org/llama.cpp#26410, 2026-08-01; MoonshotAI/kimi-code#3234, 2026-08-25).
    """
    if len(found) > MAX_ITEMS:
        raise ToolFailure("unreadable", f"the result has more than {MAX_ITEMS:,} blocks")
    structured = hide(structured, secrets)
    blocks = [block for item in found for block in _read(item, secrets)]
    if structured is not None and not any(_has_content(block) for block in blocks):
        blocks = [Text(msgspec.json.encode(structured).decode())]
    details = {} if structured is None else {"structured_content": structured}
    texts = [block.text for block in blocks if isinstance(block, Text)]
    content = "\n".join(texts) if len(texts) == len(blocks) else tuple(blocks)
    return Observation(content, is_error=is_error, details=details)


def hide(value: Any, secrets: Sequence[str]) -> Any:
    """Return a value without the secrets: some servers repeat the headers they were sent."""
    if isinstance(value, str):
        for secret in sorted(secrets, key=len, reverse=True):  # one may begin with another
            # A very short secret would also match ordinary words.
            value = value.replace(secret, "[hidden]") if len(secret) >= _SHORTEST_SECRET else value
        return value
    if isinstance(value, dict):
        return {hide(key, secrets): hide(item, secrets) for key, item in value.items()}
    return [hide(item, secrets) for item in value] if isinstance(value, list) else value


def _has_content(block: UserBlock) -> bool:
    return not isinstance(block, Text) or bool(block.text.strip())


def _read(item: Any, secrets: Sequence[str]) -> Iterator[UserBlock]:
    """Yield the blocks of one item of a result."""
    if item.type == "text":
        yield Text(hide(item.text, secrets))
    elif item.type == "image":
        yield Image(Inline(item.data), item.mime_type)
    elif item.type == "audio":
        yield Audio(Inline(item.data), item.mime_type)
    elif item.type == "resource_link":
        yield Text(hide(_describe_link(item), secrets))
    elif item.type == "resource":
        yield from _read_resource(item.resource, secrets)
    else:
        yield Text(f"[{item.type}: unsupported content]")


def _describe_link(item: Any) -> str:
    """Describe a resource by what a model needs to read it: its URI, and what it contains."""
    facts = [item.mime_type or "", "" if item.size is None else f"{item.size} bytes"]
    known = ", ".join(fact for fact in facts if fact)
    lines = [f"[resource link {item.uri}{f' ({known})' if known else ''}]"]
    names = dict.fromkeys([item.title or "", item.name, item.description or ""])
    return "\n".join([*lines, *filter(None, names)])


def _read_resource(resource: Any, secrets: Sequence[str]) -> Iterator[UserBlock]:
    uri = hide(resource.uri, secrets)
    text = getattr(resource, "text", None)
    kind = (resource.mime_type or "").lower()
    if text is not None:
        yield Text(f"[resource {uri}]\n{hide(text, secrets)}")
        return
    data = Inline(resource.blob)
    size = f"about {len(resource.blob) * 3 // 4} bytes"
    if kind.startswith("image/"):
        yield from (Text(f"[resource {uri}]"), Image(data, kind))
    elif kind.startswith("audio/"):
        yield from (Text(f"[resource {uri}]"), Audio(data, kind))
    elif kind.startswith(_READABLE):
        yield from (Text(f"[resource {uri}]"), Document(data, kind))
    else:
        # A provider refuses a document of another type, and with it every later request.
        yield Text(f"[resource {uri}: {kind or 'unknown type'}, {size}; not shown]")

"""The rule for each field of a Messages request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import UnsupportedFeatureError
from ...messages import EFFORTS
from .hosted import read_hosted
from .rules import Prepared, Rule, Sorter

_READ = Rule("read")
_HINT = Rule("hint", "it does not change what the answer means")

NAMES = {
    "top_p": "top_p",
    "reasoning": "thinking",
    "json_mode": "output_config.format",
    "user": "metadata.user_id",
}
TOGETHER = ("messages", "system")
FIELDS: dict[str, Rule] = {
    **dict.fromkeys(
        [
            "model",
            "messages",
            "system",
            "max_tokens",
            "stream",
            "temperature",
            "top_p",
            "stop_sequences",
            "tools",
            "tool_choice",
            "thinking",
            "output_config",
            "metadata",
        ],
        _READ,
    ),
    "top_k": Rule("mapped", concept="top_k"),
    "service_tier": Rule(
        "hint", "which capacity serves a request is the endpoint's setting", default=("auto",)
    ),
    "cache_control": Rule("hint", "each endpoint sets its own marks for the prompt cache"),
    "context_management": Rule(
        "hint", "nothing is removed from the conversation", default=({"edits": []},)
    ),
    "inference_geo": _HINT,
    "speed": Rule(
        "hint", "how fast a model answers is the endpoint's setting", default=("standard",)
    ),
    "diagnostics": _HINT,
    "fallbacks": Rule("hint", "which model answers is decided here"),
    "container": Rule(
        "refused", "run code with a tool of your own, or ask a model of the same wire"
    ),
    "mcp_servers": Rule(
        "refused", "connect to the servers in your program, or ask a model of the same wire"
    ),
    "output_format": Rule("refused", "use output_config.format, its newer name"),
}
_CACHE = {"cache_control": FIELDS["cache_control"]}
_TOOL = {
    **_CACHE,
    "eager_input_streaming": Rule("hint", "arguments are sent as they arrive", default=(False,)),
    "defer_loading": Rule("hint", "every tool is offered at once", default=(False,)),
    "input_examples": Rule("hint", "the model's wire has no examples of a tool's input"),
    "allowed_callers": Rule("hint", "the model calls every tool directly", default=(["direct"],)),
}
_CITATIONS = Rule("hint", "the answer comes without citations", default=({"enabled": False},))
_SERVER_TOOL = Rule("refused", "offer tools of your own, or ask a model of the same wire")
_BLOCKS: dict[str, tuple[str, ...]] = {
    "text": ("type", "text"),
    "image": ("type", "source"),
    "document": ("type", "source", "title"),
    "tool_result": ("type", "tool_use_id", "content", "is_error"),
}
_BLOCK = Rule("refused", "send text, images, documents and results of tools")


def _thread_error() -> UnsupportedFeatureError:
    """Return the error for a request that refers to a conversation stored on the server.

    The error has the code that the vendor's SDKs expect.
    """
    error = UnsupportedFeatureError("thread: conversations are not kept here; send all messages")
    error.provider_code = "thread_unsupported_request"
    return error


def prepare(body: Mapping[str, Any]) -> Prepared:
    """Return the request body in a form that the server codec of this wire can decode."""
    if body.get("thread") is not None:
        raise _thread_error()
    sorter = Sorter(FIELDS, TOGETHER)
    made = sorter.sort_root(body)
    _sort_system(made, sorter)
    if isinstance(made.get("messages"), list):
        _sort_messages(made, sorter)
    if isinstance(made.get("tools"), list):
        made["tools"] = _sort_tools(made["tools"], sorter)
    _sort_choice(made, sorter)
    _sort_thinking(made, sorter)
    _sort_metadata(made, sorter)
    return sorter.done(made, body)


# --- preparing the conversation ----------------------------------------------------------------


def _sort_system(made: dict[str, Any], sorter: Sorter) -> None:
    if isinstance(made.get("system"), list):
        blocks = enumerate(made["system"])
        made["system"] = [
            sorter.keep(block, f"system[{at}]", ("type", "text"), _CACHE)
            if isinstance(block, dict)
            else block
            for at, block in blocks
        ]


def _sort_messages(made: dict[str, Any], sorter: Sorter) -> None:
    talk: list[Any] = []
    for at, message in enumerate(made["messages"]):
        path = f"messages[{at}]"
        if not isinstance(message, dict):
            talk.append(message)
            continue
        kept = sorter.keep(message, path, ("role", "content"), _CACHE)
        content = kept.get("content")
        if isinstance(content, list):
            blocks = [
                _sort_block(block, f"{path}.content[{i}]", kept, sorter)
                for i, block in enumerate(content)
            ]
            kept["content"] = [block for block in blocks if block is not None]
        if kept.get("role") == "system":
            _lead(made, kept, path, sorter)
        elif kept.get("content") != [] or content == []:
            talk.append(kept)
    made["messages"] = talk


def _lead(made: dict[str, Any], message: dict[str, Any], path: str, sorter: Sorter) -> None:
    """Append the content of a system message to the field ``system``."""
    sorter.leave(path, Rule("mapped", "instructions go before the conversation"), "system_moved")
    made["system"] = [*as_blocks(made.get("system")), *as_blocks(message.get("content"))]


def as_blocks(content: Any) -> list[Any]:
    """Return content as a list of blocks; a string becomes one text block."""
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _sort_block(block: Any, path: str, message: Mapping[str, Any], sorter: Sorter) -> Any:
    if not isinstance(block, dict):
        return block
    if message.get("role") == "assistant":
        if "cache_control" in block:
            sorter.keep({"cache_control": block["cache_control"]}, path, (), _CACHE)
            return {name: value for name, value in block.items() if name != "cache_control"}
        return block  # keep unknown fields, since the provider that issued the block may need them
    kind = block.get("type")
    if not isinstance(kind, str):
        # leave an invalid block unchanged: the server codec rejects it with an error
        return block
    if kind == "search_result":
        return _write_search_result(block, path, sorter)
    if not isinstance(kind, str) or kind not in _BLOCKS:
        sorter.leave(path, _BLOCK, "content_dropped")
        return {"type": "text", "text": "[content of another kind]"}
    made = sorter.keep(
        block, path, _BLOCKS[kind], {**_CACHE, "citations": _CITATIONS, "context": _HINT}
    )
    content = made.get("content")
    if kind == "tool_result" and isinstance(content, list):
        made["content"] = [
            _sort_block(each, f"{path}.content[{at}]", {}, sorter)
            for at, each in enumerate(content)
        ]
    return _sort_document(made, path, sorter) if kind == "document" else made


def _sort_document(block: dict[str, Any], path: str, sorter: Sorter) -> dict[str, Any]:
    """Return a document block whose text blocks are joined into a single text."""
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    kind = source.get("type")
    if kind == "content":
        texts = [
            each.get("text") for each in as_blocks(source.get("content")) if isinstance(each, dict)
        ]
        sorter.leave(
            f"{path}.source", Rule("mapped", "its blocks are sent as one text"), "document_joined"
        )
        text = "\n\n".join([text for text in texts if isinstance(text, str)])
        return {**block, "source": {"type": "text", "data": text, "media_type": "text/plain"}}
    if kind == "file":
        sorter.leave(path, Rule("refused", "send the file's content"), "content_dropped")
        return {"type": "text", "text": "[a file]"}
    return block


def _write_search_result(block: dict[str, Any], path: str, sorter: Sorter) -> dict[str, Any]:
    sorter.leave(path, Rule("mapped", "it is sent as text"), "search_result_rewritten")
    texts = [
        str(each.get("text", ""))
        for each in as_blocks(block.get("content"))
        if isinstance(each, dict)
    ]
    return {
        "type": "text",
        "text": "\n".join([f"{block.get('title')} ({block.get('source')})", *texts]),
    }


# --- preparing tools and settings --------------------------------------------------------------


def _sort_tools(tools: list[Any], sorter: Sorter) -> list[Any]:
    made = []
    for at, tool in enumerate(tools):
        if isinstance(tool, dict) and (tool.get("type") or "custom") != "custom":
            hosted = read_hosted("anthropic", str(tool["type"]), tool)
            sorter.leave(f"tools[{at}]", _SERVER_TOOL, "server_tool_dropped", hosted)
        elif isinstance(tool, dict):
            made.append(
                sorter.keep(
                    tool,
                    f"tools[{at}]",
                    ("type", "name", "description", "input_schema", "strict"),
                    _TOOL,
                )
            )
        else:
            made.append(tool)
    return made


def _sort_choice(made: dict[str, Any], sorter: Sorter) -> None:
    choice = made.get("tool_choice")
    if not isinstance(choice, dict):
        return
    if choice.get("disable_parallel_tool_use") is True and choice.get("type") != "none":
        sorter.wish("parallel_tool_calls", False)
    made["tool_choice"] = {
        name: value for name, value in choice.items() if name != "disable_parallel_tool_use"
    }


def _sort_thinking(made: dict[str, Any], sorter: Sorter) -> None:
    """Convert the fields for reasoning: a token budget, an effort level, or adaptive thinking."""
    thinking, output = made.pop("thinking", None), made.get("output_config")
    effort = None
    if isinstance(output, dict):
        effort = output.get("effort")
        made["output_config"] = sorter.keep(
            {name: value for name, value in output.items() if name != "effort"},
            "output_config",
            ("format",),
        )
        if effort is not None:
            sorter.own["output_config"] = {"effort": effort}
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if thinking is not None:
        sorter.own["thinking"] = thinking
    if effort is not None:
        wanted = "xhigh" if effort == "max" else effort
        if wanted in EFFORTS:
            sorter.wish("reasoning", "none" if kind == "disabled" else wanted)
        else:
            sorter.leave("output_config.effort")
    elif kind == "adaptive":
        sorter.leave(
            "thinking",
            Rule("hint", "the model thinks as much as it does by default"),
            "thinking_adaptive",
        )
    elif kind == "disabled":
        sorter.wish("reasoning", "none")
    elif (
        kind == "enabled"
        and isinstance(thinking, dict)
        and type(thinking.get("budget_tokens")) is int
    ):
        made["thinking"] = {"type": "enabled", "budget_tokens": thinking["budget_tokens"]}
    elif thinking is not None:
        # leave an invalid value unchanged: the server codec rejects it with an error
        made["thinking"] = thinking


def _sort_metadata(made: dict[str, Any], sorter: Sorter) -> None:
    metadata = made.pop("metadata", None)
    if not isinstance(metadata, dict):
        return
    if metadata.get("user_id") is not None:
        sorter.wish("user", metadata["user_id"])
    sorter.keep(
        {name: value for name, value in metadata.items() if name != "user_id"}, "metadata", (), {}
    )

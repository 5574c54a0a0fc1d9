"""Decode requests of the Responses wire: the settings and the conversation.

Consecutive items that the model wrote become one assistant message. Opaque items stay unchanged,
for an endpoint of this wire.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ... import messages as m
from ...errors import UnsupportedContentError
from ...events import read_object
from ...validate import parse_tool_choice
from ..fields import open_body, read_body, read_media_url, read_schema
from ..losses import ClientRecord, Leftover, OfferedTool
from ..openai.server_request import leave_effort, read_allowed, wrap_arguments
from ..rules import CONCEPTS, HINT, LOGPROBS, READ, FieldRule, FieldTable, hint, refused
from ..schema import closed_object
from ..seal import Carried, deliver, read_opaque, read_sealed, read_thought, unseal
from ..server import Asked, gather
from ..settings import read_settings
from .echo import write_echo
from .output import read_picture
from .request import ADDED, SETTINGS

_ISSUER = m.Issuer("responses")
# The ids that this wire's server codec gives to thoughts without state. Codex sends items without
# their ids (openai/codex, protocol/src/models.rs; seen 2026-11-19).
_OWN_ID = re.compile(r"rs_\d{1,6}_.{1,200}")
_STATE = refused(
    "send the whole conversation as input, or start the gateway with --store", always=True
)
TABLE = FieldTable(
    {
        **dict.fromkeys(
            ("model", "input", "instructions", "stream", "tools", "tool_choice", "text"), READ
        ),
        **dict.fromkeys(("reasoning", *SETTINGS.values()), READ),
        **CONCEPTS,
        "top_logprobs": LOGPROBS,
        "truncation": hint("a conversation that is too long is refused", "disabled"),
        "include": hint(
            "the model's wire has nothing of the kind", ["reasoning.encrypted_content"]
        ),
        "context_management": hint("nothing is removed from the conversation"),
        "max_tool_calls": hint("it limits the tools that a server runs by itself"),
        "metadata": HINT,
        "client_metadata": HINT,
        "stream_options": hint("no padding is sent", {"include_obfuscation": False}, always=True),
        "store": hint("nothing is kept here between calls; see --store", False, True, always=True),
        "background": refused("start the gateway with --store", False, always=True),
        "previous_response_id": _STATE,
        "conversation": _STATE,
        "prompt": refused("prompts are not kept here; send the text of the prompt", always=True),
    },
    ("input", "instructions"),
    {
        "max_tokens": "max_output_tokens",
        "reasoning": "reasoning.effort",
        "json_mode": "text.format",
    },
)
_REFERENCE = refused(
    "send the item itself (store: false), or start the gateway with --store", always=True
)
_HOSTED = refused("offer tools of type function, or ask a model of the same wire")
_OFFERED = hint("the model's server does not run it; the other functions are offered")
_FUNCTION = {
    "defer_loading": hint("every tool is offered at once", False, held=True),
    "allowed_callers": hint("the model calls every tool directly", ["direct"]),
}
_JOINED = FieldRule("mapped", "the namespace is a part of the function's name")
_PART = refused("send text, images or files")
_CUSTOM_CALL = FieldRule("mapped", "it is sent as a call of a function")
_CUSTOM_OUTPUT = FieldRule("mapped", "it is sent as the output of a function")
_CUSTOM_TOOL = FieldRule("mapped", "it is offered as a function with one text")
_ADDED = FieldRule("mapped", "its tools are offered like those of the field tools")
_SUMMARY = hint("the thoughts that the model's server sends are passed on", "auto")
_CALLS = ("custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")


def read_request(body: bytes | dict[str, Any], path: str) -> Asked:
    """Decode the body of a request."""
    fields = open_body(read_body(body), TABLE, ClientRecord)
    model = fields.need_text("model")
    stream = fields.flag("stream") or False
    messages = _read_conversation(fields)
    tools, choice = _read_tools(fields)
    schema = _read_text(fields)
    config = m.RuntimeConfig(**read_settings(fields, SETTINGS), reasoning=_read_effort(fields))
    request = m.Request(
        messages,
        tools=tools,
        config=config,
        response_schema=schema,
        tool_choice=choice,
        model=model,
        stream=stream,
    )
    return gather(request, fields.losses, echo=write_echo(fields.data))


# --- reading settings of clients ---------------------------------------------------------------


def _read_effort(fields: ClientRecord) -> m.Effort | None:
    reasoning = fields.inner("reasoning")
    if reasoning is None:
        return None
    effort = reasoning.text("effort")
    reasoning.done({"summary": _SUMMARY, "generate_summary": _SUMMARY})
    if effort is not None and effort not in m.EFFORTS:
        leave_effort(fields.losses, {"reasoning": reasoning.data})
    return next((each for each in m.EFFORTS if each == effort), None)


def _read_text(fields: ClientRecord) -> dict[str, Any] | None:
    """Return the schema of the answer; record any other format, and the verbosity."""
    text = fields.inner("text")
    if text is None:
        return None
    losses = fields.losses
    verbosity = text.take("verbosity")
    if verbosity not in (None, "medium"):
        losses.add_concept("verbosity", verbosity, {"text": {"verbosity": verbosity}})
    form = text.inner("format")
    text.done()
    if form is None:
        return None
    kind = form.text("type")
    if kind == "json_schema":
        form.flag("strict")
        name = form.need_text("name")
        schema = read_schema(form.take("schema"), name, "text.format.schema", losses)
        form.done()
        return schema
    if kind == "json_object":
        losses.add_concept("json_mode", True, {"text": {"format": form.data}})
    elif kind not in (None, "text"):
        text.leave("format")
    return None


# --- reading tools of clients ------------------------------------------------------------------


def _read_tools(fields: ClientRecord) -> tuple[tuple[m.Tool, ...], m.ToolChoice | None]:
    tools: list[m.Tool] = []
    others: list[ClientRecord] = []
    for record in (*fields.inners("tools"), *_find_added(fields)):
        kind = record.text("type")
        if kind in ("function", "custom"):
            tools.append(_read_tool(record))
        elif kind == "namespace" and isinstance(record.data.get("tools"), list):
            tools += _read_namespace(record)
        else:
            others.append(record)
    for record in others:
        tool = OfferedTool(str(record.data.get("type")), record.data, dict(record.data))
        rule = _OFFERED if tools else _HOSTED
        fields.losses.leave(record.where, rule, "hosted_tool_dropped", tool, root="tools")
    return _read_choice(fields, tuple(tools))


def _find_added(fields: ClientRecord) -> list[ClientRecord]:
    """Return the tools in input items of type ``additional_tools``.

    Codex sends no ``tools`` for models of the family that it calls Responses Lite (gpt-5.6,
    gpt-6), but such an item (openai/codex#27946; theopenco/llmgateway#3613; seen 2026-11-18). A
    model of this wire gets the item and the field as they are, see
    ``ResponsesCodec.native_fields``. A tool that is offered twice is read once.
    """
    given = fields.data.get("input")
    offered = [*(fields.data.get("tools") or ())]
    found = []
    for at, item in enumerate(given if isinstance(given, list) else ()):
        if isinstance(item, dict) and item.get("type") == ADDED:
            path = f"input[{at}]"
            kept = Leftover(
                path, "additional_tools_joined", _ADDED, (*TABLE.conversation, "tools")
            )
            fields.losses.left.append(kept)
            for tool in fields.enter(path, item).inners("tools"):
                if tool.data not in offered:
                    offered.append(tool.data)
                    found.append(tool)
    return found


def _read_tool(record: ClientRecord) -> m.Tool:
    name = record.need_text("name")
    described = record.text("description") or ""
    if record.take("type") == "custom":
        return _read_custom(record, name, described)
    strict = record.flag("strict")
    schema = record.schema("parameters")
    record.done(_FUNCTION)
    made: dict[str, Any] = {} if schema is None else {"parameters": schema}
    deferred = record.data.get("defer_loading") is True
    return m.Tool(name, described, strict=strict, deferred=deferred, **made)


def _read_custom(record: ClientRecord, name: str, described: str) -> m.Tool:
    """Convert a custom tool, whose input is free text, to a function with one parameter."""
    record.losses.leave(record.where, _CUSTOM_TOOL, "custom_tool_rewritten")
    record.losses.custom.add(name)
    form = record.take("format")
    if isinstance(form, dict) and form.get("type") == "grammar":
        syntax = form.get("syntax")
        definition = form.get("definition")
        described += f"\n\nThe input must match this {syntax} grammar:\n{definition}"
    text = {"type": "string", "description": "The whole input of the tool."}
    return m.Tool(name, described.strip(), parameters=closed_object(input=text))


def _read_namespace(record: ClientRecord) -> list[m.Tool]:
    """Return the tools of a namespace as functions whose names contain the namespace.

    The description of the first function begins with the description of the namespace.
    """
    losses = record.losses
    losses.leave(record.where, _JOINED, "namespace_joined")
    namespace = record.take("name")
    about = record.take("description")
    tools = []
    for each in record.inners("tools"):
        if each.data.get("type") not in ("function", "custom"):
            losses.leave(each.where, _OFFERED, "hosted_tool_dropped")
            continue
        joined = _join_name(namespace, each.data.get("name"))
        losses.grouped[str(joined)] = (str(namespace), str(each.data.get("name")))
        texts = [text for text in (about, each.data.get("description")) if isinstance(text, str)]
        about = None
        each.data = {**each.data, "name": joined, "description": "\n\n".join(texts)}
        tools.append(_read_tool(each))
    return tools


def _join_name(namespace: Any, name: Any) -> Any:
    """Return the name of the function that replaces a namespaced tool.

    Some clients send the namespace with a trailing ``_``, others without; both give the same name.
    """
    if not isinstance(namespace, str) or not isinstance(name, str) or not namespace:
        return name
    return f"{namespace.rstrip('_')}__{name}"


def _read_choice(
    fields: ClientRecord, tools: tuple[m.Tool, ...]
) -> tuple[tuple[m.Tool, ...], m.ToolChoice | None]:
    choice = fields.take("tool_choice")
    if not isinstance(choice, dict):
        return tools, parse_tool_choice(choice)
    kind = choice.get("type")
    if kind == "allowed_tools":
        return read_allowed(fields, tools, choice)
    if kind in ("function", "custom"):
        if kind == "custom":
            fields.losses.own |= {"tool_choice": choice}
        record = fields.enter("tool_choice", choice)
        record.take("type")
        name = record.need_text("name")
        record.done()
        return tools, m.ForceTool(name)
    if kind in (None, "tool"):
        return tools, parse_tool_choice(choice)
    fields.leave("tool_choice", _HOSTED)
    return tools, None


# --- reading input items of clients ------------------------------------------------------------


def as_items(given: Any) -> list[Any]:
    """Return the input as a list of items; a string becomes one item."""
    if isinstance(given, list):
        return given
    return [] if given is None else [{"role": "user", "content": given}]


def _read_conversation(fields: ClientRecord) -> list[m.Message]:
    """Read the instructions and the input; instructions may be a text or a list of items."""
    instructions = fields.take("instructions")
    given = fields.take("input")
    if isinstance(instructions, list):
        items = [*fields.inners("instructions")]
        if isinstance(given, str):
            return [*_read_items(items), m.User(given)]
        return _read_items([*items, *fields.inners("input")])
    text = fields.text("instructions")
    system: list[m.Message] = [m.System(text)] if text else []
    if isinstance(given, str):
        return [*system, m.User(given)]
    if not isinstance(given, list):
        fields.refuse("input", "must be text or a list of items")
    return [*system, *_read_items(fields.inners("input"))]


def _read_items(items: Sequence[ClientRecord]) -> list[m.Message]:
    messages: list[m.Message] = []
    turn: list[m.AssistantBlock | Carried] = []
    for item in items:
        read = _read_item(item)
        if isinstance(read, Sequence):
            turn += read
            continue
        if turn:
            messages.append(m.Assistant(deliver(turn)))
            turn = []
        messages.append(read)
    return [*messages, m.Assistant(deliver(turn))] if turn else messages


def _read_item(record: ClientRecord) -> m.Message | Sequence[m.AssistantBlock | Carried]:
    """Return an input item as a message, or as blocks of the current assistant turn."""
    kind = record.text("type") or "message"
    item = dict(record.data)
    if kind == "message":
        return _read_message(record)
    if kind == ADDED:
        return []  # ``_find_added`` reads its tools
    if kind == "function_call":
        return [_read_call(record)]
    if kind in _CALLS:
        return [_read_custom_call(record, kind)]
    if kind in _OUTPUTS:
        if kind != "function_call_output":
            record.losses.leave(record.where, _CUSTOM_OUTPUT, "custom_output_rewritten")
        return _read_result(record)
    if kind == "reasoning":
        return [_read_reasoning(item)]
    if kind == "item_reference":
        record.losses.leave(record.where, _REFERENCE)
        return []
    if kind == "opaque" and isinstance(item.get("issuer"), dict):
        return [read_opaque(record)]
    if (picture := read_picture(item, _ISSUER)) is None:
        return [m.Opaque(item, m.Continuity(issuer=_ISSUER))]
    if item.get("continuity") is not None:  # an image from another wire, which the gateway sealed
        state = read_sealed(item["continuity"], m.Continuity, record.at("continuity"))
        picture = replace(picture, continuity=state)
    return [picture]


def _read_reasoning(item: dict[str, Any]) -> m.AssistantBlock | Carried:
    channels = [item.get("summary"), item.get("content")]
    parts = [part for channel in channels if isinstance(channel, list) for part in channel]
    texts = [
        part["text"]
        for part in parts
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    ]
    text = "\n\n".join(texts)
    token = item.get("encrypted_content")
    if isinstance(token, str) and unseal(token) is not None:
        return read_thought(text, token, "responses")
    if not token and _OWN_ID.fullmatch(str(item.get("id", "rs_0_0"))):
        return m.Thinking(text)
    return m.Thinking(text, m.Continuity(opaque=item, issuer=_ISSUER))


def _read_message(record: ClientRecord) -> m.Message | list[m.AssistantBlock]:
    role = record.need_text("role")
    content = record.text_or_parts("content", "must be text or a list of parts")
    phase = _take_facts(record, "phase")
    record.done()
    if role == "assistant":
        if isinstance(content, str):
            return [_with_state(content, None, phase)]
        return [_read_assistant_text(part, phase) for part in content]
    if role in ("system", "developer"):
        return m.System(content if isinstance(content, str) else "".join(_read_texts(record)))
    if role != "user":
        record.refuse("role", "must be user, assistant, system or developer")
    return m.User(content if isinstance(content, str) else [_read_part(part) for part in content])


def _take_facts(record: ClientRecord, name: str = "") -> Any:
    """Mark an item's id and status as read; return the value of another field."""
    record.take("id")
    record.take("status")
    return record.take(name)


def _read_texts(record: ClientRecord) -> list[str]:
    blocks = [_read_part(part) for part in record.inners("content")]
    if not all(isinstance(block, m.Text) for block in blocks):
        raise UnsupportedContentError(f"{record.at('content')}: instructions are text only")
    return [block.text for block in blocks if isinstance(block, m.Text)]


def _read_assistant_text(record: ClientRecord, phase: Any) -> m.Text:
    kind = record.need_text("type")
    if kind == "refusal":
        text = m.Text(record.need_text("refusal"))
    elif kind == "output_text":
        text = _with_state(record.need_text("text"), record.take("annotations"), phase)
        record.take("logprobs")
    else:
        return record.leave_part(_PART)
    record.done()
    return text


def _with_state(text: str, annotations: Any, phase: Any) -> m.Text:
    own = {"annotations": annotations, "phase": phase}
    state = {name: value for name, value in own.items() if value}
    return m.Text(text, m.Continuity(opaque=state, issuer=_ISSUER) if state else None)


def _read_call(record: ClientRecord) -> m.ToolCall:
    call_id = record.need_text("call_id")
    name = record.need_text("name")
    text = record.need_text("arguments")
    namespace = record.data.get("namespace")
    if namespace:
        record.take("namespace")
        record.losses.leave(record.where, _JOINED, "namespace_joined")
        name = _join_name(namespace, name)
    arguments = read_object(text) if text.strip() else {}
    if arguments is None:
        arguments = wrap_arguments(text, record.at("arguments"), record.losses)
    _take_facts(record)
    own = record.rest()
    return m.ToolCall(
        call_id, name, arguments, m.Continuity(opaque=own, issuer=_ISSUER) if own else None
    )


def _read_custom_call(record: ClientRecord, kind: str) -> m.ToolCall:
    """Read a call of a custom tool as a call of the function that replaces the tool."""
    record.losses.leave(record.where, _CUSTOM_CALL, "custom_call_rewritten")
    item = record.data
    name = _join_name(item.get("namespace"), record.text("name")) or kind.removesuffix("_call")
    wanted = item["input"] if "input" in item else item.get("action") or item.get("operation")
    return m.ToolCall(record.need_text("call_id"), name, {"input": wanted})


def _read_result(record: ClientRecord) -> m.ToolResult:
    call_id = record.need_text("call_id")
    output = record.text_or_parts("output", "must be text or a list of parts")
    _take_facts(record)
    record.done()
    if isinstance(output, str):
        return m.ToolResult(call_id, output)
    return m.ToolResult(call_id, [_read_part(part) for part in output])


def _read_part(record: ClientRecord) -> m.UserBlock:
    kind = record.need_text("type")
    block: m.UserBlock
    if kind in ("input_text", "output_text", "text"):
        block = m.Text(record.need_text("text"))
        record.take("annotations")
        record.take("logprobs")
    elif kind not in ("input_image", "input_file") or "file_id" in record:
        return record.leave_part(_PART)
    elif kind == "input_image":
        source, media_type = read_media_url(record.need_text("image_url"))
        block = m.Image(source, media_type, detail=_read_detail(record))
    else:
        block = _read_file(record)
    record.done()
    return block


def _read_detail(record: ClientRecord) -> Any:
    detail = record.take("detail")
    if detail in (None, *m.DETAILS):
        return detail
    record.leave("detail")
    return None


def _read_file(record: ClientRecord) -> m.Document:
    name = record.text("filename")
    url = record.text("file_url")
    if url is not None:
        return m.Document(m.Url(url), name=name)
    source, media_type = read_media_url(record.need_text("file_data"))
    if media_type is None:
        record.refuse("file_data", "must be a base64 data URL")
    return m.Document(source, media_type, name)

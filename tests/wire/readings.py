"""Read recorded replies with the standard library and a vendor's library only, by the rules of each
wire, so that tests can compare our decoders with an independent reader.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from dragoman.messages import Opaque, Text, Thinking

from .cases import DecodedReply, Record

# What a reader found in a reply: ``text``, and ``thinking``, ``calls`` (id, name, arguments as
# text), ``usage`` (by the names of our class), ``end``, ``cited``, ``signed`` and ``native`` where
# it looks for them.
Reading = dict[str, Any]


def bodies_of(record: Record) -> list[Any]:
    """Return the JSON values of a recorded reply: the body, or the data of each event."""
    if record.body[:1] == b"\0":
        from botocore.eventstream import EventStreamBuffer

        buffer = EventStreamBuffer()
        buffer.add_data(record.body)
        return [{each.headers[":event-type"]: json.loads(each.payload)} for each in buffer]
    text = record.body.decode().strip().replace("\r\n", "\n")
    if not record.is_events:
        return values_of(text)
    lines = [[line[5:].strip() for line in event.split("\n") if line[:5] == "data:"]
             for event in re.split(r"\n\n+", text)]  # fmt: skip
    return [value for event in lines for value in values_of("\n".join(event))]


def values_of(text: str) -> list[Any]:
    """Return the JSON objects of a text: one, those of an array, or one on each line."""
    try:
        value = json.loads(text) if text not in ("", "[DONE]") else []
    except ValueError:
        if "\n" not in text:
            raise
        return [each for line in text.splitlines() for each in values_of(line)]
    return value if isinstance(value, list) else [value] if isinstance(value, dict) else []


def read_openai(record: Record) -> Reading:
    """Read the first choice of a chat completion."""
    text = thinking = refusal = ""
    words: list[str] = []
    calls: list[dict[str, Any]] = []
    usage: dict[str, Any] = {}
    for body in bodies_of(record):
        for choice in body.get("choices") or ():
            if choice.get("index"):
                continue
            part = choice.get("delta") if record.is_events else choice.get("message")
            part = part or {}
            thinking += part.get("reasoning_content") or part.get("reasoning") or ""
            thinking += words_of(part.get("content"), "thinking")
            text += words_of(part.get("content"), "text") + (part.get("refusal") or "")
            refusal += part.get("refusal") or ""
            words += [choice["finish_reason"]] if choice.get("finish_reason") else []
            for call in part.get("tool_calls") or ():
                add_call(calls, call, streamed=record.is_events)
            legacy = part.get("function_call") or {}
            if not part.get("tool_calls") and (legacy.get("name") or legacy.get("arguments")):
                add_call(calls, {"index": 0, "function": legacy}, streamed=record.is_events)
        counted = body.get("usage") or {}
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        usage = counted if any(counted.get(name) for name in names) else usage
        if body.get("error"):
            break
    end = "content_filter" if refusal else end_of(words, called=bool(calls))
    found = [[call["id"], call["name"], call["arguments"]] for call in calls]
    read = {"text": text, "thinking": thinking, "calls": found, "end": end}
    return {**read, "usage": openai_usage(usage) if usage else {}}


def words_of(content: Any, kind: str) -> str:
    if isinstance(content, str):
        return content if kind == "text" else ""
    if isinstance(content, dict):
        written = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return written if kind == "text" else ""
    found = ""
    for part in content or ():
        if part["type"] == kind == "text":
            found += part["text"]
        elif part["type"] == kind == "thinking":
            found += "".join([piece["text"] for piece in part["thinking"]])
    return found


def end_of(words: list[str], *, called: bool) -> str:
    """Return the finish reason that the decoder must report for the recorded finish reasons.

    The first recorded reason other than ``stop`` counts. A normal end becomes ``tool_calls`` if
    tools were called, otherwise ``stop``; an unknown reason becomes ``error``.
    """
    word = next((word for word in words if word != "stop"), "stop")
    if word in ("length", "content_filter"):
        return word
    if word in ("stop", "tool_calls", "tool_call", "function_call"):
        return "tool_calls" if called else "stop"
    return "error"


def add_call(calls: list[dict[str, Any]], call: dict[str, Any], *, streamed: bool) -> None:
    function = call.get("function") or {}
    where = call.get("index")
    call_id = call.get("id")
    same = [each for each in calls if (each["id"] == call_id if call_id else each["at"] == where)]
    if not streamed or not same:
        calls.append({"at": where, "id": call_id, "name": function.get("name"), "arguments": ""})
        same = calls[-1:]
    arguments = function.get("arguments") or ""
    same[-1]["arguments"] += arguments if isinstance(arguments, str) else json.dumps(arguments)


def openai_usage(usage: dict[str, Any]) -> dict[str, Any]:
    asked = usage["prompt_tokens"]
    said = usage["completion_tokens"]
    total = usage.get("total_tokens")
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    said += reasoning if total == asked + said + reasoning else 0
    return {"input_tokens": asked, "output_tokens": said, "total_tokens": total}


def read_responses(record: Record) -> Reading:
    """Read the items of the final event, or, if that lists none, of the events that end each."""
    bodies = bodies_of(record)
    response = bodies[0]
    items = response.get("output")
    if record.is_events:
        ends = ("response.completed", "response.incomplete")
        last = [event["response"] for event in bodies if event.get("type") in ends]
        done = [each["item"] for each in bodies if each.get("type") == "response.output_item.done"]
        response = last[0] if last else {}
        items = response.get("output") or done
    parts = [part for item in items if item["type"] == "message" for part in item["content"]]
    calls = [item for item in items if item["type"] == "function_call"]
    ours = ("message", "reasoning", "function_call")
    usage = response.get("usage") or {}
    # One recording has negative token counts, which are read as unknown.
    names = ("input_tokens", "output_tokens", "total_tokens")
    return {
        "text": "".join([part.get("text") or part.get("refusal") or "" for part in parts]),
        "calls": [[item["call_id"], item["name"], item["arguments"]] for item in calls],
        "native": sorted([item["type"] for item in items if item["type"] not in ours]),
        "usage": {name: usage[name] if usage[name] >= 0 else None for name in names if usage},
    }


def read_anthropic(record: Record) -> Reading:
    text = ""
    for body in bodies_of(record):
        blocks = [body.get("content_block") or {}, *(body.get("content") or ())]
        text += "".join([block.get("text") or "" for block in blocks])
        text += (body.get("delta") or {}).get("text") or ""
    return {"text": text}


def read_gemini(record: Record) -> Reading:
    parts = gemini_parts(record)
    return {"text": "".join([part.get("text") or "" for part in parts if not part.get("thought")])}


def gemini_parts(record: Record) -> list[dict[str, Any]]:
    """Return the parts of the first candidate of each chunk."""
    found = [each for body in bodies_of(record) for each in body.get("candidates", ())[:1]]
    return [part for each in found for part in (each.get("content") or {}).get("parts") or ()]


def joined(parts: Sequence[Any]) -> list[Any]:
    """Join the unsigned text of parts of a Gemini reply, and drop empty parts."""
    made: list[Any] = []
    for part in parts:
        if not part or part == {"text": ""} or part.get("functionCall") == {}:
            continue
        part = {
            key: value for key, value in part.items() if not (key == "thought" and value is False)
        }
        if "functionCall" in part:
            call = part["functionCall"]
            part = {**part, "functionCall": {"args": {}, **call}}
        mergeable = part.keys() <= {"text", "thought"}
        if mergeable and made and made[-1].keys() == part.keys():
            made[-1] = {**made[-1], "text": made[-1]["text"] + part["text"]}
        else:
            made.append(part)
    return made


def read_ollama(record: Record) -> Reading:
    said = [body.get("message") or {} for body in bodies_of(record)]
    return {"text": "".join([message.get("content") or "" for message in said])}


BEDROCK_ENDS = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls",
                "max_tokens": "length", "guardrail_intervened": "content_filter"}  # fmt: skip


def read_bedrock(record: Record) -> Reading:
    read: Reading = {"text": "", "thinking": "", "signed": "", "cited": 0}
    calls: dict[int, list[Any]] = {}
    usage: dict[str, Any] = {}
    for body in bodies_of(record):
        for at, block in enumerate(bedrock_blocks(body)):
            cited = block.get("citationsContent", {})
            said = [part.get("text", "") for part in cited.get("content", ())]
            thought = block.get("reasoningContent", {})
            thought = thought.get("reasoningText", thought)
            read["text"] += block.get("text", "") + "".join(said)
            read["cited"] += len(cited.get("citations", ())) + ("citation" in block)
            read["thinking"] += thought.get("text", "")
            read["signed"] += thought.get("signature", "")
            at = block.get("at", at)
            call = block.get("toolUse") or {}
            if call.get("type") != "server_tool_use" and "name" in call:
                given = json.dumps(call["input"]) if "input" in call else ""
                calls[at] = [call["toolUseId"], call["name"], given]
            elif at in calls:
                calls[at][2] += call.get("input", "")
        end = body.get("messageStop", body)
        read |= {"end": BEDROCK_ENDS[end["stopReason"]]} if "stopReason" in end else {}
        usage = body.get("metadata", body).get("usage", usage)
    parts = ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
    asked = sum([usage.get(name) or 0 for name in parts]) if "inputTokens" in usage else None
    said = {"output_tokens": usage.get("outputTokens"), "total_tokens": usage.get("totalTokens")}
    return {**read, "calls": list(calls.values()), "usage": {"input_tokens": asked, **said}}


def bedrock_blocks(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks of a body, or the start or fragment of a block in an event."""
    if "output" in body:
        return list(body["output"]["message"]["content"])
    for name, key in (("contentBlockStart", "start"), ("contentBlockDelta", "delta")):
        if name in body:
            return [{**body[name][key], "at": body[name].get("contentBlockIndex")}]
    return []


COHERE_ENDS = {"COMPLETE": "stop", "STOP_SEQUENCE": "stop", "TOOL_CALL": "tool_calls",
               "MAX_TOKENS": "length", None: "stop"}  # fmt: skip


def read_cohere(record: Record) -> Reading:
    read: Reading = {"text": "", "thinking": "", "calls": [], "cited": 0}
    usage: dict[str, Any] = {}
    for body in bodies_of(record)[0 if record.is_events else -1 :]:
        body = body.get("response", body)  # the last line of version 1 of the API
        kind = body.get("type")
        delta = body.get("delta") or body
        message = delta.get("message") or delta
        parts = message.get("content") or ()
        for part in [parts] if isinstance(parts, dict) else parts:
            read["text"] += part.get("text", "")
            read["thinking"] += part.get("thinking", "")
        read["text"] += delta.get("text", "")
        read["thinking"] += message.get("tool_plan") or ""
        found = message.get("tool_calls") or ()
        for call in [found] if isinstance(found, dict) else found:
            given = call["function"]
            if kind == "tool-call-delta":
                read["calls"][-1][2] += given["arguments"]
            else:
                read["calls"].append([call["id"], given["name"], given["arguments"]])
        cited = message.get("citations") or ()
        for each in [cited] if isinstance(cited, dict) else cited:
            read["cited"] += len(each.get("sources") or each["document_ids"])
        if kind in (None, "message-end"):
            read["end"] = COHERE_ENDS.get(delta.get("finish_reason"), "error")
            usage = delta.get("usage") or delta.get("meta") or {}
    billed = usage.get("billed_units") or {}
    tokens = usage.get("tokens") or billed
    counts = {name: tokens.get(name) for name in ("input_tokens", "output_tokens")}
    counts |= {f"billed_{name}": billed.get(name) for name in ("input_tokens", "output_tokens")}
    return {**read, "usage": {**counts, "cached_input_tokens": usage.get("cached_tokens")}}


READERS = {
    "openai": read_openai,
    "responses": read_responses,
    "anthropic": read_anthropic,
    "gemini": read_gemini,
    "ollama": read_ollama,
    "bedrock": read_bedrock,
    "cohere": read_cohere,
}


def arguments_of(text: str) -> Any:
    try:
        value = json.loads(text) if text.strip() else {}
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def check_reading(record: Record, heard: DecodedReply) -> None:
    """Compare the decoded reply of a recording with an independent reading."""
    plain = READERS[record.wire](record)
    reply = heard.response
    if reply is None:
        assert heard.error is not None
        assert not plain["text"]
        return
    blocks = reply.message.content
    opaque = [block.data.get("type") for block in blocks if isinstance(block, Opaque)]
    states = [block.continuity for block in blocks if isinstance(block, Thinking)]
    found = {
        "text": reply.text,
        "thinking": reply.message.thinking,
        "end": reply.finish_reason if heard.error is None else plain.get("end"),
        "cited": sum([len(block.citations) for block in blocks if isinstance(block, Text)]),
        "signed": "".join([state.signature or "" for state in states if state is not None]),
        "native": sorted(map(str, [*opaque, *["image_generation_call"] * len(reply.images)])),
        "usage": {name: getattr(reply.usage, name) for name in plain.get("usage", ())},
    }
    assert {name: found[name] for name in plain if name != "calls"} == {
        name: value for name, value in plain.items() if name != "calls"
    }
    for call, (call_id, name, text) in zip(
        reply.tool_calls, plain.get("calls", ()), strict="calls" in plain
    ):
        # The reply was cut off before the arguments.
        missing = not text.strip() and heard.error is not None
        arguments = None if missing else arguments_of(text)
        assert call.id == (call_id or call.id)
        assert call.name == name
        assert call.arguments == arguments

"""Read scripts in YAML strictly; every error names file and line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..capabilities import Capabilities
from ..config import Section, plain, read_yaml
from ..events import Usage
from ..messages import Continuity, Text, Thinking
from .script import Answer, Call, Fault, RequestMatch, Said, Script, ScriptRule

_NUMBER = (int, float)
T = TypeVar("T")


def read_script(path: str | Path) -> Script:
    """Read a script; raise ``ConfigError`` with file and line of the first problem."""
    root = read_yaml(Path(path))
    root.allow("seed", "model", "models", "capabilities", "rules")
    if "rules" not in root.data:
        raise root.fail("a script needs rules")
    rules = [_read_rule(section) for section in root.inners("rules")]
    if not rules:
        raise root.fail("a script needs at least one rule", "rules")
    declared = root.section("capabilities")
    try:
        Capabilities.of(declared.plain())
    except ValueError as error:
        raise declared.fail(str(error)) from None
    return Script(
        rules,
        root.get("seed", int, 0),
        root.get("model", str, "sim"),
        root.texts("models") or (),
        declared.plain(),
    )


def _read_rule(section: Section) -> ScriptRule:
    section.allow("name", "match", "reply", "fault", "times", "chance")
    if "reply" not in section.data and "fault" not in section.data:
        raise section.fail("a rule needs a reply or a fault")
    match = _read_match(section.section("match"))
    fault = (
        _read_fault(section.section("fault")) if section.data.get("fault") is not None else None
    )
    return _build(
        section,
        ScriptRule,
        reply=_read_reply(section),
        match=match,
        fault=fault,
        times=section.get("times", int),
        chance=section.get("chance", _NUMBER, 1.0),
        name=section.get("name", str, section.where),
    )


def _read_match(section: Section) -> RequestMatch:
    kinds: dict[str, Any] = {
        "text": str, "pattern": str, "system": str, "tool_result": str, "tools": list,
        "model": str, "turn": int, "schema": bool, "stream": bool,
    }  # fmt: skip
    section.allow(*kinds)
    values = {name: section.get(name, kind) for name, kind in kinds.items()}
    return _build(section, RequestMatch, **{**values, "tools": section.texts("tools") or ()})


def _read_fault(section: Section) -> Fault:
    kinds: dict[str, Any] = {
        "status": int, "message": str, "code": str, "retry_after": _NUMBER, "error": str,
        "after": int,
        "stall": (int, float, str), "cut_at": int, "end_at": int, "garbage_at": int,
        "garbage": int,
        "duplicate": int, "interleave": bool, "drip": int, "pace": _NUMBER, "content_type": str,
        "body": str,
    }  # fmt: skip
    section.allow(*kinds)
    values = {
        name: section.get(name, kind)
        for name, kind in kinds.items()
        if section.data.get(name) is not None
    }
    if not values:
        raise section.fail("a fault needs at least one field")
    if isinstance(values.get("stall"), str):
        if values["stall"] != "forever":
            raise section.fail("must be a number of seconds or forever", "stall")
        values["stall"] = math.inf
    return _build(section, Fault, **values)


def _read_reply(section: Section) -> Answer:
    reply = section.data.get("reply")
    if reply is None or isinstance(reply, str):
        return Answer(reply or "")
    return _read_answer(section.section("reply"))


def _read_answer(section: Section) -> Answer:
    section.allow(
        "text", "json", "thinking", "tool_calls", "content", "usage", "finish", "stop_sequence",
        "delay", "pace", "piece",
    )  # fmt: skip
    text = section.get("text", str, "")
    if "json" in section.data:
        if text:
            raise section.fail("replaces text; give only one of them", "json")
        text = msgspec.json.encode(plain(section.data["json"])).decode()
    return _build(
        section,
        Answer,
        text=text,
        thinking=section.get("thinking", str, ""),
        tool_calls=[_read_call(each) for each in section.inners("tool_calls")],
        content=[_read_said(each) for each in section.inners("content")],
        usage=_read_usage(section),
        finish=section.get("finish", str),
        stop_sequence=section.get("stop_sequence", str),
        delay=section.get("delay", _NUMBER, 0),
        pace=section.get("pace", _NUMBER, 0),
        piece=section.get("piece", int),
    )


def _read_said(section: Section) -> Said:
    """Read a block: ``{text: ...}``, ``{thinking: ...}`` or ``{name: ..., arguments: ...}``."""
    if "name" in section.data:
        return _read_call(section)
    section.allow(*(("thinking", "signature") if "thinking" in section.data else ("text",)))
    if "thinking" in section.data:
        signature = section.get("signature", str)
        return Thinking(
            section.get("thinking", str, ""),
            Continuity(signature) if signature is not None else None,
        )
    if "text" not in section.data:
        raise section.fail("needs text, thinking, or the name of a tool")
    return Text(section.get("text", str, ""))


def _read_call(section: Section) -> Call:
    section.allow("name", "arguments", "id")
    name = section.get("name", str)
    if not name:
        raise section.fail("a call needs the name of a tool")
    arguments = section.get("arguments", (Section, str), {})
    return Call(
        name,
        arguments.plain() if isinstance(arguments, Section) else arguments,
        section.get("id", str),
    )


def _read_usage(section: Section) -> Usage | None:
    if "usage" not in section.data:
        return None
    counts = section.section("usage")
    names = [name for name in Usage.__struct_fields__ if name.endswith("_tokens")]
    counts.allow(*names)
    for name in counts.data:
        if counts.get(name, int, 0) < 0:
            raise counts.fail("must not be negative", name)
    return Usage(**counts.plain())


# --- building values with the line number of an error ------------------------------------------


def _build(section: Section, kind: type[T], **values: Any) -> T:
    """Build a value of type ``kind``; an error names the line of the invalid field."""
    try:
        return kind(**values)
    except ValueError as error:
        words = str(error)
        _, _, problem = words.partition(": ")
        name = problem.split(" ", 1)[0]
        if name in section.data:
            raise section.fail(problem.removeprefix(f"{name} "), name) from None
        raise section.fail(problem or words) from None

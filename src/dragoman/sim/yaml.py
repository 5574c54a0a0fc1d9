"""Read scripts in YAML strictly; every error names file and line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..capabilities import Capabilities
from ..events import Usage
from ..messages import Continuity, Text, Thinking
from ..validate.yaml import Section, plain, read_yaml
from .script import Answer, Call, Fault, RequestMatch, Said, Script, ScriptRule, check_day

T = TypeVar("T")


def read_script(path: str | Path) -> Script:
    """Read a script; raise ``ConfigError`` with file and line of the first problem."""
    root = read_yaml(Path(path))
    root.allow("seed", "model", "models", "capabilities", "rules", "strict", "vendor", "today")
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
        seed=root.get("seed", int, 0),
        model=root.get("model", str, "sim"),
        models=root.texts("models") or (),
        capabilities=declared.plain(),
        strict=root.get("strict", bool, False),
        vendor=root.get("vendor", str, None),
        today=_read_day(root),
    )


def _read_day(root: Section) -> str | None:
    day: str | None = root.get("today", str, None)
    try:
        check_day(day)
    except ValueError as error:
        raise root.fail(str(error), "today") from None
    return day


def _read_rule(section: Section) -> ScriptRule:
    values = {"name": section.where, **section.values(ScriptRule)}
    if "reply" not in section.data and "fault" not in section.data:
        raise section.fail("a rule needs a reply or a fault")
    match = section.section("match")
    fault = (
        _read_fault(section.section("fault")) if section.data.get("fault") is not None else None
    )
    return _build(
        section,
        ScriptRule,
        reply=_read_reply(section),
        match=_build(match, RequestMatch, **match.values(RequestMatch, without=["where"])),
        fault=fault,
        **values,
    )


def _read_fault(section: Section) -> Fault:
    if isinstance(stall := section.data.get("stall"), str):
        if stall != "forever":
            raise section.fail("must be a number of seconds or forever", "stall")
        section.put("stall", math.inf)
    values = section.values(Fault)
    if not values:
        raise section.fail("a fault needs at least one field")
    return _build(section, Fault, **values)


def _read_reply(section: Section) -> Answer:
    reply = section.data.get("reply")
    if reply is None or isinstance(reply, str):
        return Answer(reply or "")
    return _read_answer(section.section("reply"))


def _read_answer(section: Section) -> Answer:
    values = section.values(Answer, more=["json"])
    if "json" in section.data:
        if values.get("text"):
            raise section.fail("replaces text; give only one of them", "json")
        values["text"] = msgspec.json.encode(plain(section.data["json"])).decode()
    values |= {
        "tool_calls": [_read_call(each) for each in section.inners("tool_calls")],
        "content": [_read_said(each) for each in section.inners("content")],
        "usage": _read_usage(section),
    }
    return _build(section, Answer, **values)


def _read_said(section: Section) -> Said:
    """Read a block: ``{text: ...}``, ``{thinking: ...}`` or ``{name: ..., arguments: ...}``."""
    if "name" in section.data:
        return _read_call(section)
    if "thinking" in section.data:
        section.allow("thinking", "signature")
        signature = section.get("signature", str)
        return Thinking(
            section.get("thinking", str, ""),
            Continuity(signature) if signature is not None else None,
        )
    section.allow("text")
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

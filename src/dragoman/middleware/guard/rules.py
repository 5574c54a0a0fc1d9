"""A judge of rules: patterns in texts, and JSON Schemas for the arguments of tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct

from ...validate.fields import Fields
from ...validate.schema import Schema, compile_schema, first_error
from .subject import STAGES, Action, Stage, Subject, Verdict

NOTHING = Verdict("allow")


class _Rule(Struct, frozen=True):
    code: str
    action: Action
    stages: frozenset[Stage]
    tools: tuple[str, ...]
    forbidden: Schema | None  # which a text with the pattern violates
    arguments: Schema | None

    def applies(self, subject: Subject) -> bool:
        """Return whether the rule forbids a subject."""
        if subject.stage not in self.stages:
            return False
        if self.tools and not any(
            fnmatchcase(subject.tool_name or "", each) for each in self.tools
        ):
            return False
        if self.forbidden is not None:
            return first_error(self.forbidden, subject.text) is not None
        if self.arguments is not None:
            return first_error(self.arguments, subject.input) is not None
        return True


class Rules:
    """A judge that applies the first of its rules that fits; what no rule names is allowed.

    A rule is a mapping with ``code``, which records and errors have, and any of: ``pattern``, a
    regular expression that the text contains; ``schema``, a JSON Schema that the arguments of a
    tool call violate; ``tools``, patterns of the names of tools; ``on``, the stages of the rule;
    and ``action``, which is ``block`` by default. A rule with ``tools`` or ``schema`` is about
    tool calls.

    Patterns are matched by the engine that checks schemas, in time that is linear in the length of
    the text or limited. A text that is too long to be checked fits the rule.
    """

    name = "rules"

    def __init__(
        self, rules: Sequence[Mapping[str, Any] | Fields], *, version: str | None = None
    ) -> None:
        self.version = version
        self._rules = [
            _read_rule(rule if isinstance(rule, Fields) else Fields(rule, f"rules[{at}]"))
            for at, rule in enumerate(rules)
        ]

    async def __call__(self, subject: Subject) -> Verdict:
        for rule in self._rules:
            if rule.applies(subject):
                return Verdict(rule.action, code=rule.code)
        return NOTHING


def _read_rule(fields: Fields) -> _Rule:
    code = fields.need_text("code")
    action: Action = fields.choice("action", ("block", "flag", "allow")) or "block"
    pattern = fields.text("pattern")
    schema = fields.get("schema", dict)
    tools = fields.texts("tools") or ()
    default = ("intent",) if tools or schema is not None else STAGES
    stages: Any = fields.texts("on") or default
    for each in stages:
        if each not in STAGES:
            raise fields.fail(f"lists some of {', '.join(STAGES)}, not {each!r}", "on")
    if pattern is None and schema is None and not tools:
        raise fields.fail("a rule needs a pattern, a schema or tools")
    fields.done()
    forbidden = None
    if pattern is not None:
        forbidden = compile_schema({"not": {"pattern": pattern}}, fields.at("pattern"))
    arguments = None if schema is None else compile_schema(schema, fields.at("schema"))
    return _Rule(code, action, frozenset(stages), tools, forbidden, arguments)

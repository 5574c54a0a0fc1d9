"""Who may do what: rules over proposed actions, and somebody to ask where no rule answers.

::

    policy = Policy([
        Rule("allow", side_effect=["none", "read"]),
        Rule("allow", tool="bash", arguments={"command": "pytest*"}),
        Rule("deny", path=".git/**", reason="history is not edited by hand"),
    ])

Every rule that matches counts, in whatever order they stand: deny beats ask, ask beats allow. What no
rule is about is asked, and what nobody can be asked about is denied. Nothing here runs anything.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct, field
from msgspec.structs import force_setattr

from .log import SideEffect
from .registry.config import ConfigError, Section, read_yaml

__all__ = ["Action", "Approver", "Decision", "Gate", "Policy", "Proposal", "Rule", "Verdict"]

log = logging.getLogger("dragoman")

Action: TypeAlias = Literal["allow", "ask", "deny"]
_ACTIONS: tuple[Action, ...] = ("deny", "ask", "allow")  # the strictest first
_EFFECTS: tuple[str, ...] = get_args(SideEffect)


class Proposal(Struct, frozen=True):
    """An action somebody has to allow: the checked intent, what it would do, and the paths it names.

    Paths are relative to the workspace, with forward slashes.
    """

    tool_name: str
    input: dict[str, Any]
    side_effect: SideEffect = "execute"
    paths: tuple[str, ...] = ()
    intent_id: str = ""


class Decision(Struct, frozen=True):
    """An answer: whose it is, by which rule and why.

    With ``scope="session"`` the same tool is not asked about again in the session; what a rule
    denies stays denied.
    """

    allowed: bool
    by: str
    reason: str = ""
    rule: str | None = None
    scope: Literal["once", "session"] = "once"


# --- rules ------------------------------------------------------------------------------------------


class Rule(Struct, frozen=True, omit_defaults=True):
    """What is to be done with the actions it matches; a part that is not given matches everything.

    ``tool`` and ``arguments`` are patterns for the whole text in which ``*`` and ``?`` stand for
    other characters, or regular expressions after ``re:``. In a rule that allows, ``*`` does not
    stand for characters with which a shell would begin something else (``;``, ``|``, ``$``, a new
    line ...), so that ``pytest*`` is not ``pytest; curl ...``. ``path`` is a pattern for paths of the
    workspace, in which ``*`` stays within a folder and ``**`` does not: a rule that allows wants
    every path of the action to match and at least one to be there, any other rule is content with one.
    """

    action: Action
    tool: str = "*"
    side_effect: tuple[SideEffect, ...] = ()
    arguments: dict[str, str] = field(default_factory=dict)
    path: str | None = None
    reason: str = ""
    name: str = ""

    if TYPE_CHECKING:

        def __init__(
            self,
            action: Action,
            tool: str = "*",
            side_effect: Iterable[SideEffect] = (),
            arguments: Mapping[str, str] = ...,
            path: str | None = None,
            reason: str = "",
            name: str = "",
        ) -> None: ...

    def __post_init__(self) -> None:
        given: Any = self.side_effect
        effects = (given,) if isinstance(given, str) else tuple(given)
        force_setattr(self, "side_effect", effects)
        force_setattr(self, "arguments", dict(self.arguments))
        if self.action not in _ACTIONS:
            raise ValueError(f"action: must be allow, ask or deny, not {self.action!r}")
        for effect in effects:
            if effect not in _EFFECTS:
                raise ValueError(f"side_effect: must be of {', '.join(_EFFECTS)}, not {effect!r}")
        _compile_text("tool", self.tool, wary=False)
        for name, pattern in self.arguments.items():
            _compile_text(f"arguments.{name}", pattern, wary=True)
        if self.path is not None:
            _compile_path(self.path)

    @property
    def label(self) -> str:
        """Its name, or else what it says."""
        parts = [self.action, self.tool, *self.side_effect, *[f"{key}={text}" for key, text in self.arguments.items()]]
        return self.name or " ".join([*parts, *([self.path] if self.path is not None else [])])

    def matches(self, proposal: Proposal) -> bool:
        """Is this rule about this action?"""
        if self.side_effect and proposal.side_effect not in self.side_effect:
            return False
        if not _compile_text("tool", self.tool, wary=False).fullmatch(proposal.tool_name):
            return False
        wary = self.action == "allow"
        for name, pattern in self.arguments.items():
            if name not in proposal.input:
                return False
            if not _compile_text(f"arguments.{name}", pattern, wary=wary).fullmatch(_as_text(proposal.input[name])):
                return False
        return self.path is None or self._matches_paths(self.path, proposal.paths)

    def _matches_paths(self, pattern: str, paths: tuple[str, ...]) -> bool:
        found = [_compile_path(pattern).fullmatch(path) is not None for path in paths]
        return bool(found) and all(found) if self.action == "allow" else any(found)


_BEGINS_MORE = r";&|<>$`\\(){}\r\n"  # what lets one command line become two, in any shell


@lru_cache(maxsize=1024)
def _compile_text(name: str, pattern: str, *, wary: bool) -> re.Pattern[str]:
    if not isinstance(pattern, str):
        raise ValueError(f"{name}: must be text, not {type(pattern).__name__}")
    if pattern.startswith("re:"):
        try:
            return re.compile(pattern[3:], re.DOTALL)
        except re.error as error:
            raise ValueError(f"{name}: {pattern!r} is not a regular expression: {error}") from None
    other = f"[^{_BEGINS_MORE}]" if wary else "."
    pieces = {"*": other + "*", "?": other}
    return re.compile("".join([pieces.get(char) or re.escape(char) for char in pattern]), re.DOTALL)


@lru_cache(maxsize=1024)
def _compile_path(pattern: str) -> re.Pattern[str]:
    if not isinstance(pattern, str) or not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
        raise ValueError(f"path: must be a pattern below the workspace, without '..', not {pattern!r}")
    pieces = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    return re.compile("".join([pieces.get(part) or re.escape(part) for part in parts]), re.DOTALL)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()


# --- policies ---------------------------------------------------------------------------------------


class Verdict(Struct, frozen=True):
    """What the rules say of an action, which of them said it, and why."""

    action: Action
    rule: str | None = None
    reason: str = ""


class Policy:
    """Rules, and what becomes of an action no rule is about: ``ask``, or ``deny``; it is never allowed."""

    def __init__(self, rules: Iterable[Rule] = (), default: Literal["ask", "deny"] = "ask") -> None:
        self.rules = tuple(rules)
        self.default: Literal["ask", "deny"] = default
        for at, rule in enumerate(self.rules):
            if not isinstance(rule, Rule):
                raise ValueError(f"rules[{at}]: must be a Rule, not {type(rule).__name__}")
        if default not in ("ask", "deny"):
            raise ValueError(f"default: must be ask or deny, not {default!r}; write a rule to allow something")

    def judge(self, proposal: Proposal) -> Verdict:
        """The strictest of the rules that match."""
        found = [rule for rule in self.rules if rule.matches(proposal)]
        for action in _ACTIONS:
            for rule in found:
                if rule.action == action:
                    return Verdict(action, rule.label, rule.reason)
        return Verdict(self.default, None, "no rule is about this")

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Read rules from a YAML or JSON file; ``ConfigError`` names the line of what is wrong.

        ::

            default: deny
            rules:
              - {action: allow, side_effect: [none, read]}
              - {action: ask, tool: edit_file, path: "src/**", reason: changes are looked at}
        """
        root = read_yaml(Path(path))
        root.allow("default", "rules")
        default = root.get("default", str, "ask")
        if default not in ("ask", "deny"):
            raise root.fail("must be ask or deny; write a rule to allow something", "default")
        return cls([_read_rule(root, at, item) for at, item in enumerate(root.get("rules", list, []))], default)

    def __repr__(self) -> str:
        return f"Policy({len(self.rules)} rules, default={self.default!r})"


def _read_rule(root: Section, at: int, item: Any) -> Rule:
    if not isinstance(item, Section):
        raise root.fail(f"rules[{at}]: must be a mapping with an action", "rules")
    item.name = f"rules[{at}]"
    item.allow("action", "tool", "side_effect", "arguments", "path", "reason", "name")
    if item.get("action", str) is None:
        raise item.fail("is missing: allow, ask or deny", "action")
    effects = item.data.get("side_effect")
    try:
        return Rule(
            item.get("action", str),
            item.get("tool", str, "*"),
            (effects,) if isinstance(effects, str) else item.texts("side_effect"),  # type: ignore[arg-type]
            item.section("arguments").plain(),
            item.get("path", str),
            item.get("reason", str, ""),
            item.get("name", str, ""),
        )
    except ConfigError:
        raise
    except ValueError as error:
        key, _, problem = str(error).partition(": ")
        raise item.fail(problem, key) from None


# --- asking -----------------------------------------------------------------------------------------

Approver: TypeAlias = Callable[[Proposal, Verdict], "bool | Decision | Awaitable[bool | Decision]"]
"""Somebody to ask: ``True`` or a ``Decision``. One that waits for a person is a coroutine function."""


class Gate:
    """A policy and somebody to ask, for one session."""

    def __init__(self, policy: Policy, approve: Approver | None = None) -> None:
        self.policy = policy
        self._approve = approve
        self._granted: dict[str, Decision] = {}
        self._asking = asyncio.Lock()  # a person answers one question at a time

    def settle(self, proposal: Proposal) -> tuple[Verdict, Decision | None]:
        """What the rules say, and the decision where they, or an earlier answer, suffice for one."""
        verdict = self.policy.judge(proposal)
        if verdict.action != "ask":
            return verdict, Decision(verdict.action == "allow", "policy", verdict.reason, verdict.rule)
        earlier = self._granted.get(proposal.tool_name)
        return verdict, earlier

    async def ask(self, proposal: Proposal, verdict: Verdict) -> Decision:
        """Have somebody decide. No answer, and an answer that is not a clear yes, is a no."""
        if self._approve is None:
            return Decision(False, "nobody", "there is nobody to ask", verdict.rule)
        async with self._asking:
            earlier = self._granted.get(proposal.tool_name)  # given while this one waited
            decision = earlier or await self._hear(self._approve, proposal, verdict)
        if decision.allowed and decision.scope == "session":
            self._granted.setdefault(proposal.tool_name, decision)
        return decision

    async def _hear(self, approve: Approver, proposal: Proposal, verdict: Verdict) -> Decision:
        try:
            answer: Any = approve(proposal, verdict)
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception as error:
            log.warning("asking about %s failed: %s", proposal.tool_name, type(error).__name__)
            return Decision(False, "nobody", f"asking failed: {type(error).__name__}", verdict.rule)
        if isinstance(answer, Decision):
            return answer
        return Decision(answer is True, "user", "" if answer is True else "not allowed", verdict.rule)

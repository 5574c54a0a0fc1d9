"""Permission: rules for proposed actions, and an approver to ask when no rule decides.

Box: agent.

::

    policy = Policy([
        Rule("allow", side_effect=["none", "read"]),
        Rule("allow", tool="bash", arguments={"command": "pytest *"}),
        Rule("deny", path="secrets/**", reason="not for models"),
    ])

Every rule that matches counts, in any order: deny overrides ask, ask overrides allow. A proposal
that no rule matches goes to the approver; without an approver it is denied. This module only
decides: it never runs a tool.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from ..log import SideEffect
from ..validate.yaml import ConfigError, Section, read_yaml
from .patterns import EMPTY, SEPARATORS, check_text, compile_path, compile_text
from .shell import read_command_line

__all__ = [
    "Action", "Approver", "Decision", "Gate", "Policy", "Proposal", "Rule", "Scope", "Verdict",
    "Withheld", "ask", "find_prefix",
]  # fmt: skip

log = logging.getLogger("dragoman")

Action: TypeAlias = Literal["allow", "ask", "deny"]
_ACTIONS: tuple[Action, ...] = ("deny", "ask", "allow")  # the actions of rules, strictest first
_EFFECTS: tuple[str, ...] = get_args(SideEffect)


class Proposal(Struct, frozen=True, kw_only=True):
    """An action that needs permission: the validated intent, its side effect and its paths.

    Paths are relative to the workspace, with forward slashes. ``session`` is the id of the session
    that asks. An ``attempt`` above 1 means that the call was interrupted and would run again.
    """

    tool_name: str
    input: dict[str, Any]
    side_effect: SideEffect = "execute"
    paths: tuple[str, ...] = ()
    intent_id: str = ""
    session: str = ""
    attempt: int = 1


Scope: TypeAlias = Literal["once", "session", "path", "prefix"]


class _Answer(Struct, frozen=True):
    allowed: bool
    by: str


class Decision(_Answer, frozen=True, omit_defaults=True, kw_only=True):
    """A permission decision: who made it, by which rule, and why.

    ``input`` replaces the proposed input. It is validated in the same way, and both inputs are
    recorded.

    ``scope`` defines which later calls of the tool in this session are allowed without asking
    again: none (``once``), all (``session``), those with the same paths (``path``), or commands
    that begin with the same words (``prefix``). The field ``prefix`` has these words; the default
    is the first word of the command. A later call that a rule denies is still denied, and one that
    a further rule asks about is still asked about. ``rests_on`` is the intent whose answer allowed
    a call without asking.
    """

    reason: str = ""
    rule: str | None = None
    scope: Scope = "once"
    prefix: str | None = None
    input: dict[str, Any] | None = None
    rests_on: str | None = None


# --- permission rules --------------------------------------------------------------------------


class _Effect(Struct, frozen=True):
    action: Action
    tool: str = "*"


class Rule(_Effect, frozen=True, omit_defaults=True, kw_only=True):
    """A rule: an action, and the conditions under which it applies to a proposal.

    A condition that is omitted always holds. ``tool`` and ``arguments`` are patterns for the
    complete string: ``*`` matches any characters and ``?`` one character, a final ``" *"`` matches
    nothing or further words, and a pattern after ``re:`` is a regular expression. In a rule that
    allows, neither ``*`` nor ``re:`` matches the characters with which a shell starts another
    command (``;``, ``|``, ``$``, a new line ...), so ``pytest *`` does not match ``pytest; curl
    ...``. ``path`` is a pattern for paths of the workspace, in which ``*`` stays within a folder
    and ``**`` does not. A rule that allows requires every path of the proposal to match, and at
    least one path; any other rule requires one match and ignores letter case.

    An empty condition is an error: an unset variable must not match everything.
    """

    side_effect: tuple[SideEffect, ...] | None = None
    arguments: dict[str, str] | None = None
    path: str | None = None
    reason: str = ""
    name: str = ""

    if TYPE_CHECKING:

        def __init__(
            self,
            action: Action,
            tool: str = "*",
            *,
            side_effect: SideEffect | Iterable[SideEffect] | None = None,
            arguments: Mapping[str, str] | None = None,
            path: str | None = None,
            reason: str = "",
            name: str = "",
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.action not in _ACTIONS:
            raise ValueError(f"action: must be allow, ask or deny, not {self.action!r}")
        given: Any = self.side_effect
        if given is not None:
            force_setattr(
                self, "side_effect", (given,) if isinstance(given, str) else tuple(given)
            )
        for part in ("tool", "side_effect", "arguments", "path"):
            if getattr(self, part) is not None and not getattr(self, part):
                raise ValueError(f"{part}: {EMPTY}")
        for effect in self.side_effect or ():
            if effect not in _EFFECTS:
                raise ValueError(f"side_effect: must be of {', '.join(_EFFECTS)}, not {effect!r}")
        check_text("tool", self.tool, wary=False)
        if self.arguments is not None:
            force_setattr(self, "arguments", dict(self.arguments))
        for name, pattern in (self.arguments or {}).items():
            check_text(f"arguments.{name}", pattern, wary=True)
        if self.path is not None:
            compile_path(self.path)

    @property
    def label(self) -> str:
        """Return the name of the rule, or its action and conditions if it has no name."""
        arguments = [f"{key}={text}" for key, text in (self.arguments or {}).items()]
        parts = [self.action, self.tool, *(self.side_effect or ()), *arguments]
        if self.path is not None:
            parts.append(self.path)
        return self.name or " ".join(parts)

    def matches(self, proposal: Proposal) -> bool:
        """Return whether this rule applies to a proposal."""
        if not self.is_about(proposal.tool_name, proposal.side_effect):
            return False
        wary = self.action == "allow"
        for name, pattern in (self.arguments or {}).items():
            if name not in proposal.input:
                return False
            text = _as_text(proposal.input[name])
            if wary and pattern.startswith("re:") and not set(SEPARATORS).isdisjoint(text):
                return False
            if not compile_text(f"arguments.{name}", pattern, wary=wary).fullmatch(text):
                return False
        return self.path is None or self._matches_paths(self.path, proposal.paths)

    def is_about(self, tool_name: str, side_effect: SideEffect) -> bool:
        """Return whether this rule can apply to a tool's calls, for some arguments and paths."""
        if self.side_effect is not None and side_effect not in self.side_effect:
            return False
        return bool(compile_text("tool", self.tool, wary=False).fullmatch(tool_name))

    def _matches_paths(self, pattern: str, paths: tuple[str, ...]) -> bool:
        if self.action == "allow":
            return bool(paths) and all(compile_path(pattern).fullmatch(path) for path in paths)
        # On some file systems .GIT/config is .git/config, so a denial must ignore letter case.
        folded = compile_path(pattern.casefold())
        return any(folded.fullmatch(path.casefold()) for path in paths)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()


# --- permission policies -----------------------------------------------------------------------


class Verdict(Struct, frozen=True):
    """The result of the rules for an action, the deciding rule, and its reason."""

    action: Action
    rule: str | None = None
    reason: str = ""


class Withheld(Protocol):
    """Decide whether a call must hide a path, or a path that it would use with another effect."""

    def __call__(self, path: str, side_effect: SideEffect | None = None, /) -> bool: ...


class Policy:
    """Rules, and the default for an action that no rule matches: ``ask`` or ``deny``."""

    def __init__(
        self, rules: Iterable[Rule] = (), default: Literal["ask", "deny"] = "ask"
    ) -> None:
        self.rules = tuple(rules)
        self.default: Literal["ask", "deny"] = default
        for at, rule in enumerate(self.rules):
            if not isinstance(rule, Rule):
                raise ValueError(f"rules[{at}]: must be a Rule, not {type(rule).__name__}")
        if default not in ("ask", "deny"):
            raise ValueError(
                f"default: must be ask or deny, not {default!r}; write a rule to allow something"
            )

    def judge(self, proposal: Proposal) -> Verdict:
        """Return the result of the strictest rule that matches.

        The commands of a command line are judged one by one too. A rule that denies or asks about
        one of them decides; a line of simple commands is allowed if each of them is.
        """
        whole = self._find(proposal)
        commands, is_plain = _split(proposal)
        if whole is not None and whole.action == "deny":
            return whole
        found = [self._find(each) for each in commands]
        strict = [each for each in found if each is not None and each.action != "allow"]
        if strict or (whole is not None and whole.action == "ask"):
            return min([*strict, *([whole] if whole else [])], key=_strictness)
        if whole is not None:
            return whole
        allowed = [each for each in found if each is not None]
        if is_plain and len(allowed) == len(commands):
            names = dict.fromkeys([each.rule for each in allowed if each.rule is not None])
            return Verdict("allow", ", ".join(names), "each command of the line is allowed")
        return Verdict(self.default, None, "no rule matches")

    def _find(self, proposal: Proposal) -> Verdict | None:
        found = [rule for rule in self.rules if rule.matches(proposal)]
        for action in _ACTIONS:
            for rule in found:
                if rule.action == action:
                    return Verdict(action, rule.label, rule.reason)
        return None

    def narrow(self, outer: Policy) -> Policy:
        """Return a policy that allows only what both policies allow; the stricter verdict counts."""
        return _NarrowedPolicy(self, outer)

    def find_asking(self, proposal: Proposal) -> frozenset[int]:
        """Return the positions of the rules that ask about a proposal."""
        asked = [proposal, *_split(proposal)[0]]
        return frozenset(
            [
                at
                for at, rule in enumerate(self.rules)
                if rule.action == "ask" and any(rule.matches(each) for each in asked)
            ]
        )

    def withheld(self, proposal: Proposal) -> Withheld | None:
        """Return a function that decides whether an allowed call must hide a path.

        It can also be asked about another side effect than that of the proposal.

        A tool that walks a folder names only the folder in its proposal. Each path that the tool
        then finds is checked against the rules that have a path and deny or ask. Rules that match
        the proposal itself are skipped, because they were already applied to the call. The result
        is ``None`` if no rule can hide a path.
        """
        strict = [rule for rule in self.rules if rule.path is not None and rule.action != "allow"]
        open_rules = [rule for rule in strict if not rule.matches(proposal)]
        if not open_rules:
            return None

        def is_withheld(path: str, side_effect: SideEffect | None = None) -> bool:
            effect = side_effect or proposal.side_effect
            named = replace(proposal, paths=(path,), side_effect=effect)
            return any(rule.matches(named) for rule in open_rules)

        return is_withheld

    def find_idle(self, tools: Iterable[tuple[str, SideEffect, bool]]) -> list[Rule]:
        """Return the rules whose path can never match, because their tools never name paths.

        An item of ``tools`` is a name, a side effect, and whether calls of the tool name paths.
        """
        known = list(tools)
        return [
            rule
            for rule in self.rules
            if rule.path is not None
            and not any(rule.is_about(*tool[:2]) and tool[2] for tool in known)
        ]

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Read rules from a YAML or JSON file; ``ConfigError`` names the line of an error.

        ::

            default: deny
            rules:
              - {action: allow, side_effect: [none, read]}
              - {action: ask, tool: edit_file, path: "src/**", reason: changes are reviewed}
        """
        root = read_yaml(Path(path))
        root.allow("default", "rules")
        default = root.get("default", str, "ask")
        if default not in ("ask", "deny"):
            raise root.fail("must be ask or deny; write a rule to allow something", "default")
        return cls([_read_rule(item) for item in root.inners("rules")], default)

    def describe(self) -> dict[str, Any]:
        """Return the rules and the default as plain data, as in a file that ``load`` reads."""
        rules = [msgspec.to_builtins(rule) for rule in self.rules]
        return {"default": self.default, "rules": rules}

    def __repr__(self) -> str:
        return f"Policy({len(self.rules)} rules, default={self.default!r})"


class _NarrowedPolicy(Policy):
    """Two policies, of which the stricter verdict counts."""

    def __init__(self, inner: Policy, outer: Policy) -> None:
        super().__init__((*inner.rules, *outer.rules))
        self._both = inner, outer

    def describe(self) -> dict[str, Any]:
        return {**self._both[0].describe(), "within": self._both[1].describe()}

    def judge(self, proposal: Proposal) -> Verdict:
        return min([policy.judge(proposal) for policy in self._both], key=_strictness)


def _strictness(verdict: Verdict) -> int:
    return _ACTIONS.index(verdict.action)


def _split(proposal: Proposal) -> tuple[list[Proposal], bool]:
    """Return a proposal for each command of a command line, and whether the line runs just these."""
    text = proposal.input.get("command")
    if proposal.side_effect != "execute" or not isinstance(text, str):
        return [], False
    line = read_command_line(text)
    if line is None:
        return [], False
    inputs = [{**proposal.input, "command": each} for each in line.commands]
    return [replace(proposal, input=each) for each in inputs], line.is_plain


def _read_rule(item: Section) -> Rule:
    item.allow("action", "tool", "side_effect", "arguments", "path", "reason", "name")
    for key, value in item.data.items():
        if (value.data if isinstance(value, Section) else value) in (None, "", [], {}):
            raise item.fail(EMPTY, key)
    if item.get("action", str) is None:
        raise item.fail("is missing: allow, ask or deny", "action")
    effects = item.data.get("side_effect")
    try:
        return Rule(
            item.get("action", str),
            tool=item.get("tool", str, "*"),
            side_effect=(effects,)
            if isinstance(effects, str)
            else item.texts("side_effect") or None,  # type: ignore[arg-type]
            arguments=item.section("arguments").plain() or None,
            path=item.get("path", str),
            reason=item.get("reason", str, ""),
            name=item.get("name", str, ""),
        )
    except ConfigError:
        raise
    except ValueError as error:
        key, _, problem = str(error).partition(": ")
        raise item.fail(problem, key) from None


# --- approvals, and the calls that they cover --------------------------------------------------

Approver: TypeAlias = Callable[[Proposal, Verdict], "bool | Decision | Awaitable[bool | Decision]"]
"""A callback that decides about a proposal: it returns ``True``, ``False`` or a ``Decision``.

To wait for a person, use a coroutine function. To change the input, return a ``Decision``.
"""


async def ask(approve: Approver | None, proposal: Proposal, verdict: Verdict) -> Decision:
    """Ask an approver and return its answer as a decision. Without an approver, deny."""
    if approve is None:
        return Decision(False, "nobody", reason="there is no approver to ask", rule=verdict.rule)
    answer: Any = approve(proposal, verdict)
    if inspect.isawaitable(answer):
        answer = await answer
    if isinstance(answer, Decision):
        return answer
    reason = "" if answer is True else "not allowed"
    return Decision(answer is True, "user", reason=reason, rule=verdict.rule)


class _Grant(Struct, frozen=True, kw_only=True):
    """The permission that a decision grants for the rest of the session.

    It covers calls that no rule asks about, and those that only the ``asking`` rules ask about,
    which asked about the call that the decision is on.
    """

    decision: Decision
    tool_name: str
    asking: frozenset[int]
    paths: frozenset[str] | None = None
    prefix: str | None = None

    @classmethod
    def of(cls, decision: Decision, proposal: Proposal, asking: frozenset[int]) -> _Grant | None:
        """Return the permission that a decision grants for later calls.

        Return ``None`` if the decision denies the call, applies to this call only, or has a scope
        that cannot apply to the call.
        """
        # an edited input applies to one call only
        kept = replace(decision, input=None, rests_on=proposal.intent_id)
        name = proposal.tool_name
        if not decision.allowed or decision.scope == "once":
            return None
        if decision.scope == "session":
            return cls(decision=kept, tool_name=name, asking=asking)
        if decision.scope == "path":
            paths = frozenset(proposal.paths)
            if not paths:
                return None
            return cls(decision=kept, tool_name=name, asking=asking, paths=paths)
        prefix = find_prefix(proposal.input, decision.prefix)
        if prefix is None:
            return None
        kept = replace(kept, prefix=prefix)
        return cls(decision=kept, tool_name=name, asking=asking, prefix=prefix)

    def covers(self, proposal: Proposal, asking: frozenset[int]) -> bool:
        if proposal.tool_name != self.tool_name or not asking <= self.asking:
            return False
        if self.paths is not None:
            return bool(proposal.paths) and self.paths.issuperset(proposal.paths)
        return self.prefix is None or find_prefix(proposal.input, self.prefix) is not None


def find_prefix(given: Mapping[str, Any], prefix: str | None = None) -> str | None:
    """Return ``prefix``, by default the first word of the command, with single spaces.

    The result is ``None`` if the command does not begin with the words of ``prefix``, or contains
    a second command.
    """
    command = given.get("command")
    words = command.split() if isinstance(command, str) else []
    prefix = " ".join(words[:1]) if prefix is None else " ".join(prefix.split())
    if not prefix or not isinstance(command, str) or not set(SEPARATORS).isdisjoint(command):
        return None
    return prefix if words[: len(prefix.split())] == prefix.split() else None


class Gate:
    """Decide on the proposals of one session, with a policy and an approver."""

    def __init__(self, policy: Policy, approve: Approver | None = None) -> None:
        self.policy = policy
        self._approve = approve
        self._granted: list[_Grant] = []
        self._asking = asyncio.Lock()  # the approver is asked one question at a time

    def settle(self, proposal: Proposal) -> tuple[Verdict, Decision | None]:
        """Return the result of the rules, and a decision unless the approver must be asked."""
        verdict = self.policy.judge(proposal)
        if verdict.action != "ask":
            return verdict, Decision(
                verdict.action == "allow", "policy", reason=verdict.reason, rule=verdict.rule
            )
        return verdict, self._find_earlier(proposal)

    async def ask(self, proposal: Proposal, verdict: Verdict, *, once: bool = False) -> Decision:
        """Ask the approver. No answer, or anything other than a clear yes, counts as no.

        With ``once``, no other decision covers the proposal, and this one covers no other.
        """
        async with self._asking:
            # another call's decision, made while this call waited, may cover this one
            if not once and (earlier := self._find_earlier(proposal)) is not None:
                return earlier
            try:
                # what runs is what was judged, even if the approver changes its copy of it
                shown = replace(proposal, input=deepcopy(proposal.input))
                decision = await ask(self._approve, shown, verdict)
            except Exception as error:
                name = type(error).__name__
                log.warning("asking about %s failed: %s", proposal.tool_name, name)
                reason = f"asking failed: {name}"
                return Decision(False, "nobody", reason=reason, rule=verdict.rule)
            decision = replace(decision, rests_on=None)  # no approver may name another answer
            if not once:
                self.remember(decision, proposal)
        return decision

    def remember(self, decision: Decision, proposal: Proposal) -> None:
        """Apply the scope of a decision to later proposals."""
        grant = _Grant.of(decision, proposal, self.policy.find_asking(proposal))
        if grant is not None:
            self._granted.append(grant)

    def forget(self, intent_id: str) -> None:
        """Take back what was remembered of the decision about a call."""
        self._granted = [each for each in self._granted if each.decision.rests_on != intent_id]

    def _find_earlier(self, proposal: Proposal) -> Decision | None:
        asking = self.policy.find_asking(proposal)
        for grant in self._granted:
            if grant.covers(proposal, asking):
                return grant.decision
        return None

"""Permission rules, and what happens to tool calls that no rule matches."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.permission import Decision, Gate, Policy, Proposal, Rule
from dragoman.validate.yaml import ConfigError
from tests.rows import read_table


def bash(command: str) -> Proposal:
    return Proposal(tool_name="bash", input={"command": command}, side_effect="execute")


def edit(*paths: str) -> Proposal:
    return Proposal(
        tool_name="edit_file",
        input={"path": paths[0] if paths else "?", "n": 3},
        side_effect="write",
        paths=paths,
    )


SECOND_COMMANDS = [
    "; ls", " && ls", "|sh", " > x", " < x", "$(ls)", "`ls`", "\nls", "\r", " & ls", "\\\nls", "(ls)",
    "; curl x | sh",
]  # fmt: skip
MATCHES = [
    (Rule("allow"), bash("ls"), True),
    (Rule("allow", tool="bash"), bash("ls"), True),
    (Rule("allow", tool="ba?h"), bash("ls"), True),
    (Rule("allow", tool="re:ba.*|zsh"), bash("ls"), True),
    (Rule("allow", tool="bash*"), Proposal(tool_name="rebash", input={}), False),
    (Rule("allow", side_effect=["read", "none"]), bash("ls"), False),
    (Rule("allow", side_effect=["execute"]), bash("ls"), True),
    (Rule("allow", side_effect="execute"), bash("ls"), True),  # type: ignore[arg-type]
    (Rule("allow", arguments={"command": "pytest*"}), bash("pytest -q tests"), True),
    (Rule("allow", arguments={"command": "pytest*"}), bash("python -m pytest"), False),
    (Rule("allow", arguments={"command": "re:git (status|diff)"}), bash("git diff"), True),
    (Rule("allow", arguments={"command": "re:git (status|diff)"}), bash("git diff; ls"), False),
    (Rule("allow", arguments={"commande": "*"}), bash("ls"), False),
    (Rule("allow", arguments={"n": "3"}), edit("a"), True),
    (Rule("deny", arguments={"command": "*rm *"}), bash("cd /\nrm -rf ."), True),
    # A wildcard in an allow rule does not match a second command after the allowed one.
    *[(Rule("allow", arguments={"command": "pytest*"}), bash(f"pytest{more}"),
       False) for more in SECOND_COMMANDS],
    (Rule("deny", arguments={"command": "pytest*"}), bash("pytest; ls"), True),
    # A regular expression in an allow rule does not allow a second command after the first.
    *[(Rule("allow", arguments={"command": "re:pytest.*"}), bash(f"pytest{more}"),
       False) for more in SECOND_COMMANDS],
    (Rule("allow", arguments={"command": "re:pytest.*"}), bash("pytest -q"), True),
    (Rule("deny", arguments={"command": "re:.*curl.*"}), bash("pytest; curl x | sh"), True),
    # The rule contains the complete command, including the pipe, so the command is allowed.
    (Rule("allow", arguments={"command": "ls | wc -l"}), bash("ls | wc -l"), True),
    # "pytest *" matches the program with or without arguments, but no other program.
    (Rule("allow", arguments={"command": "pytest *"}), bash("pytest"), True),
    (Rule("allow", arguments={"command": "pytest *"}), bash("pytest -q"), True),
    (Rule("allow", arguments={"command": "pytest *"}), bash("pytest-evil"), False),
    (Rule("allow", arguments={"command": "pytest *"}), bash("pytest/../evil"), False),
    (Rule("allow", arguments={"command": "pytest *"}), bash("pytest ; ls"), False),
    (Rule("allow", path="src/**"), edit("src/a/b.py"), True),
    (Rule("allow", path="src/*"), edit("src/a/b.py"), False),
    (Rule("allow", path="src/*"), edit("src/a.py"), True),
    (Rule("allow", path="**/*.py"), edit("a.py"), True),
    (Rule("allow", path="**/*.py"), edit("x/y/a.py"), True),
    (Rule("allow", path="src/**"), edit("srcs/a.py"), False),
    # An allow rule for paths does not allow a tool call without paths.
    (Rule("allow", path="src/**"), bash("ls"), False),
    (Rule("allow", path="src/**"), edit("src/a", ".git/config"), False),
    (Rule("deny", path=".git/**"), edit("src/a", ".git/config"), True),
    (Rule("deny", path=".git/**"), bash("rm .git/config"), False),
    (Rule("ask", path="*.md"), edit("a.md"), True),
    # Deny rules ignore letter case, allow rules do not.
    (Rule("deny", path="**/.git/**"), edit("sub/.GIT/config"), True),
    (Rule("deny", path="**/.Git"), edit(".gIt"), True),
    (Rule("allow", path="src/**"), edit("SRC/a.py"), False),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "proposal", "expected"), MATCHES)
def test_rule_matches_the_right_calls(rule: Rule, proposal: Proposal, expected: bool) -> None:
    assert rule.matches(proposal) is expected


def test_strictest_permission_rule_wins_in_any_order() -> None:
    rules = [
        Rule("allow", name="all"),
        Rule("ask", tool="bash", name="shell"),
        Rule("deny", path=".git/**", name="git"),
    ]
    for order in (rules, rules[::-1]):
        policy = Policy(order)
        assert policy.judge(Proposal(tool_name="look", input={})).action == "allow"
        assert policy.judge(bash("ls")).rule == "shell"
        assert policy.judge(edit(".git/x")).action == "deny"


def test_tool_call_that_no_rule_matches_needs_approval_or_is_denied() -> None:
    assert Policy().judge(bash("ls")).action == "ask"
    assert Policy(default="deny").judge(bash("ls")).action == "deny"


words = st.sampled_from(["bash", "edit", "look", "*", "b*"])
effects = st.none() | st.lists(
    st.sampled_from(["none", "read", "write", "execute", "network"]), min_size=1
)
paths = st.sampled_from([None, "**", "src/**", ".git/*"])
rules = st.builds(
    Rule, st.sampled_from(["allow", "ask", "deny"]), words, side_effect=effects, path=paths
)
proposals = st.builds(
    Proposal,
    tool_name=st.sampled_from(["bash", "edit", "look"]),
    input=st.just({}),
    side_effect=st.sampled_from(["none", "read", "write", "execute", "network"]),
    paths=st.lists(st.sampled_from(["src/a", ".git/x", "b"]), max_size=2).map(tuple),
)
STRICTNESS = ("allow", "ask", "deny")


@given(st.lists(rules, max_size=4), rules, proposals)
def test_only_allow_rules_can_relax(before: list[Rule], more: Rule, proposal: Proposal) -> None:
    old = Policy(before).judge(proposal)
    new = Policy([*before, more]).judge(proposal)
    if more.action != "allow":
        assert STRICTNESS.index(new.action) >= STRICTNESS.index(old.action) or old.rule is None
    assert Policy([more, *before]).judge(proposal).action == new.action
    if new.action == "allow":
        assert any(rule.action == "allow" and rule.matches(proposal) for rule in [*before, more])


def test_path_rules_that_never_match_are_found() -> None:
    tools = [("read_file", "read", True), ("edit_file", "write", True), ("bash", "execute", False)]
    fetch = ("fetch", "execute", False)
    idle = [
        Rule("deny", tool="fetch", path="secrets/**"),
        Rule("deny", side_effect=["execute"], path="x/**"),
    ]
    used = [
        Rule("deny", path="secrets/**"),
        Rule("deny", tool="edit_*", path="x"),
        Rule("deny", tool="fetch"),
    ]
    assert Policy([*idle, *used]).find_idle([*tools, fetch]) == idle  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [
        *read_table("invalid_rules"),
        ({"action": "allow", "side_effect": iter(())}, "side_effect: is empty"),
    ],
)
def test_invalid_rule_is_rejected_with_its_field(facts: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Rule(**facts)


def test_permission_policy_that_allows_by_default_is_rejected() -> None:
    with pytest.raises(ValueError, match="default: must be ask or deny"):
        Policy(default="allow")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"rules\[0\]: must be a Rule, not str"):
        Policy(["allow"])  # type: ignore[list-item]


GOOD = """\
default: deny
rules:
  - {action: allow, side_effect: [none, read]}
  - action: ask
    tool: edit_file
    path: "src/**"
    reason: changes are looked at
  - {action: allow, side_effect: network, name: net}
  - {action: allow, tool: bash, arguments: {command: "pytest*"}, name: tests}
"""


def test_permission_rules_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD)
    policy = Policy.load(path)
    assert policy.default == "deny"
    assert policy.rules == (
        Rule("allow", side_effect=["none", "read"]),
        Rule("ask", tool="edit_file", path="src/**", reason="changes are looked at"),
        Rule("allow", side_effect=["network"], name="net"),
        Rule("allow", tool="bash", arguments={"command": "pytest*"}, name="tests"),
    )
    as_json = tmp_path / "policy.json"
    as_json.write_text('{"rules": [{"action": "allow", "tool": "look"}]}')
    assert Policy.load(as_json).rules == (Rule("allow", tool="look"),)


@pytest.mark.parametrize(("text", "complaint"), read_table("invalid_rule_files"))
def test_invalid_rule_file_is_rejected(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        Policy.load(path)


async def decide(gate: Gate, proposal: Proposal) -> Decision:
    verdict, decision = gate.settle(proposal)
    return decision if decision is not None else await gate.ask(proposal, verdict)


async def test_matching_permission_rule_decides_without_the_approver() -> None:
    def never(*_: object) -> bool:
        raise AssertionError("asked")

    gate = Gate(
        Policy(
            [
                Rule("allow", tool="look", name="a"),
                Rule("deny", tool="bash", reason="no", name="d"),
            ]
        ),
        never,
    )
    assert await decide(gate, Proposal(tool_name="look", input={})) == Decision(
        True, "policy", reason="", rule="a"
    )
    assert await decide(gate, bash("ls")) == Decision(False, "policy", reason="no", rule="d")


async def test_tool_call_is_denied_without_an_approver() -> None:
    assert await decide(Gate(Policy()), bash("ls")) == Decision(
        False, "nobody", reason="there is no approver to ask"
    )


async def _later(answer: Any) -> Any:
    await asyncio.sleep(0)
    return answer


ANSWERS: list[tuple[Any, bool, str]] = [
    (lambda p, v: True, True, "user"),
    (lambda p, v: False, False, "user"),
    (lambda p, v: None, False, "user"),
    (lambda p, v: "yes", False, "user"),  # of all return values only True approves the call
    (lambda p, v: 1, False, "user"),
    (lambda p, v: Decision(True, "ann", reason="fine"), True, "ann"),
    (lambda p, v: _later(True), True, "user"),
    (lambda p, v: _later(Decision(False, "bob")), False, "bob"),
    (lambda p, v: 1 / 0, False, "nobody"),
]


@pytest.mark.parametrize(("approve", "allowed", "by"), ANSWERS)
async def test_only_an_explicit_approval_allows(approve: Any, allowed: bool, by: str) -> None:
    decision = await decide(Gate(Policy(), approve), bash("ls"))
    assert decision.allowed == allowed
    assert decision.by == by


async def test_approval_for_a_session_is_requested_once_and_overrides_no_deny_rule() -> None:
    asked: list[str] = []

    def approve(proposal: Proposal, verdict: Any) -> Decision:
        asked.append(proposal.input["command"])
        return Decision(True, "ann", scope="session")

    gate = Gate(Policy([Rule("deny", arguments={"command": "*rm *"})]), approve)
    for command in ("ls", "cat x", "rm x"):
        decision = await decide(gate, bash(command))
        assert decision.allowed is (command != "rm x")
    assert asked == ["ls"]
    # The approval holds in that session only.
    assert not (await decide(Gate(gate.policy), bash("ls"))).allowed


ASKING = [
    Rule("ask", arguments={"command": "deploy prod*"}),
    Rule("ask", arguments={"command": "*--force*"}),
    Rule("allow", arguments={"command": "ls"}),
]


@pytest.mark.parametrize(
    ("answered", "later", "asks"),
    [
        ("deploy staging", "deploy test", False),
        ("deploy staging", "deploy production", True),
        ("deploy production", "deploy prod-2", False),
        ("deploy production", "deploy staging", False),
        ("deploy production", "deploy staging --force", True),
        ("deploy production", "deploy prod-2 --force", True),
        ("deploy production --force", "deploy prod-2", False),
    ],
)
@pytest.mark.parametrize("scope", ["session", "prefix"])
async def test_earlier_approval_does_not_answer_a_further_rule_that_asks(
    answered: str, later: str, asks: bool, scope: Any
) -> None:
    asked: list[str] = []

    def approve(proposal: Proposal, verdict: Any) -> Decision:
        asked.append(proposal.input["command"])
        return Decision(True, "ann", scope=scope)

    gate = Gate(Policy(ASKING), approve)
    await decide(gate, replace(bash(answered), intent_id="first"))
    decision = await decide(gate, bash(later))
    assert asked == ([answered, later] if asks else [answered])
    assert decision.rests_on == (None if asks else "first")


async def test_approver_cannot_name_another_answer() -> None:
    decision = await decide(
        Gate(Policy(), lambda *_: Decision(True, "ann", rests_on="tu_7")), bash("ls")
    )
    assert decision.rests_on is None


async def test_approver_that_changes_the_input_in_place_changes_no_call() -> None:
    def approve(proposal: Proposal, verdict: Any) -> bool:
        proposal.input["command"] = "rm -rf ."
        proposal.input["options"].append("--force")
        return True

    given = {"command": "ls", "options": ["-l"]}
    proposal = Proposal(tool_name="bash", input=given)
    assert (await decide(Gate(Policy(), approve), proposal)).allowed
    assert proposal.input == {"command": "ls", "options": ["-l"]}


async def test_approver_gets_one_question_at_a_time() -> None:
    asking = 0

    async def approve(proposal: Proposal, verdict: Any) -> Decision:
        nonlocal asking
        asking += 1
        assert asking == 1
        await asyncio.sleep(0)
        asking -= 1
        return Decision(True, "ann")

    gate = Gate(Policy(), approve)
    assert all(
        d.allowed for d in await asyncio.gather(*[decide(gate, bash(str(n))) for n in range(5)])
    )

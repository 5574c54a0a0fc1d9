"""Tools that search folders do not show files that a permission rule denies."""

from pathlib import Path
from typing import Any

import pytest

from dragoman.log import SqliteLog, ToolObserved
from dragoman.permission import Policy, Rule
from dragoman.session import Session
from dragoman.tools import workspace_tools

from ..listed import Listed
from ..session.playing import call, of, propose

SECRET = "QSECRETQ"
READING = Rule("allow", side_effect=["none", "read"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("secrets/prod.env", "secrets/deep/key", "a/.env", "Secrets/x"):
        path = tmp_path / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"KEY={SECRET}\n")
    (tmp_path / "work" / "a" / "main.py").write_text("KEY=1\n")
    return tmp_path / "work"


async def run(
    root: Path, policy: Policy, tool: str, approve: Any = None, **arguments: Any
) -> ToolObserved:
    with SqliteLog(root.parent / "log.db") as log:
        provider = Listed(propose(call(tool, **arguments)), "So.")
        session = Session(provider, workspace_tools(root), policy, log, approve=approve)
        await session.run("Find it.")
        [observed] = of(list(log.read(session.id)), "tool.observed")
        return observed  # type: ignore[no-any-return]


@pytest.mark.parametrize("path", [".", "secrets", "secrets/deep", "a"])
@pytest.mark.parametrize("action", ["deny", "ask"])
async def test_search_tool_omits_paths_that_are_denied_or_need_approval(
    root: Path, path: str, action: Any
) -> None:
    policy = Policy([READING, Rule(action, path="secrets/**"), Rule("deny", path="**/.env")])
    if path == "secrets/deep":
        policy = Policy(
            [*policy.rules[:1], Rule("deny", path="secrets/**/key"), *policy.rules[2:]]
        )
    seen = await run(root, policy, "search", text="KEY", path=path)
    assert SECRET not in str(seen.content)
    assert "paths left out" in str(seen.content)
    assert seen.details["withheld_paths"] > 0
    assert ("a/main.py:1: KEY=1" in str(seen.content)) is (path in (".", "a"))


async def test_list_files_tool_omits_paths_that_a_rule_denies(root: Path) -> None:
    policy = Policy([READING, Rule("deny", path="secrets/**"), Rule("deny", path="**/.env")])
    seen = await run(root, policy, "list_files")
    # A denied folder is not searched, so its files are not counted.
    assert (
        seen.content
        == "a/main.py\n[4 paths left out: a rule denies them, or asks when they are named]"
    )
    assert seen.details == {"withheld_paths": 4}


async def test_search_tool_shows_a_path_that_the_approver_allowed(root: Path) -> None:
    policy = Policy([READING, Rule("ask", path="**")])
    seen = await run(root, policy, "search", lambda *_: True, text="KEY", path="secrets")
    assert "secrets/prod.env:1" in str(seen.content)
    assert seen.details == {}


async def test_rules_for_other_tools_do_not_affect_the_search_tool(root: Path) -> None:
    policy = Policy(
        [READING, Rule("deny", tool="read_file", path="secrets/**"), Rule("deny", path="b/**")]
    )
    seen = await run(root, policy, "search", text="KEY", path="secrets")
    assert "secrets/prod.env:1" in str(seen.content)

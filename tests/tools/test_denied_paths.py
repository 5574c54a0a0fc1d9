"""Test that rules with paths hold for commands in the sandbox, and what commands change."""

from pathlib import Path
from typing import Any

import pytest

from dragoman.permission import Policy, Proposal, Rule
from dragoman.tools import Observation, Toolbox, ToolFailure, workspace_tools
from dragoman.tools import sandbox as sandbox_module
from dragoman.tools.changes import find_changes, take_snapshot

from ..waiting import PATIENCE
from .sandboxes import needs_sandbox


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return fill(tmp_path / "work")


def fill(folder: Path) -> Path:
    for name in ("secrets/key.txt", "a/b/secrets/key.txt", "src/main.py", ".env", "notes.md"):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"content of {name}\n")
    (folder / "link.txt").symlink_to("secrets/key.txt")
    return folder


async def bash(root: Path, command: str, *rules: Rule) -> Observation:
    policy = Policy([Rule("allow", "bash"), *rules])
    asked = Proposal(tool_name="bash", input={"command": command})
    assert policy.judge(asked).action == "allow"
    box = Toolbox(workspace_tools(root, timeout=PATIENCE))
    return await box.execute("bash", {"command": command}, policy.withheld(asked))


FOLDER = Rule("deny", path="secrets/**")
ANYWHERE = Rule("deny", path="**/secrets/**")
FILE = Rule("deny", path=".env")
ASKED = Rule("ask", path="secrets/**")
NO_READ = Rule("deny", path="secrets/**", side_effect=["execute"])


@needs_sandbox
@pytest.mark.parametrize(
    ("rule", "command", "content"),
    [
        (FOLDER, "cat secrets/key.txt", "secrets"),
        (FOLDER, "cat link.txt", "secrets"),
        (FOLDER, "cd secrets && cat *", "secrets"),
        (FOLDER, "mv secrets other; cat other/key.txt", "secrets"),
        (FOLDER, "cp -r . /tmp/copy; cat /tmp/copy/secrets/key.txt", "secrets"),
        (FOLDER, "umount secrets; cat secrets/key.txt", "secrets"),
        (ANYWHERE, "cat a/b/secrets/key.txt", "a/b/secrets"),
        (FILE, "cat .env", ".env"),
        (FILE, "mv .env x; cat x", ".env"),
        (ASKED, "cat secrets/key.txt", "secrets"),
        (NO_READ, "cat secrets/key.txt", "secrets"),
        (Rule("deny", path="SECRETS/*.txt"), "cat secrets/key.txt", "secrets"),
    ],
)
async def test_command_cannot_read_what_a_rule_denies(
    root: Path, rule: Rule, command: str, content: str
) -> None:
    free = await bash(fill(root.parent / "free"), command)
    assert f"content of {content}" in str(free.content), "the command reads it without the rule"
    seen = await bash(root, command, rule)
    assert f"content of {content}" not in str(seen.content)


@needs_sandbox
async def test_other_paths_stay_and_what_is_hidden_is_not_lost(root: Path) -> None:
    seen = await bash(root, "cat src/main.py; echo x > secrets/new.txt; echo y > ok.txt", ANYWHERE)
    assert "content of src/main.py" in str(seen.content)
    assert "Read-only file system" in str(seen.content)
    assert (root / "secrets/key.txt").read_text() == "content of secrets/key.txt\n"
    assert not (root / "secrets/new.txt").exists()
    assert (root / "ok.txt").exists()


@needs_sandbox
async def test_what_may_not_be_written_is_read_only(root: Path) -> None:
    rule = Rule("deny", path="src/**", side_effect=["write"])
    seen = await bash(root, "cat src/main.py; echo x > src/main.py; rm src/main.py", rule)
    assert "content of src/main.py" in str(seen.content)
    assert (root / "src/main.py").read_text() == "content of src/main.py\n"


@needs_sandbox
async def test_command_does_not_run_if_its_denials_are_too_many(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_module, "_MAX_WITHHELD", 3)
    for number in range(4):
        (root / f"{number}.pem").write_text("x")
    with pytest.raises(ToolFailure, match="would hide more than 3 paths"):
        await bash(root, "touch ran", Rule("deny", path="*.pem"))
    assert not (root / "ran").exists()


async def test_result_lists_the_files_that_the_command_changed(root: Path) -> None:
    (root / "node_modules").mkdir()
    seen = await bash(
        root,
        "echo y >> notes.md; touch -r src/main.py notes.md; rm .env; mkdir -p new; echo z > new/z; "
        "echo z > node_modules/z",
    )
    assert seen.details["files"] == {
        "created": ["new/z"], "changed": ["notes.md"], "deleted": [".env"]
    }  # fmt: skip
    assert (await bash(root, "cat notes.md")).details["files"] == {}


def test_long_lists_of_changes_are_shortened(tmp_path: Path) -> None:
    before = take_snapshot(tmp_path)
    for number in range(103):
        (tmp_path / f"{number:03}").touch()
    changes: Any = find_changes(before, take_snapshot(tmp_path))["files"]
    assert changes["created"][-2:] == ["099", "and 3 more"]

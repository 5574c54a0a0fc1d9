"""Test that the five workspace tools cannot leave their folder."""

import asyncio
import os
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.tools import (
    Observation,
    PathError,
    Sandbox,
    Toolbox,
    Workspace,
    find_sandbox,
    workspace_tools,
)
from dragoman.tools import sandbox as sandbox_module
from dragoman.tools.workspace import MAX_FILE, BashTool

from .sandboxes import needs_sandbox

SECRET = "the secret of the outside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a workspace folder that contains links to a file and a folder outside it."""
    folder = tmp_path / "work"
    (folder / "src" / "deep").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text(SECRET)
    (folder / "a.txt").write_text("one\ntwo\nthree\n")
    (folder / "src" / "b.py").write_text("import os\nprint('Two')\n")
    (folder / "src" / "deep" / "c.py").write_text("x = 1\n")
    (folder / "link.txt").symlink_to(tmp_path / "outside" / "secret.txt")
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "inner").symlink_to(folder / "src")
    (folder / "loop").symlink_to(folder / "loop")
    return folder


async def call(root: Path, name: str, **arguments: Any) -> Observation:
    box = Toolbox(workspace_tools(root))
    rejection = box.validate(name, arguments)
    if rejection is not None:
        return Observation(f"rejected: {rejection[1]}", is_error=True)
    return await box.execute(name, arguments)


WAYS_OUT = [
    "../outside/secret.txt", "src/../../outside/secret.txt", "src/..", "..", "/etc/passwd",
    "link.txt", "link/secret.txt", "link", "inner/b.py", "loop", "src/\0", "./link/./secret.txt",
    "link//secret.txt",
]  # fmt: skip


@pytest.mark.parametrize("path", WAYS_OUT)
async def test_paths_cannot_escape_the_workspace(root: Path, path: str) -> None:
    outside = root.parent / "outside"
    before = sorted(outside.iterdir())
    calls = [
        ("read_file", {"path": path}),
        ("list_files", {"path": path}),
        ("search", {"path": path, "text": "secret"}),
        ("edit_file", {"path": path, "old": "secret", "new": "x"}),
        ("edit_file", {"path": f"{path}/new.txt", "old": "", "new": "x"}),
    ]
    for name, arguments in calls:
        seen = await call(root, name, **arguments)
        assert seen.is_error, (name, path, seen.content)
        assert str(seen.content).startswith("rejected: path: "), seen.content
        assert SECRET not in str(seen.content)
        # If a folder is moved after the path was checked, opening the file fails.
        late = await Toolbox(workspace_tools(root)).execute(name, arguments)
        assert late.is_error
        assert SECRET not in str(late.content)
    assert sorted(outside.iterdir()) == before
    assert (outside / "secret.txt").read_text() == SECRET


parts = st.lists(
    st.sampled_from(
        ["..", ".", "", "src", "link", "inner", "deep", "a.txt", "new", "/", "link.txt"]
    ),
    max_size=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(parts)
def test_no_path_can_be_used_to_read_outside_the_workspace(root: Path, parts: list[str]) -> None:
    workspace = Workspace(root)
    try:
        data = workspace.read("/".join(parts))
    except PathError:
        return
    located = root / workspace.locate("/".join(parts))
    assert located.resolve().is_relative_to(root)
    assert located.read_bytes() == data


async def test_symbolic_links_are_listed_and_not_followed(root: Path) -> None:
    seen = await call(root, "list_files")
    assert "link (link, not followed)" in str(seen.content)
    assert "secret.txt" not in str(seen.content)
    assert str((await call(root, "search", text="secret")).content) == "(none)"


async def test_pipes_and_sockets_stay_closed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(root / "pipe")
    monkeypatch.chdir(root)  # the path of a Unix socket is limited to about 100 bytes
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("sock")
        for path in ("pipe", "src", "."):
            seen = await call(root, "read_file", path=path)
            assert "is not an ordinary file" in str(seen.content)
        assert (await call(root, "read_file", path="sock")).is_error


def test_workspace_in_a_missing_folder_is_rejected(root: Path) -> None:
    with pytest.raises(ValueError, match=r"workspace: .* is not a folder"):
        Workspace(root / "a.txt")


async def test_file_can_be_read_by_line_numbers(root: Path) -> None:
    seen = await call(root, "read_file", path="a.txt")
    assert seen.content == "     1\tone\n     2\ttwo\n     3\tthree"
    seen = await call(root, "read_file", path=str(root / "a.txt"), first_line=2, lines=1)
    assert seen.content == "     2\ttwo\n[lines 2 to 2 of 3]"
    assert seen.details == {"lines": 3, "bytes": 14}


async def test_result_states_which_lines_of_a_long_file_it_contains(root: Path) -> None:
    (root / "long.txt").write_text("".join([f"{number}\n" for number in range(2500)]))
    seen = await call(root, "read_file", path="long.txt")
    assert str(seen.content).endswith("\n[lines 1 to 2000 of 2500]")
    assert seen.truncated
    assert not (await call(root, "read_file", path="long.txt", first_line=2001)).truncated
    # Five lines were requested and returned, so nothing was cut.
    assert not (await call(root, "read_file", path="long.txt", lines=5)).truncated


async def test_only_line_feed_characters_end_a_line(root: Path) -> None:
    (root / "odd.txt").write_bytes("a\fb\u2028c\x85d\r\n\ne".encode())
    seen = await call(root, "read_file", path="odd.txt")
    assert seen.content == "     1\ta\fb\u2028c\x85d\r\n     2\t\n     3\te"
    assert (await call(root, "search", text="e", path="odd.txt")).content == "odd.txt:3: e"


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("bin", b"\xff\xfe\x00", "is not UTF-8 text"),
        ("large", b"x" * (MAX_FILE + 1), "the limit is"),
        ("none", None, "No such file or directory"),
    ],
)
async def test_result_explains_why_a_file_cannot_be_read(
    root: Path, name: str, data: bytes | None, said: str
) -> None:
    if data is not None:
        (root / name).write_bytes(data)
    seen = await call(root, "read_file", path=name)
    assert seen.is_error
    assert said in str(seen.content)


async def test_files_are_listed_and_searched(root: Path) -> None:
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("Two")
    assert (
        await call(root, "list_files", pattern="*.py")
    ).content == ".git/ (not entered)\nsrc/b.py\nsrc/deep/c.py"
    assert (await call(root, "list_files", path="src")).content == "src/b.py\nsrc/deep/c.py"
    assert (await call(root, "search", text="Two")).content == "src/b.py:2: print('Two')"
    both = (await call(root, "search", text="two", ignore_case=True)).content
    assert both == "a.txt:2: two\nsrc/b.py:2: print('Two')"
    assert (await call(root, "search", text="two", path="a.txt")).content == "a.txt:2: two"
    assert (await call(root, "search", text="x = 1", pattern="*.txt")).content == "(none)"
    assert (await call(root, "search", text="")).is_error
    # The search text is literal, not a pattern.
    assert (await call(root, "search", text=".*")).content == "(none)"


async def test_long_lists_are_cut_with_a_mark(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.tools.workspace.MAX_FILES", 2)
    monkeypatch.setattr("dragoman.tools.workspace.MAX_MATCHES", 1)
    listed = await call(root, "list_files")
    found = await call(root, "search", text="o")
    assert listed.truncated
    assert found.truncated
    assert "[more than 2" in str(listed.content)
    assert str(found.content).endswith("[more than 1 lines: look for something rarer]")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("needle" + "x" * 294, "needle" + "x" * 294),
        ("needle" + "x" * 295, "needle" + "x" * 294 + " [1 characters left out ...]"),
        ("y" * 1000 + "needle", "[... 706 characters left out] " + "y" * 294 + "needle"),
        (
            "y" * 500 + "NEEDLE" + "x" * 500,
            "[... 425 characters left out] "
            + "y" * 75
            + "NEEDLE"
            + "x" * 219
            + " [281 characters left out ...]",
        ),
    ],
)
async def test_long_line_is_truncated_around_the_match(root: Path, line: str, shown: str) -> None:
    (root / "long.txt").write_text(f"first\n{line}\nlast\n")
    seen = await call(root, "search", text="needle", ignore_case=True)
    assert seen.content == f"long.txt:2: {shown}"
    assert seen.truncated == (line != shown)


async def test_result_of_a_search_counts_the_files_it_skipped(root: Path) -> None:
    (root / "bin").write_bytes(b"two\xff")
    seen = await call(root, "search", text="two")
    assert seen.content == "a.txt:2: two"
    assert seen.details == {"skipped_files": 1}
    assert (await call(root, "search", text="two", pattern="*.txt")).details == {}


async def test_edit_of_a_file_returns_a_diff(root: Path) -> None:
    (root / "a.txt").chmod(0o640)
    seen = await call(root, "edit_file", path="a.txt", old="two", new="2")
    assert str(seen.content).endswith("@@ -1,3 +1,3 @@\n one\n-two\n+2\n three")
    assert (root / "a.txt").read_text() == "one\n2\nthree\n"
    assert stat.S_IMODE((root / "a.txt").stat().st_mode) == 0o640


async def test_edit_keeps_the_line_endings(root: Path) -> None:
    (root / "dos.txt").write_bytes(b"one\r\ntwo\r\n")
    await call(root, "edit_file", path="dos.txt", old="two", new="2")
    assert (root / "dos.txt").read_bytes() == b"one\r\n2\r\n"


@pytest.mark.parametrize(("old", "count"), [("o", 2), ("four", 0)])
async def test_ambiguous_edit_changes_nothing(root: Path, old: str, count: int) -> None:
    before = (root / "a.txt").read_text()
    seen = await call(root, "edit_file", path="a.txt", old=old, new="!")
    assert seen.is_error
    assert f"occurs {count} times" in str(seen.content)
    assert (root / "a.txt").read_text() == before


async def test_creating_a_file_never_overwrites_an_existing_one(root: Path) -> None:
    seen = await call(root, "edit_file", path="new/folder/x.txt", old="", new="héllo")
    assert seen.content == "made new/folder/x.txt: 6 bytes"
    assert (root / "new/folder/x.txt").read_text() == "héllo"
    seen = await call(root, "edit_file", path="a.txt", old="", new="!")
    assert seen.is_error
    assert "File exists" in str(seen.content)
    assert (root / "a.txt").read_text() == "one\ntwo\nthree\n"
    assert not list(root.glob(".a.txt*"))


async def test_editing_a_hard_link_does_not_change_the_file_outside(root: Path) -> None:
    outside = root.parent / "outside" / "secret.txt"
    os.link(outside, root / "hard.txt")
    await call(root, "edit_file", path="hard.txt", old="secret", new="X")
    assert outside.read_text() == SECRET
    assert "X" in (root / "hard.txt").read_text()
    os.link(root / "a.txt", root / "other.txt")
    seen = await call(root, "edit_file", path="a.txt", old="two", new="2")
    assert str(seen.content).endswith(
        "[the file had 2 names (hard links): only this one has the new text]"
    )
    assert seen.details == {"hard_links": 2}
    assert (await call(root, "edit_file", path="a.txt", old="2", new="3")).details == {}


async def test_an_edit_removes_the_setuid_and_setgid_bits(root: Path) -> None:
    (root / "a.txt").chmod(0o6755)
    await call(root, "edit_file", path="a.txt", old="two", new="2")
    assert stat.S_IMODE((root / "a.txt").stat().st_mode) == 0o755


async def test_a_file_name_of_255_bytes_can_be_edited(root: Path) -> None:
    name = "語" * 85
    for old, new in (("", "old"), ("old", "new")):
        seen = await call(root, "edit_file", path=name, old=old, new=new)
        assert not seen.is_error, seen.content
    assert (root / name).read_text() == "new"


@pytest.fixture
def nested() -> Iterator[Path]:
    """Create 1,010 nested folders, not in pytest's folder: its cleanup would recurse."""
    top = Path(tempfile.mkdtemp())
    try:
        here = os.open(top, os.O_RDONLY)
        for _ in range(1010):
            os.mkdir("d", dir_fd=here)
            below = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(os.open("bottom.txt", os.O_CREAT, dir_fd=here))
        os.close(here)
        yield top
    finally:
        subprocess.run(["rm", "-rf", str(top)], check=True)


async def test_files_below_a_thousand_nested_folders_are_found(nested: Path) -> None:
    tools = workspace_tools(nested)
    for tool in tools:
        tool.timeout = None  # half a million folders are opened, which a busy machine does slowly
    found = await Toolbox(tools).execute("list_files", {})
    assert found.content == f"{'d/' * 1010}bottom.txt"


async def test_folders_beyond_the_depth_limit_are_listed_and_not_entered(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.tools.workspace.MAX_DEPTH", 1)
    assert (
        await call(root, "list_files", path="src")
    ).content == "src/b.py\nsrc/deep/ (not entered)"


def test_workspace_tools_declare_their_side_effects_and_paths(root: Path) -> None:
    tools = {tool.name: tool for tool in workspace_tools(root)}
    assert {name: tool.side_effect for name, tool in tools.items()} == {
        "read_file": "read", "list_files": "read", "search": "read", "edit_file": "write",
        "bash": "execute",
    }  # fmt: skip
    assert tools["edit_file"].locate({"path": "./src//b.py"}) == ("src/b.py",)
    assert tools["list_files"].locate({}) == (".",)
    assert tools["read_file"].context() == {"workspace": str(root)}


async def test_command_runs_without_api_keys(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_API_KEY", "k-secret")
    seen = await call(root, "bash", command="pwd; cat a.txt; echo key=$DRAGOMAN_API_KEY; exit 4")
    assert seen.exit_code == 4
    assert str(root) in str(seen.content)
    assert "key=\n" in str(seen.content)
    odd = await call(root, "bash", command=r"printf 'a\377\376b\357\277\275'; printf '\303' >&2")
    assert odd.content == "exit code: 0\n--- stdout\na\ufffd\ufffdb\ufffd\n--- stderr\n\ufffd"
    counts = {"stdout_bytes": 7, "stderr_bytes": 1, "replaced_bytes": 3}
    assert odd.details == {**counts, "files": {}}
    assert (
        await call(root, "bash", command="a\0b")
    ).content == "rejected: command: must not contain a NUL"


def test_missing_bubblewrap_is_recorded_with_the_command(root: Path) -> None:
    bare = BashTool(Workspace(root), sandbox=Sandbox(None, "bubblewrap is not installed"))
    expected = {"cwd": str(root), "sandbox": "none (bubblewrap is not installed)", "network": True}
    assert bare.context() == expected
    assert "network" not in bare.description.description


def test_bubblewrap_allows_only_the_workspace_and_no_network(root: Path) -> None:
    confined = Sandbox("/usr/bin/bwrap", "")
    tool = BashTool(Workspace(root), sandbox=confined)
    assert tool.context() == {"cwd": str(root), "sandbox": "bubblewrap", "network": False}
    argv = confined.wrap(["bash", "-c", "ls"], root)
    assert argv[0] == "/usr/bin/bwrap"
    at = argv.index("--bind")
    assert argv[at : at + 3] == ["--bind", str(root), str(root)]
    # The empty /tmp is mounted first, so that it does not hide a workspace below /tmp.
    assert argv.index("--tmpfs") < at
    assert "--unshare-all" in argv
    assert "--share-net" not in argv
    assert "--share-net" in confined.wrap(["ls"], root, network=True)
    assert argv[-4:] == ["--", "bash", "-c", "ls"]


@pytest.mark.parametrize(
    ("script", "label"),
    [
        ("exit 0", "bubblewrap"),
        ("echo 'No permissions to create new namespace' >&2; exit 1",
         "none (bubblewrap does not work here: No perm"),
        (None, "none (bubblewrap is not installed)"),
    ],
)  # fmt: skip
def test_bubblewrap_is_used_only_if_a_trial_run_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, label: str
) -> None:
    if script is not None:
        (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sandbox_module, "find_sandbox", find_sandbox)
    find_sandbox.cache_clear()
    try:
        assert find_sandbox().label.startswith(label)
    finally:
        find_sandbox.cache_clear()


@needs_sandbox
async def test_sandboxed_command_cannot_write_outside_the_workspace(root: Path) -> None:
    outside = root.parent / "outside" / "new.txt"
    seen = await call(root, "bash", command=f"echo x > ok.txt; echo x > {outside}")
    assert (root / "ok.txt").exists()
    assert not outside.exists()
    assert seen.is_error
    visitors: list[object] = []
    async with await asyncio.start_server(
        lambda *pair: visitors.append(pair), "127.0.0.1", 0
    ) as server:
        port = server.sockets[0].getsockname()[1]
        seen = await call(root, "bash", command=f"echo x > /dev/tcp/127.0.0.1/{port}")
    assert "refused" in str(seen.content)
    assert visitors == [], "inside, even this machine's own address is another"

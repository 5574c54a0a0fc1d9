"""The commands of a command line are judged one by one; a doubtful line is never allowed by that."""

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.permission import Decision, Gate, Policy, Proposal, Rule
from dragoman.permission.shell import read_command_line

RULES = [
    Rule("allow", tool="bash", arguments={"command": pattern}, name=pattern)
    for pattern in (
        "cd *",
        "pytest *",
        "tail *",
        "grep *",
        "echo *",
        "eval *",
        "export *",
        "test *",
    )
]
DENIED = [
    Rule("deny", tool="bash", arguments={"command": "rm *"}, name="no rm"),
    Rule("ask", tool="bash", arguments={"command": "git push *"}, name="pushes"),
]


def bash(command: str) -> Proposal:
    return Proposal(tool_name="bash", input={"command": command}, side_effect="execute")


PLAIN = [
    "cd x && pytest -q 2>&1 | tail",
    "cd x; pytest -q",
    "cd 'a b' && pytest \"tests/a b.py\" || echo failed",
    "pytest -q >/dev/null 2>&1",
    "pytest -q\ntail log",
    "grep -r --include=*.py a |& tail -n 3",
]


@pytest.mark.parametrize("command", PLAIN)
def test_line_of_allowed_commands_is_allowed(command: str) -> None:
    verdict = Policy(RULES).judge(bash(command))
    assert verdict.action == "allow"
    assert verdict.rule is not None
    assert "pytest *" in verdict.rule or "grep *" in verdict.rule


DOUBTFUL = [
    "cd x && make",  # one of them is not allowed
    "pytest $(make)",
    "pytest `make`",
    'pytest "$HOME"',
    "pytest <(make)",
    "pytest > results.txt",
    "pytest >> ~/.bashrc",
    "pytest < input",
    "pytest & tail log",
    "tail <<E\nmake\nE",
    "tail <<< text",
    "pytest() { make; }; pytest",
    "(pytest; tail log)",
    "{ pytest; tail log; }",
    "for x in a b; do pytest; done",
    "if pytest; then tail log; fi",
    "PATH=. pytest; tail log",
    "eval make; tail log",
    "export PATH=.; pytest",
    "! pytest; tail log",
    "[[ a ]] && pytest",
    "pytest; # make",
    "pytest ;; tail",
    "pytest && ",
    "pytest 'a; tail",
    "pytest \\\n; tail",
    "pytest\r; tail",
    "'pytest' && tail",
    "./py*st && tail",
    "pytest && " + "tail " * 3000,
]


@pytest.mark.parametrize("command", DOUBTFUL)
def test_doubtful_line_is_asked_about(command: str) -> None:
    verdict = Policy(RULES).judge(bash(command))
    assert verdict.action == "ask"
    assert verdict.rule is None


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("cd x && rm -r y", "no rm"), ("echo $(rm y)", "no rm"), ("(cd x; rm y)", "no rm"),
        ("for x in *; do rm $x; done", "no rm"), ("A=1 rm y", "no rm"), ("f() { rm y; }; f", "no rm"),
        ("pytest && git push --force", "pushes"), ("git push; rm y", "no rm"),
    ],
)  # fmt: skip
def test_rule_that_denies_or_asks_sees_each_command(command: str, rule: str) -> None:
    everything = [Rule("allow", tool="bash")]
    assert Policy([*RULES, *DENIED, *everything]).judge(bash(command)).rule == rule


def test_earlier_answer_does_not_cover_a_rule_that_asks_about_a_command_of_the_line() -> None:
    gate = Gate(Policy([*RULES, *DENIED]))
    gate.remember(Decision(True, "ann", scope="session"), bash("make"))
    assert gate.settle(bash("make test"))[1] is not None
    assert gate.settle(bash("make && git push"))[1] is None


def test_command_of_another_kind_of_tool_is_judged_as_a_whole() -> None:
    query = Proposal(tool_name="bash", input={"command": "cd x; tail y"}, side_effect="network")
    assert Policy(RULES).judge(query).action == "ask"


# --- what a real shell runs --------------------------------------------------------------------

PIECES = st.sampled_from([
    "a", "b", "c", "x", " ", " ", " ", "&&", "||", ";", "|", "|&", "&", "\n", "'", '"', "$(", "`",
    ")", "(", "{", "}", "<", ">", "2>&1", ">/dev/null", "\\", "#", "!", "eval ", "$a", "<<", "E",
    "a=b ", "[[", "]]", "if ", "then ", "fi", "\t", "*", "?", "~",
])  # fmt: skip


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with three programs, which write their name to the file ``ran``."""
    folder = tmp_path_factory.mktemp("programs")
    for name in "abc":
        path = folder / name
        path.write_text(f'#!/bin/sh\necho {name} >> "$RAN"\n')
        path.chmod(0o755)
    return folder


SIMPLE = st.sampled_from(["a ", "b 'x' ", 'c "x y" ', "&& a", "; b ", "| c ", "|| a x", "\nb"])


@settings(max_examples=300)
@given(st.lists(SIMPLE | SIMPLE | PIECES, max_size=8).map("".join))
def test_bash_runs_nothing_but_the_commands_of_a_plain_line(programs: Path, text: str) -> None:
    line = read_command_line(text)
    assert line is not None
    if not line.is_plain:
        return
    ran = programs.parent / "ran"
    ran.write_text("")
    folder = programs.parent / "empty"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    subprocess.run(
        [str(shutil.which("bash")), "-c", text], cwd=folder, check=False, capture_output=True,
        env={"PATH": str(programs), "RAN": str(ran)}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    named = {each.split()[0] for each in line.commands}
    assert set(ran.read_text().split()) <= named
    assert list(folder.iterdir()) == []  # and no file is written

"""Patterns in permission rules take linear time and match like the regular expressions they
replaced.
"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.permission import Policy, Proposal, Rule
from dragoman.permission.patterns import compile_path, compile_text

from ..patterns import grows

SEPARATORS = r";&|<>$`\\(){}\r\n"


def as_expression(pattern: str, *, wary: bool) -> re.Pattern[str]:
    other = f"[^{SEPARATORS}]" if wary else "."
    pieces = {"*": other + "*", "?": other}
    word, rest = (pattern[:-2], f"(?: {other}*)?") if pattern.endswith(" *") else (pattern, "")
    return re.compile(
        "".join([pieces.get(char) or re.escape(char) for char in word]) + rest, re.DOTALL
    )


def as_path_expression(pattern: str) -> re.Pattern[str]:
    pieces = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    return re.compile("".join([pieces.get(part) or re.escape(part) for part in parts]), re.DOTALL)


@given(st.text("ab *?;.", min_size=1, max_size=8), st.text("ab ;\n.*", max_size=12), st.booleans())
def test_text_patterns_match_like_a_reference_implementation(
    pattern: str, text: str, wary: bool
) -> None:
    expected = as_expression(pattern, wary=wary).fullmatch(text) is not None
    assert compile_text("x", pattern, wary=wary).fullmatch(text) is expected


@given(st.text("ab/*?.", min_size=1, max_size=9), st.text("ab/.*", max_size=12))
def test_path_patterns_match_like_a_reference_implementation(pattern: str, path: str) -> None:
    if pattern.startswith("/") or ".." in pattern.split("/"):
        return
    assert compile_path(pattern).fullmatch(path) is (
        as_path_expression(pattern).fullmatch(path) is not None
    )


@pytest.mark.parametrize(
    ("pattern", "unit"), [("git * -m *", " -m"), ("pytest * -k * -x *", " -k"), ("*a*a*a*b", "a")]
)
def test_command_patterns_are_matched_in_linear_time(pattern: str, unit: str) -> None:
    policy = Policy([Rule("allow", tool="bash", arguments={"command": pattern})])
    start = pattern.partition("*")[0]

    def run(text: str) -> None:
        policy.judge(Proposal(tool_name="bash", input={"command": text}, side_effect="execute"))

    assert grows(run, lambda size: start + unit * (size // len(unit)) + "\n") is None


@pytest.mark.parametrize("pattern", ["**/a/**/b/**/c", "**/.git/**", "**a**b**c", "*/*/**/*x"])
def test_path_patterns_are_matched_in_linear_time(pattern: str) -> None:
    policy = Policy([Rule("deny", path=pattern)])

    def run(text: str) -> None:
        policy.judge(Proposal(tool_name="t", input={}, side_effect="write", paths=(text,)))

    assert grows(run, lambda size: "a/b/" * (size // 4) + "x") is None

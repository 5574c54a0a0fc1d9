"""Split a command line of a shell into the commands that it runs, for the rules of permissions.

The parser is tree-sitter with its grammar of Bash. It is an optional dependency: without it, a
command line is judged as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from msgspec import Struct

_LONGEST = 10_000
"""Longer command lines are judged as a whole."""
_GROUPS = frozenset({"program", "list", "pipeline", "redirected_statement"})
_JOINTS = frozenset({"&&", "||", ";", "|", "|&", "\n"})
_WORDS = frozenset(
    {"word", "string", "string_content", "raw_string", "number", "concatenation", '"'}
)
_COMMANDS = frozenset({"command", "declaration_command", "unset_command", "test_command"})
# With these, a command changes what the names of later commands mean, or runs a text.
_CHANGING = frozenset({
    ".", "alias", "builtin", "command", "enable", "eval", "exec", "getopts", "hash", "let",
    "mapfile", "read", "readarray", "set", "shopt", "source", "trap", "unalias",
})  # fmt: skip
_NAME = re.compile(r"[\w./+-]+", re.ASCII)
# A harmless redirection: to nothing, or of one stream to another.
_REDIRECTION = re.compile(r"[0-9]?(>>?|<) ?/dev/null|&>>? ?/dev/null|[0-9]?>&[0-9]", re.ASCII)


class CommandLine(Struct, frozen=True):
    """What a command line runs.

    ``commands`` has the text of every command that was found, also in substitutions and loops. If
    ``is_plain``, it runs exactly these, one after the other or in a pipeline, and their arguments
    mean what is written.
    """

    commands: tuple[str, ...]
    is_plain: bool


@lru_cache(maxsize=256)
def read_command_line(text: str) -> CommandLine | None:
    """Return what a command line runs, or ``None`` if the parser is not installed."""
    parser = _open_parser()
    if parser is None or len(text) > _LONGEST:
        return None
    root = parser.parse(text.encode("utf-8", "surrogatepass")).root_node
    commands = tuple([_write(node) for node in _walk(root) if node.type in _COMMANDS])
    is_plain = (
        bool(commands)
        and not root.has_error
        and text.isprintable() | ("\n" in text and text.replace("\n", "").isprintable())
        and "\\" not in text
        and _is_plain(root)
        and _is_covered(root)
    )
    return CommandLine(commands, is_plain)


@lru_cache(maxsize=1)
def _open_parser() -> Any:
    if find_spec("tree_sitter") is None or find_spec("tree_sitter_bash") is None:
        return None
    # lazy import: an optional dependency
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def _walk(root: Any) -> Iterator[Any]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(node.children)


def _write(command: Any) -> str:
    """Return the text of a command without the assignments before it."""
    parts = [each for each in command.children if each.type != "variable_assignment"]
    start = parts[0].start_byte if parts else command.start_byte
    data: bytes = command.text[start - command.start_byte :]
    return data.decode("utf-8", "replace")


def _is_plain(node: Any) -> bool:
    """Return whether a statement consists of simple commands with literal words only."""
    if node.type == "command":
        return _is_plain_command(node)
    if node.type == "file_redirect":
        return _REDIRECTION.fullmatch(node.text.decode("utf-8", "replace")) is not None
    if node.type in _GROUPS:
        return all(_is_plain(each) for each in node.children)
    return node.type in _JOINTS


def _is_plain_command(command: Any) -> bool:
    name, *words = command.children
    if name.type != "command_name" or [each.type for each in name.children] != ["word"]:
        return False
    program = name.text.decode("utf-8", "replace")
    if not _NAME.fullmatch(program) or program in _CHANGING:
        return False
    if program == "printf" and any(word.text.startswith(b"-v") for word in words):
        return False
    return all(inner.type in _WORDS for word in words for inner in _walk(word))


def _is_covered(root: Any) -> bool:
    """Return whether only white space lies between the words: the parser has left nothing out."""
    data: bytes = root.text
    end = 0
    for leaf in [node for node in _walk(root) if not node.children]:
        if data[end : leaf.start_byte].strip(b" \t\n"):
            return False
        end = leaf.end_byte
    return not data[end:].strip(b" \t\n")

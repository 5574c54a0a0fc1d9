"""Check that docstrings, comments, messages, help texts and pages are in plain English.

This is a part of ``make lint``.

    python scripts/prose.py                       report each violation as file:line, with a hint
    python scripts/prose.py PATH ...              the same for these files and folders only
    python scripts/prose.py --sample SEED [PATH]  print 100 random docstrings and 100 random comments

A line that ends with ``# prose: allow (REASON)``, or ``<!-- prose: allow (REASON) -->`` on a page,
is not checked. Text in backticks and short quotations are not checked either.
"""

from __future__ import annotations

import ast
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

FOLDERS = ("src", "scripts", "examples", "bench", "tests")

PAGES = ("README.md", "CONTRIBUTING.md", "AGENTS.md", "SECURITY.md", "docs")

ALLOWED = (
    "words of ``prefix``",  # here "words" are the parts of a shell command
    "first word of this one",  # here a "word" is a part of a shell command
    "begins with its words",  # here "words" are the parts of a shell command
)
"""Phrases that are never a violation. Each has a comment that gives the reason."""

DOCSTRING = "docstring"
COMMENT = "comment"
MESSAGE = "message"
PAGE = "page"
HELP = "help text"

CODE = frozenset({DOCSTRING, COMMENT})
PROSE = frozenset({DOCSTRING, COMMENT, PAGE})
ALL = frozenset({DOCSTRING, COMMENT, MESSAGE, PAGE})


@dataclass(frozen=True)
class Rule:
    """Describe one banned pattern: where it applies, and what to write instead."""

    name: str
    kinds: frozenset[str]
    pattern: re.Pattern[str]
    hint: str


@dataclass(frozen=True)
class Passage:
    """Hold a docstring, a comment of one or more lines, a string literal, or a page."""

    kind: str
    line: int
    text: str
    function: str | None = None
    """The name of the function that a docstring belongs to."""


def _rule(name: str, kinds: frozenset[str], pattern: str, hint: str) -> Rule:
    """Compile a rule; a space in its pattern matches a line break as well."""
    return Rule(name, kinds, re.compile(pattern.replace(" ", r"\s"), re.IGNORECASE), hint)


RULES = (
    _rule(
        "person",
        ALL,
        r"\b(somebody|nobody|everybody|anybody|whoever|whomever|whosoever)\b",
        "name the actor: the caller, the client, the server, the process",
    ),
    _rule(
        "whatever",
        PROSE,
        r"\bwhatever"
        r" (is|was|are|were|has|had|goes|went|comes|came|remains|else|can|may|does|follows|happens)\b",
        'name the thing, or write "anything that"',
    ),
    _rule(
        "is-no",
        ALL,
        r"(?<!there )(?<!there can )(?<!there must )(?<!there may )(?<!there will )(?<!there"
        r" would )"
        r"(?<!there should )(?<!there has )(?<!there have )"
        r"\b(is|are|was|were|be|been|being) (?-i:no"
        r"|none)\b(?! (longer|more|less|later|earlier|larger|smaller|worse"
        r"|better|different|further|faster|slower|older|newer|matter|one|op)\b)(?!-)",
        '"is not a …", or "there is no …"',
    ),
    _rule(
        "archaism",
        ALL,
        r"\b(anew|seldom|dear(er|est|ly)?"
        r"|beside(?! the point)|whence|thereof|therein|thereby|hereby|hither|belies?"
        r"|heeds?|heeded|afore\w+|for want of|as like as not|in vain|taken up|takes up(?! to)"
        r"|hold good|nought|naught|lest)\b",
        "use today's word: again, rarely, expensive, next to, because",
    ),
    _rule(
        "also-when",
        PROSE,
        r"\balso (when|if|where|after|before|without)\b",
        '"even when", "even if"',
    ),
    _rule("meanwhile", CODE, r"\bmeanwhile\b", '"in the meantime", or name the step in between'),
    _rule(
        "so-many",
        ALL,
        r"\bso (many|much|long) (?!as\b|that\b)",
        '"this many", "at most N", "how long to"',
    ),
    _rule(
        "speech",
        CODE,
        r"(?<!error )(?<!message )(?<!warning )(?<!text )(?<!help )(?<!page )(?<!documentation"
        r" )(?<!specification )"
        r"\b(says?|said|saying|unsaid|unsays?)\b",
        "data does not speak: sends, reports, states, contains, returns",
    ),
    _rule(
        "tell",
        CODE,
        r"\b(tells?|told|telling|untold)\b",
        "reports, informs, distinguishes, shows",
    ),
    _rule(
        "hear",
        CODE,
        r"\b(hears?|heard|hearing|listens to|speaks? of|spoken of|mouth|mute)\b",
        "receives, reads, is delivered",
    ),
    _rule(
        "word",
        PROSE,
        r"\b(words? (of(?! (a|the|its) command)|about|for it)\b"
        r"|(own|its|their|his|whose|last|server's|model's|provider's) words?\b|in words\b"
        r"|word that|a word on\b|take \w+ at \w+ word)",
        "the term, the reason, the category, the text, the report",
    ),
    _rule(
        "silence",
        ALL,
        r"\b(in silence|silence|silent)\b",
        "silently, without a warning, idle, no output",
    ),
    _rule(
        "want", CODE, r"(?<!you )\b(wants?|wanted|wanting)\b", "needs, requires, expects, asks for"
    ),
    _rule(
        "leave",
        PROSE,
        r"\b((for|given?|gives|gets?|without|asks?|asked) leave\b|leave to\b|(leaves?"
        r"|left) (\w+ )?in peace)",
        "permission, admission, cool-down",
    ),
    _rule(
        "whole",
        CODE,
        r"\b(whole numbers?|(is|are|be|was|were|made|stays?|kept) whole)\b",
        "integer, complete",
    ),
    _rule(
        "ours",
        PROSE,
        r"\bof (ours|theirs|yours|hers)\b",
        "name the owner: the caller's, the server's",
    ),
    _rule(
        "riddle",
        frozenset({COMMENT}),
        r"\A# (inside|outside|within)\Z",
        "name what the section holds",
    ),
    _rule("question", frozenset({COMMENT}), r"\?\s*\Z", "state what is true, not a question"),
)

_TRIGGERS = re.compile(
    r"body\b|\bwho[ms]|whatever|\bno(?:ne|ught)?\b|\bna(?:ught)|\banew|seldom|\bdear|beside|whence|there(?:of|in|by)|hereby"
    r"|hither|\bbelie|heed|\bafore|\bvain|\btake|good|lest|\balso|meanwhile|\bso\s|sa(?:y|id)|t(?:ell|old)|hear|listen"
    r"|sp(?:eak|oken)|mouth|mute|word|silen|want|lea?[vf]|whole|\bof\s(?:our|their|your|her)s|side\Z|within\Z|\?",
    re.IGNORECASE,
)
"""A pattern that matches every passage that a rule could match; it is faster than trying all
rules.
"""

_FIRST_SENTENCE_ASKS = re.compile(r"\A[^.]*?\?(\s|\Z)")

_NEEDS_CONTEXT = re.compile(r"\b(?:it|they|them|those|these|else|see above)\b", re.IGNORECASE)

_FIRST_WORD = re.compile(r"\A\W*([A-Za-z'-]+)")

_NOT_VERBS = frozenset(
    re.findall(
        r"[a-z]+",
        """
    a an the this that these those its our their his her your my one two three all any both each every either neither
    no none nothing something anything everything what whatever which whichever who whose whom where wherever when
    whenever why how if whether is are was were am be has have had does did can could may might must shall should will
    would of in on at by for from with within without to into onto out over under between among before after until
    since while as like than not never always only also and or but yet so it we they he she you i there here true false
    yes some such same other another many much more most few less least per because unless once twice first last next
    """,
    )
)
"""Words that a docstring of a function cannot start with."""

_VERBS_IN_S = frozenset(
    (
        "access",
        "address",
        "assess",
        "bias",
        "compress",
        "cross",
        "decompress",
        "dismiss",
        "express",
        "focus",
        "guess",
    ),
) | {"miss", "pass", "press", "process", "suppress"}

_VERBS_IN_ED_OR_ING = frozenset(
    (
        "bring",
        "embed",
        "exceed",
        "feed",
        "need",
        "ping",
        "proceed",
        "ring",
        "seed",
        "shed",
        "shred",
        "speed",
        "string",
    )
)

# Matches strings and comments of Python 3.11, where an f-string cannot contain its own kind of
# quote.
_LITERAL = re.compile(
    r"""(?P<string>[rRbBuUfF]{0,2}(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''"""
    r"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))|(?P<comment>\#[^\n]*)""",
    re.DOTALL,
)

_TEST_DOCSTRING = re.compile(r'(?:\A|:\n) *"""(?P<text>.*?)"""$', re.DOTALL | re.MULTILINE)

_LINE_BREAK = re.compile(r"[ \t]*\n[ \t]*(?:#[ \t]*)?")

# Code, short quotations, URLs, and names of conformance cases such as "openai/no-done".
_QUOTED = re.compile(
    r"``[^`]*``|`[^`\n]*`|\"[^\"\n]{1,80}\"|“[^”\n]{1,80}”|\b[a-z]+/[a-z0-9]+(?:-[a-z0-9]+)+|https?://\S+"
)

_FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>```+|~~~+)[^\n]*\n.*?^(?P=indent)(?P=fence) *$",
    re.DOTALL | re.MULTILINE,
)

_HTML = re.compile(r"<(svg|style|script|pre)\b.*?</\1>|<[^>]+>", re.DOTALL)

_ALLOW = re.compile(r"prose: allow \([^)]+\)")

_DIRECTIVE = re.compile(r"# (type:|noqa|pyright:|pragma:|fmt:|ruff:|mypy:|!)|#!")


def read_passages(path: Path) -> Iterator[Passage]:
    """Yield the docstrings, comments and strings of a Python file, or the text of a page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield Passage(PAGE, 1, _HTML.sub(_blank, _FENCE.sub(_blank, text)))
        return
    # A regular expression is faster than parsing. It is sufficient for tests, because their
    # docstrings are checked in the same way for classes, functions and modules.
    if "tests" in path.parts:
        for match in _TEST_DOCSTRING.finditer(text):
            yield Passage(DOCSTRING, text.count("\n", 0, match.start("text")) + 1, match["text"])
        yield from _read_literals(text, {}, messages=False)
        return
    tree = ast.parse(text)
    docstrings = {passage.line: passage for passage in _read_docstrings(tree.body, None)}
    yield from docstrings.values()
    yield from _read_literals(text, docstrings, messages="src" in path.parts)
    if "cli" in path.parts:
        yield from _read_helps(tree)


def _read_helps(tree: ast.Module) -> Iterator[Passage]:
    """Yield the help texts of options, which are in ``Annotated``, and those of commands."""
    for node in ast.walk(tree):
        texts: list[ast.expr | None] = []
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Annotated":
            texts += node.slice.elts[1:] if isinstance(node.slice, ast.Tuple) else []
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_COMMANDS":
            texts += node.value.values if isinstance(node.value, ast.Dict) else []
        for each in texts:
            parts = each.values if isinstance(each, ast.JoinedStr) else [each]
            constants = [part.value for part in parts if isinstance(part, ast.Constant)]
            if constants and isinstance(constants[0], str):
                yield Passage(HELP, parts[0].lineno, "".join(constants))


def _read_docstrings(body: list[ast.stmt], function: str | None) -> Iterator[Passage]:
    """Yield the docstrings of modules, classes, functions and attributes."""
    for position, node in enumerate(body):
        if isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                yield Passage(
                    DOCSTRING, node.lineno, node.value.value, None if position else function
                )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _read_docstrings(node.body, None if _is_property(node) else node.name)
        elif isinstance(node, ast.ClassDef | ast.If | ast.With | ast.Try):
            yield from _read_docstrings(node.body, None)


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function is a property, whose docstring may be a noun phrase."""
    return any("property" in ast.unparse(each) for each in node.decorator_list)


def _read_literals(text: str, docstrings: dict[int, Passage], messages: bool) -> Iterator[Passage]:
    """Yield each comment, which may have several lines, and each string literal that is a
    sentence.
    """
    block: list[str] = []
    block_line = 0
    line = 1
    position = 0
    for match in _LITERAL.finditer(text):
        line += text.count("\n", position, match.start())
        position = match.start()
        literal = match.group()
        if match["comment"] is None:
            if messages and line not in docstrings and literal.count(" ") > 2:
                yield Passage(MESSAGE, line, literal)
            continue
        alone = not text[text.rfind("\n", 0, position) + 1 : position].strip()
        if block and (line != block_line + len(block) or not alone):
            yield Passage(COMMENT, block_line, "\n".join(block))
            block = []
        if _DIRECTIVE.match(literal):
            continue
        if alone:
            block_line = block_line if block else line
            block.append(literal)
        else:
            yield Passage(COMMENT, line, literal)
    if block:
        yield Passage(COMMENT, block_line, "\n".join(block))


def _blank(match: re.Match[str]) -> str:
    """Return the matched text with each character except line breaks replaced by an underscore."""
    return re.sub(r"[^\n]", "_", match.group())


def find_violations(path: Path) -> Iterator[str]:
    """Yield each violation in a file as ``line: what is wrong and what to write instead``."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for passage in read_passages(path):
        for line, problem in _check_passage(passage):
            if not _ALLOW.search(lines[line - 1]):
                yield f"{line}: {problem}"


def _check_passage(passage: Passage) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each violation in a passage."""
    text = _LINE_BREAK.sub("\n", passage.text)
    for phrase in ALLOWED:
        text = re.sub(phrase.replace(" ", r"\s"), _blank, text)
    text = (
        text[:3] + _QUOTED.sub(_blank, text[3:])
        if passage.kind == MESSAGE
        else _QUOTED.sub(_blank, text)
    )
    for rule in RULES if _TRIGGERS.search(text) else ():
        if passage.kind in rule.kinds:
            for match in rule.pattern.finditer(text):
                line = passage.line + text.count("\n", 0, match.start())
                found = " ".join(match.group().split())
                yield line, f"[{rule.name}] {found!r} in a {passage.kind}; write: {rule.hint}"
    if passage.kind == DOCSTRING:
        yield from _check_docstring(passage, text)
    if passage.kind == HELP:
        yield from _check_help(passage, text)


def _check_docstring(passage: Passage, text: str) -> Iterator[tuple[int, str]]:
    """Yield a violation for a docstring that is a question or does not start with an imperative
    verb.
    """
    if _FIRST_SENTENCE_ASKS.match(text):
        yield passage.line, "[question] a docstring is a question; write: Return whether …"
    elif (
        passage.function
        and (word := _FIRST_WORD.match(text))
        and not _is_imperative(word[1].lower())
    ):
        yield (
            passage.line,
            f"[imperative] a docstring starts with {word[1]!r}; write: Return …, Build …, Check …",
        )


def _check_help(passage: Passage, text: str) -> Iterator[tuple[int, str]]:
    """Yield a violation for a help text that is not a sentence, or needs another text."""
    word = _FIRST_WORD.match(text)
    if word is None or not _is_imperative(word[1].lower()) or not text.endswith("."):
        yield (
            passage.line,
            f"[help] {text[:30]!r} is not a sentence; write a verb first and a full stop last:"
            " Print …, Use …, Limit …",
        )
    elif found := _NEEDS_CONTEXT.search(text):
        yield passage.line, f"[help] {found.group()!r} refers to another text; write: the noun"


def _is_imperative(word: str) -> bool:
    """Return whether a word can be a verb in the imperative."""
    if word in _NOT_VERBS:
        return False
    if word.endswith("s"):
        return word in _VERBS_IN_S
    return not word.endswith(("ed", "ing")) or word in _VERBS_IN_ED_OR_ING


def list_files(paths: list[Path]) -> Iterator[Path]:
    """Yield the Python files and pages among ``paths`` and below them, without
    generated folders.
    """
    for path in paths:
        if path.is_dir():
            found = [*path.rglob("*.py"), *(path.rglob("*.md") if path.name == "docs" else ())]
            yield from sorted(each for each in found if "__pycache__" not in each.parts)
        elif path.suffix in {".py", ".md"}:
            yield path


def print_sample(seed: int, files: list[Path]) -> None:
    """Print 100 docstrings and 100 comments, selected at random with ``seed``."""
    found: dict[str, list[str]] = {DOCSTRING: [], COMMENT: []}
    for path in files:
        for passage in read_passages(path):
            if passage.kind in found and " " in passage.text.strip("# "):
                where = f"{path.relative_to(ROOT)}:{passage.line}"
                found[passage.kind].append(f"{where}: {' '.join(passage.text.split())}")
    draw = random.Random(seed)
    for kind, passages in found.items():
        print(f"--- {kind}s: {min(100, len(passages))} of {len(passages)}, seed {seed}")
        for number, passage_text in enumerate(draw.sample(passages, min(100, len(passages))), 1):
            print(f"{number:3} {passage_text}")


def main(arguments: list[str]) -> int:
    """Run the command line; return the exit code."""
    seed = None
    if arguments[:1] == ["--sample"]:
        seed = int(arguments[1])
        arguments = arguments[2:]
    given = [Path(each).resolve() for each in arguments]
    files = list(
        list_files(
            given or [ROOT / each for each in (*FOLDERS, *(() if seed is not None else PAGES))]
        )
    )
    if seed is not None:
        print_sample(seed, files)
        return 0
    count = 0
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        for violation in find_violations(path):
            print(f"{name}:{violation}")
            count += 1
    if count:
        print(
            f"{count} violations; CONTRIBUTING.md shows how prose is written here", file=sys.stderr
        )
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

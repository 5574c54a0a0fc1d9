"""The direction of imports and forbidden names, checked for every file of the package."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any, get_args

import pytest

from dragoman.events import Event
from dragoman.wire import CODECS

from . import boxes
from .sources import PACKAGE, Source, read_package, read_sources

# The list of layers. A module may import only from layers above its own in this list; a folder is
# one layer. docs/design.md contains a copy, which ``python -m tests.test_docs`` updates.
FLOORS = {
    "errors": "the error tree",
    "messages": "messages, blocks, citations, requests and settings; schemas of functions",
    "capabilities": "what a model can do, and how we know",
    "events": "events, responses and the assembler that makes them",
    "validate": "checks of requests and of replies; faults of tool calls; strict YAML",
    "prices": "usage to money",
    "calls": "records of calls: what began, ended, failed and was routed elsewhere",
    "tokens": "token estimates, offline",
    "wire": "both sides of each wire, pure (sans-IO); pairs of calls and results",
    "transport": "the only code that opens a socket to a provider",
    "provider": "the provider contract, streams, and the provider over HTTP",
    "retrieval": "embedding and reranking: contract, wires, models over HTTP",
    "blocking": "blocking calls: a thread with an event loop",
    "database": "SQLite and PostgreSQL",
    "middleware": "retry, fallback, rate limits, observation, cassettes",
    "log": "the hash-chained event log", "registry": "names and configuration to providers",
    "permission": "rules that allow, deny or ask",
    "tools": "what can be executed, and the sandbox", "session": "the agent loop",
    "replay": "a recorded run, read again", "trace": "the trace viewer",
    "batches": "many requests: a file of rows in, a file of results out",
    "comparison": "recorded calls, asked again of other models",
    "conformance": "cases and checks for codecs, providers and servers",
    "sim": "scripted providers and servers", "gateway": "the HTTP service in front of providers, and its web pages",
    "service": "agents that clients run over HTTP",
    "local": "the embedded model",
    "integrations": "models for other frameworks",
    "compat": "the functions of other libraries", "testing": "the pytest plugin",
    "cli": "the command, and the environment variables that it reads",
}  # fmt: skip
LAYERS = list(FLOORS)
# The package itself, its names for synchronous code and the file that ``python -m`` runs belong to
# no layer.
FRONT = ["__init__", "__main__", "sync"]
NAMELESS = {"utils", "helpers", "common", "base", "types"}

# Vendor names belong in the catalogue and not in the code. Names of wires (openai, anthropic,
# gemini and others) are allowed.
VENDORS = [
    "alibaba", "azure", "baseten", "cerebras", "cloudflare", "databricks", "dashscope",
    "deepinfra", "deepseek", "fireworks", "githubcopilot", "groq", "huggingface", "hyperbolic",
    "litellm", "llamacpp", "lmstudio", "mistral", "moonshot", "nebius", "novita", "nvidia",
    "ollama", "openrouter", "perplexity", "pollinations", "sambanova", "sglang", "siliconflow",
    "snowflake", "togetherai", "vllm", "watsonx",
]  # fmt: skip
# Names so short that they are searched for as whole words only.
VENDOR_WORDS = ["xai", "zai", "qwen", "kimi"]
_VENDOR = re.compile("|".join(name for name in VENDORS if name not in CODECS))
_VENDOR_WORD = re.compile(rf"(?<![a-z0-9])(?:{'|'.join(VENDOR_WORDS)})(?![a-z0-9])")
ALLOWED = {
    ("errors.py", "xai"): "the beginning of a key, which must be known to be hidden",
    (
        "registry/credentials.py",
        "azure",
    ): "the package and the extra that tokens of Entra ID come from",
    ("local/server.py", "llamacpp"): "xllamacpp is the package that the server comes in",
    ("cli/import.py", "litellm"): "the program whose configuration is converted",
    **{
        (f"compat/litellm/{name}.py", "litellm"): "the library whose functions it has"
        for name in (
            "__init__",
            "calls",
            "daily_spend",
            "database",
            "exceptions",
            "facts",
            "names",
            "other_calls",
            "proxy",
        )
    },
    **{
        (f"compat/litellm/{name}.py", "litellm"): "the library whose functions it has"
        for name in ("records", "reports", "router")
    },
}
# The layers before ``tools`` must not execute tools. The log calls ``execute`` of a database driver,
# which runs SQL.
MAY_EXECUTE = ["database", "log", *LAYERS[LAYERS.index("tools") :]]


# --- the checks of the layers ------------------------------------------------------------------


class Module:
    """One file of the package."""

    def __init__(self, source: Source) -> None:
        self.path = source.path
        self.tree = source.tree
        self.nodes = source.nodes
        parts = self.path.with_suffix("").parts
        self.layer = parts[0]
        self.is_package = parts[-1] == "__init__"
        self.name = parts[:-1] if self.is_package else parts

    @cached_property
    def statements(self) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
        """Return every import statement of the file, and whether it is inside a function."""
        found: list[tuple[ast.Import | ast.ImportFrom, bool]] = []

        def walk(node: ast.AST, inside: bool) -> None:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.Import | ast.ImportFrom):
                    found.append((child, inside))
                elif isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                    walk(
                        child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                    )

        walk(self.tree, False)
        return found

    def imports(self, known: set[tuple[str, ...]]) -> Iterator[tuple[int, bool, tuple[str, ...]]]:
        """Yield the line of each own import, whether it is in a function, and its module."""
        for node, inside in self.statements:
            for alias in node.names:
                if isinstance(node, ast.Import):
                    first, *rest = alias.name.split(".")
                    if first == "dragoman":
                        yield node.lineno, inside, tuple(rest)
                elif (target := self._target(node)) is not None:
                    deeper = (*target, alias.name)
                    yield node.lineno, inside, deeper if deeper in known else target

    def _target(self, node: ast.ImportFrom) -> tuple[str, ...] | None:
        words = tuple(node.module.split(".")) if node.module else ()
        if not node.level:
            return words[1:] if words[:1] == ("dragoman",) else None
        package = self.name if self.is_package else self.name[:-1]
        return (*package[: len(package) - node.level + 1], *words)

    @cached_property
    def names(self) -> tuple[set[tuple[int, str]], set[tuple[int, str]]]:
        """Return the identifiers and the string literals that are data, with their lines.

        Docstrings are excluded.
        """
        identifiers: set[tuple[int, str]] = set()
        literals: set[tuple[int, str]] = set()
        said: set[ast.expr] = set()
        for node in self.nodes:
            if isinstance(node, ast.Expr):
                said.add(node.value)
            elif isinstance(node, ast.Constant):
                if isinstance(node.value, str) and node not in said:
                    literals.add((node.lineno, node.value))
                elif isinstance(node.value, bytes):
                    literals.add((node.lineno, node.value.decode("latin-1")))
            for field in NAMED.get(type(node), ()):
                if (value := getattr(node, field)) is not None:
                    identifiers.add((node.lineno, value))  # type: ignore[attr-defined]
        return identifiers, literals

    @cached_property
    def vendors(self) -> list[tuple[int, str]]:
        """Return the vendors named outside docstrings and comments, with their lines."""
        identifiers, literals = self.names
        texts = identifiers | literals | {(0, self.path.as_posix())}
        return [(line, name) for line, text in texts for name in find_vendors(text)]


NAMED: dict[type[Any], tuple[str, ...]] = {
    ast.Name: ("id",), ast.Attribute: ("attr",), ast.arg: ("arg",), ast.keyword: ("arg",),
    ast.FunctionDef: ("name",), ast.AsyncFunctionDef: ("name",), ast.ClassDef: ("name",),
    ast.ExceptHandler: ("name",), ast.alias: ("name", "asname"), ast.ImportFrom: ("module",),
}  # fmt: skip


@cache
def find_vendors(text: str) -> list[str]:
    low = text.lower()
    return _VENDOR.findall(re.sub(r"[^a-z0-9]+", "", low)) + _VENDOR_WORD.findall(low)


def wrong_directions(modules: list[Module]) -> list[str]:
    known = {module.name for module in modules}
    found: list[str] = []
    for module in modules:
        if module.layer not in LAYERS + FRONT:
            found.append(f"{module.path}: a layer of this name is not in the list")
            continue
        for _, _, target in module.imports(known):
            layer = target[0] if target else "__init__"
            if module.layer == "__main__" or layer == module.layer:
                continue
            if layer == "cli" or (
                module.layer in LAYERS and layer not in LAYERS[: LAYERS.index(module.layer)]
            ):
                found.append(f"{module.path}: imports {layer}")
    return found


def imported_parts(modules: list[Module]) -> Iterator[tuple[str, str]]:
    """Yield the path of each file that is in a box, with each part of the package it imports."""
    paths = {module.name: module.path.as_posix() for module in modules}
    for module in modules:
        if module.layer in LAYERS:
            for _, _, target in module.imports(set(paths)):
                part = boxes.find_part(paths.get(target, "/".join(target)))
                if part in [*LAYERS, "servers"]:
                    yield module.path.as_posix(), part


def wrong_boxes(modules: list[Module]) -> list[str]:
    """Return the imports of a box that its row of ``BOXES`` does not allow."""
    return [
        f"{path}: imports {part}"
        for path, part in imported_parts(modules)
        if part not in boxes.may_import(path)
    ]


def cycles(modules: list[Module]) -> list[str]:
    """Return files that import each other in a cycle, ignoring re-exports of their package."""
    known = {module.name for module in modules}
    edges = {
        module.name: {target for _, _, target in module.imports(known)} & known
        for module in modules
    }
    found: list[str] = []
    done: set[tuple[str, ...]] = set()

    def walk(name: tuple[str, ...], above: tuple[tuple[str, ...], ...]) -> None:
        if name in above:
            found.append(
                " -> ".join(
                    ".".join(each) or "dragoman" for each in (*above[above.index(name) :], name)
                )
            )
        elif name not in done:
            for target in sorted(edges[name]):
                walk(target, (*above, name))
            done.add(name)

    for name in sorted(edges):
        walk(name, ())
    return found


def hidden_imports(modules: list[Module]) -> list[str]:
    known = {module.name for module in modules}
    return [f"{m.path}:{line}" for m in modules for line, inside, _ in m.imports(known) if inside]


def nameless(modules: list[Module]) -> list[str]:
    return [
        str(module.path) for module in modules if NAMELESS & set(module.path.with_suffix("").parts)
    ]


def executors(modules: list[Module]) -> list[str]:
    return [
        f"{module.path}:{line}"
        for module in modules
        if module.layer not in MAY_EXECUTE
        for line, name in module.names[0]
        if "execute" in name.lower().split("_")
    ]


def vendors(modules: list[Module]) -> list[str]:
    return [
        f"{module.path}:{line}: {name}"
        for module in modules
        for line, name in module.vendors
        if (module.path.as_posix(), name) not in ALLOWED
    ]


EVENTS = {kind.__name__ for kind in get_args(Event)} | {"ToolIntent"}


def event_makers(modules: list[Module]) -> list[str]:
    """Return the calls outside ``events`` that construct an event or an intent."""
    found: list[str] = []
    for module in modules:
        for node in module.nodes if module.layer != "events" else ():
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
                if name in EVENTS:
                    found.append(f"{module.path}:{node.lineno}: makes a {name}")
    return found


# Private attributes of libraries that have no public equivalent.
PRIVATE_ALLOWED = {
    ("local/server.py", "_exit"): "ends a child process without the parent's finalizers"
}


def _private_names(nodes: list[ast.AST]) -> set[str]:
    """Return the private names that a file defines, including attributes and slots."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # string constants may be names in ``__slots__``
    return {name for name in names if name.startswith("_")}


def private_accesses(modules: list[Module]) -> list[str]:
    """Yield uses of private attributes that are defined in another file."""
    found: list[str] = []
    for module in modules:
        own = _private_names(module.nodes)
        for node in module.nodes:
            if (
                not isinstance(node, ast.Attribute)
                or not node.attr.startswith("_")
                or node.attr.endswith("__")
            ):
                continue
            owner = node.value
            is_own = isinstance(owner, ast.Name) and owner.id in ("self", "cls")
            is_super = isinstance(owner, ast.Call) and getattr(owner.func, "id", None) == "super"
            allowed = (module.path.as_posix(), node.attr) in PRIVATE_ALLOWED
            if not (is_own or is_super or allowed or node.attr in own):
                found.append(f"{module.path}:{node.lineno}: {ast.unparse(node)}")
    return found


NAMING = {ast.Constant: "value", ast.ImportFrom: "module", ast.alias: "name"}
PROSE = re.compile("^/|[ \\n]")
WIRES_ALLOWED = {
    ("gateway/openapi.py", "responses"): "a field of OpenAPI",
    ("gateway/stored_responses.py", "responses"): "only this wire refers to stored responses",
}


def wire_names(modules: list[Module]) -> list[str]:
    """Return the names of wires in the gateway and in the policy, which ask the codecs.

    Texts and URLs are left.
    """
    found: list[str] = []
    for module in modules:
        asks = module.layer == "gateway" or module.path.as_posix().startswith("wire/policy/")
        for node in module.nodes if asks else ():
            text = str(getattr(node, NAMING.get(type(node), ""), ""))
            if PROSE.search(text) or getattr(node, "level", 1) == 0:
                continue  # a URL, a text for people, or an import from another library
            for name in CODECS.keys() & re.split("[^a-z_]", text):
                if (module.path.as_posix(), name) not in WIRES_ALLOWED:
                    found.append(f"{module.path}: {name} in {text}")
    return found


Check = Callable[[list[Module]], list[str]]
CHECKS: list[Check] = [
    wrong_directions, wrong_boxes, cycles, hidden_imports, nameless, executors, vendors, event_makers,
    private_accesses, wire_names,
]  # fmt: skip


@cache
def present() -> list[Module]:
    return [Module(source) for source in read_package()]


@cache
def check_present(check: Check) -> list[str]:
    """Run a check on the package itself, and cache the result."""
    return check(present())


@pytest.mark.parametrize("check", CHECKS)
def test_package_keeps_to_its_layers(check: Check) -> None:
    assert check_present(check) == []


def test_every_allowed_exception_to_the_layers_is_used() -> None:
    used = {(module.path.as_posix(), name) for module in present() for _, name in module.vendors}
    assert set(ALLOWED) <= used
    names = {(module.path.as_posix(), name) for module in present() for _, name in module.names[0]}
    assert set(PRIVATE_ALLOWED) <= names


def test_every_layer_is_in_one_box() -> None:
    held = [part for box in boxes.BOXES.values() for part in box.holds.split()]
    assert sorted(held) == sorted([*LAYERS, "servers"])
    for module in present():
        if module.is_package and module.name:
            said = re.search(
                r"^Box: (\w+)[.;]", ast.get_docstring(module.tree) or "", re.MULTILINE
            )
            assert said is not None, f"{module.path}: the docstring does not state the box"
            assert said[1] == boxes.find_box(module.layer), module.path


def test_every_exception_to_the_boxes_is_needed() -> None:
    files = [module.path.as_posix() for module in present()]
    for pattern in boxes.SERVERS:
        assert any(boxes.fnmatchcase(path, pattern) for path in files), pattern
    assert set(boxes.COMMANDS) <= set(files)


def test_every_import_that_a_box_allows_is_used() -> None:
    used: dict[str, set[str]] = {}
    for path, part in imported_parts(present()):
        used.setdefault(boxes.find_box(boxes.find_part(path)), set()).add(part)
    for name, box in boxes.BOXES.items():
        for allowed in box.imports.split():
            parts = boxes.BOXES[allowed].holds.split() if allowed in boxes.BOXES else [allowed]
            assert used[name] & {*parts}, f"{name} imports nothing of {allowed}"


# Fields of vendors' APIs, which only wires may name.
_PRIVATE_FIELDS = re.compile(
    r"\b(tool_use_id|toolu_|functionCall|function_call|tool_choice_mode|thoughtSignature|logprobs)\b"
)
_AGENT_CODE = (
    "permission", "tools", "session", "cli/agent.py", "cli/agent_view.py", "cli/approval.py",
)  # fmt: skip


def test_fields_of_vendors_do_not_appear_in_session_or_cli_code() -> None:
    for source in read_package():
        if source.path.as_posix().startswith(_AGENT_CODE):
            # Ignore the event field ``tool_use_id``, which has the same name as a vendor's field.
            code = source.text.replace("end.tool_use_id", "")
            assert not _PRIVATE_FIELDS.search(code), source.path
    known = {module.name for module in present()}
    users = [module for module in present() if module.layer in ("permission", "tools", "session")]
    imported = {target for module in users for _, _, target in module.imports(known)}
    # Only the package ``wire`` itself is imported, for the swap plan, and none of its wires.
    assert {target for target in imported if target[:1] == ("wire",)} <= {("wire",)}


# --- deliberate violations that the checks must find -------------------------------------------

DIRECTIONS = [
    ("errors.py", "from .messages import User", "messages"),
    ("wire/plan.py", "from ..transport import Transport", "transport"),
    ("wire/openai/reply.py", "from ... import transport", "transport"),
    ("events/check.py", "import dragoman.provider", "provider"),
    ("validate/reply.py", "from dragoman.wire import Codec", "wire"),
    ("provider/connect.py", "from .. import connect", "__init__"),
    ("sync.py", "from .cli import main", "cli"),
    ("__init__.py", "from .cli import main", "cli"),
    ("capabilities.py", "if True:\n    from .wire import Codec", "wire"),
]
PLANTED = [
    *[(wrong_directions, name, code, f"{name}: imports {to}") for name, code, to in DIRECTIONS],
    (wrong_directions, "helpful.py", "x = 1", "a layer of this name is not in the list"),
    (cycles, "events/values.py", "from .check import check_events", "events.values -> events.c"),
    (
        hidden_imports,
        "capabilities.py",
        "def late() -> None:\n    from .errors import scrub",
        "capabilities.py:",
    ),
    (
        hidden_imports,
        "capabilities.py",
        "async def late() -> None:\n    import dragoman.errors",
        "capabilities.py:",
    ),
    (nameless, "wire/utils.py", "x = 1", "wire/utils.py"),
    (nameless, "types/__init__.py", "x = 1", "types/__init__.py"),
    (executors, "provider/http.py", "def execute() -> None: ...", "provider/http.py:"),
    (executors, "wire/plan.py", "x.execute()", "wire/plan.py:"),
    (executors, "messages/values.py", "def run(execute_tool): ...", "messages/values.py:"),
    (executors, "tokens.py", "from concurrent import execute", "tokens.py:"),
    (vendors, "capabilities.py", "OPENROUTER = 1", "openrouter"),
    (vendors, "capabilities.py", "class LlamaCppQuirks: ...", "llamacpp"),
    (vendors, "capabilities.py", "x = 'https://api.mistral.ai'", "mistral"),
    (vendors, "capabilities.py", "x = f'{x} is vLLM'", "vllm"),
    (vendors, "capabilities.py", "x = b'x_groq'", "groq"),
    (vendors, "capabilities.py", "x = 'api.x.ai xai'", "xai"),
    (vendors, "capabilities.py", "def f(together_ai): ...", "togetherai"),
    (vendors, "wire/deepseek.py", "x = 1", "deepseek"),
    (event_makers, "replay/provider.py", 'TextDelta("m", "r", 0, "hi")', "makes a TextDelta"),
    (event_makers, "wire/plan.py", "events.MessageComplete('m', 'r', 'stop')", "MessageComplete"),
    (event_makers, "session/turn.py", "def f():\n    return ToolIntent(*facts)", "a ToolIntent"),
    (private_accesses, "gateway/exchange.py", "provider._calls.cancel('r')", "provider._calls"),
    (private_accesses, "conformance/provider.py", "x = provider._batches", "provider._batches"),
    (private_accesses, "sim/provider.py", "codec.inner._keep_raw", "codec.inner._keep_raw"),
    (wire_names, "gateway/app.py", "match wire:\n    case 'gemini': ...", "gemini"),
    (wire_names, "wire/policy/hosted.py", "X = {'ollama': 1}\nx = X.get(wire)", "ollama"),
    (wire_names, "gateway/app.py", "x = f'openai/{name}'", "openai"),
    (wire_names, "gateway/app.py", "from ..wire.cohere.server import CohereServer", "cohere"),
]


@pytest.mark.parametrize(("check", "name", "code", "complaint"), PLANTED)
def test_layer_checks_find_violations(check: Check, name: str, code: str, complaint: str) -> None:
    original = PACKAGE / name
    text = (original.read_text() if original.exists() else "") + f"\n\n{code}\n"
    looks_at_one_file = check not in (wrong_directions, wrong_boxes, cycles, hidden_imports)
    others = [
        module for module in present() if module.path != Path(name) and not looks_at_one_file
    ]
    before = check_present(check)
    after = check([*others, Module(Source(Path(name), text))])
    assert [found for found in after if found not in before and complaint in found]


BOX_VIOLATIONS = [
    (wrong_boxes, "wire/plan.py", "from ..sim import SimServer", "imports sim"),
    (wrong_boxes, "wire/openai/reply.py", "from .server import OpenAIServer", "imports servers"),
    (wrong_boxes, "session/turn.py", "from ..gateway.keys import Key", "imports gateway"),
    (wrong_boxes, "gateway/app.py", "from ..sim import SimServer", "imports sim"),
    (wrong_boxes, "sim/server.py", "from ..log import EventLog", "imports log"),
    (wrong_boxes, "cli/ask.py", "from ..gateway.keys import Key", "imports gateway"),
]
PLANTED += BOX_VIOLATIONS

INNOCENT = [
    (vendors, '"""Ollama says so."""'),
    (vendors, 'x: int = 1\n"""What Groq and vLLM send."""'),
    (vendors, "# OpenRouter does this\nx = 'openai anthropic gemini responses'"),
    (vendors, "x = 'a maximum'\ny = 'relaxai'"),
    (hidden_imports, "def late() -> None:\n    import uvicorn"),
    (wrong_directions, "from .errors import scrub\nimport msgspec"),
    (executors, "x = 'execute'\ny.executed()"),
    (event_makers, "isinstance(x, TextDelta)\ny: MessageStart | None = None"),
    (
        private_accesses,
        "class A:\n    def __init__(self):\n        self._x = 1\n\ndef f(a):\n    return a._x",
    ),
    (private_accesses, "x.__class__\ntype(x).__name__"),
    (wire_names, "x = codec.wire == 'gemini'"),
]


@pytest.mark.parametrize(("check", "code"), INNOCENT)
def test_layer_checks_accept_correct_code(check: Check, code: str, tmp_path: Path) -> None:
    (tmp_path / "capabilities.py").write_text(code)
    (tmp_path / "errors.py").write_text("")
    assert check([Module(source) for source in read_sources(tmp_path)]) == []

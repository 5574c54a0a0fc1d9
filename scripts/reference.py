"""Generate the reference pages from the code; ``python -m tests.test_docs`` updates them."""

import ast
import inspect
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from tests.boxes import BOXES, find_box
from tests.gateway.upstream import TABLES
from tests.test_layers import FLOORS

import dragoman
from dragoman.cli import main
from dragoman.cli.errors import EXIT_CODES
from dragoman.errors import ProviderError
from dragoman.wire import CODECS, SERVER_CODECS
from dragoman.wire.headers import ALL_WIRES
from dragoman.wire.policy import NEVER
from dragoman.wire.rules import FieldRule

from .vendor_pages import write_beliefs

PACKAGE = Path(dragoman.__file__).parent

# Modules that users look up, in the order of the documentation; a package is one page.
MODULES = [
    "provider", "retrieval", "messages", "events", "calls", "errors", "capabilities",
    "registry",
    "middleware", "prices", "tokens", "batches", "comparison", "log", "session", "tools", "permission", "replay",
    "trace",
    "conformance", "sim", "gateway", "testing", "sync", "local", "transport", "validate", "wire",
]  # fmt: skip


def write_pages() -> dict[str, str]:
    """Return a mapping from paths under ``docs/reference`` to the generated pages."""
    return {
        "cli.md": write_commands(),
        "errors.md": write_errors(),
        "gateway-fields.md": write_gateway_fields(),
        "beliefs.md": write_beliefs(),
        **write_modules(),
    }


# --- reference page of the dragoman command ----------------------------------------------------


def write_commands() -> str:
    """Return the help texts of all commands as a page; options that several commands share are
    explained once.
    """
    found = dict(_commands(main, _context(main, "dragoman", None)))
    counted = Counter(
        [record for each, context in found.values() for record in _options(each, context)]
    )
    shared = {record for record, times in counted.items() if times > _SHARED}
    text = _context(main, "dragoman", None).make_formatter()
    text.write_dl(sorted(shared, key=lambda record: (record[0].lstrip("-"), record[1])))
    parts = [_COMMANDS_HEAD, f"```text\n{text.getvalue().lstrip()}```\n"]
    for name, (command, context) in found.items():
        head = f"{name} {_arguments(command, context)}".rstrip()
        guide = _GUIDES.get(name.removeprefix("dragoman "), "")
        link = f"[Guide](../{guide})\n\n" if guide else ""
        text = _help(command, context, shared, bool(guide))
        parts.append(f"\n## {head}\n\n{link}```text\n{text}```\n")
    return "".join(parts)


# Pages that explain a command, in place of all but the first paragraph of its help text.
_GUIDES = {
    "agent": "howto/agent.md",
    "ask": "howto/command-line.md",
    "batch": "howto/batches.md",
    "chat": "howto/command-line.md#chat",
    "check": "howto/check-a-server.md",
    "compare": "howto/compare-models.md",
    "doctor": "supply-chain.md",
    "import litellm": "howto/moving.md#litellms-proxy",
    "keys": "howto/command-line.md#keys",
    "keys gateway": "howto/operate.md#keys-of-many-users",
    "local pull": "howto/local-models.md",
    "local serve": "howto/local-models.md",
    "log approve": "concepts/permission.md",
    "log cost": "concepts/prices.md",
    "log export": "concepts/log.md",
    "log import": "howto/long-work.md#move-one-session",
    "log tools": "concepts/log.md#quality-of-tool-calls",
    "log view": "howto/trace-viewer.md",
    "mcp login": "howto/agent.md#mcp-servers",
    "mcp serve": "howto/agent.md#mcp-servers",
    "models list": "howto/models-by-name.md",
    "models update": "howto/models-by-name.md#newer-models-than-the-release",
    "plan": "howto/swap-models.md",
    "replay": "concepts/replay.md",
    "serve": "howto/serve.md",
    "sim": "howto/simulate.md",
    "ui": "howto/web-pages.md",
}
_SHARED = 1  # an option that more commands have is explained at the top
_COMMANDS_HEAD = """\
# The command

`--help`, which every command has, prints more than this page: examples, the limits of numbers, and what the linked guides
explain. An option with `...` may be repeated. See also the [guide to the command line](../howto/command-line.md) and the [exit
codes](errors.md#exit-codes).

## Options of several commands

"""


def _commands(
    group: click.Group, context: click.Context
) -> Iterator[tuple[str, tuple[click.Command, click.Context]]]:
    """Yield each command below a group with its context, by its full name."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = _context(command, name, context)
        yield inner.command_path, (command, inner)
        if isinstance(command, click.Group):
            yield from _commands(command, inner)


def _options(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    options = [each for each in command.get_params(context) if isinstance(each, click.Option)]
    records = [each.get_help_record(context) for each in options]
    return [_plain(record) for record in records if record and "--help" not in record[0]]


def _plain(record: tuple[str, str]) -> tuple[str, str]:
    """Return an option without the limits of its number. The option that prints a result as JSON
    gets one text, because its result has many names.
    """
    name = re.sub(r"INTEGER( RANGE)?|FLOAT", "N", record[0])
    text = record[1]
    if name == "--json" and re.fullmatch(r"Print [\w ]+ as JSON\.", text):
        return "--json", "Print the result as JSON."
    text = re.sub(r"(; |  \[)[\d.<=]*x[\d.<>=]+\]", lambda at: "]" * (at[1] == "; "), text)
    if "; may be repeated" in text:
        return f"{name}...", text.replace("; may be repeated", "")
    return name, text


def _arguments(command: click.Command, context: click.Context) -> str:
    names = [part for part in command.collect_usage_pieces(context) if part != "[OPTIONS]"]
    return f"`{' '.join(names).removesuffix(' [ARGS]...')}`" if names else ""


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    """Return a click context with the same help option names as the command line."""
    return click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=88,
        max_content_width=88,
        **command.context_settings,
    )


def _help(
    command: click.Command, context: click.Context, shared: set[tuple[str, str]], guided: bool
) -> str:
    text = context.make_formatter()
    with text.indentation():
        for paragraph in inspect.cleandoc(command.help or "").split("\n\n")[
            : 1 if guided else None
        ]:
            if not paragraph.startswith("\b"):  # an example
                text.write_paragraph()
                text.write_text(paragraph)
    records = _options(command, context)
    if own := [record for record in records if record not in shared]:
        text.write_paragraph()
        with text.indentation():
            text.write_dl(own)
    if also := [record[0].split(" ")[0].rstrip(",") for record in records if record in shared]:
        text.write_paragraph()
        text.write_text(f"Also: {', '.join(also)}.")
    command.format_epilog(context, text)
    return text.getvalue().lstrip("\n")


# --- reference page of errors ------------------------------------------------------------------

_ERRORS = """\
# Errors

All errors that a model call can raise are subclasses of `ProviderError`. `category` is the name of the error in
OpenArmature, `error_class` in the adapter contract, and `kind` is more specific. `transient` is true if the same call may
succeed later. Every error has `status`, `provider`, `model`, `request_id`, `provider_code`, `provider_message`, `headers` (safe
ones), `response` (the partial reply, or `None`), `__cause__` and, if the provider sent it, `retry_after`. The text never
contains a key or a prompt.

A call that is known to fail is rejected before anything is sent, with the `status` `None` and a `provider_code` of
`not_configured`, `no_vision_support`, `exceeds_context_window`, `no_tool_support` or `no_system_prompt_support`.

The text and the codes in the server's reply decide the class, and else the HTTP status: 401 and 403 `AuthenticationError`,
402 `BillingError`, 408 `TimedOutError`, 429 `RateLimitError`, 529 `OverloadedError`, others from 500 `UnavailableError`, all
others, such as 400, 413 and 422, `InvalidRequestError`. An error inside a reply of status 200 has no `status`, unless the
server states one. Servers word their errors as they like: 68 of 75 texts that users reported, and from which no pattern was
made, get their class.

In brackets: the parent class if it is not `ProviderError`, `category`, `error_class`, `kind`, and whether the error is
transient.

{rows}

An invalid argument of a function raises `ValueError` with the name of the field; an invalid file raises `ConfigError`,
a subclass of `ValueError`, with the file and the line.

## Exit codes

- 0: success
- 1: a bug, or a check with the answer "no"
- 2: wrong usage, or a file that is invalid or cannot be read
- an error, by its category: {codes}
"""


_FIELDS_HEAD = """# Fields of requests to the gateway

What `dragoman serve` does with each field of a request if client and model use different wires. Between the same wires every
field is forwarded unchanged, apart from those marked *always* and those whose [beta](#betas) is not sent.

- **read**: Dragoman's `Request` has an equivalent, which every wire writes in its own form.
- **mapped**: translated if the model's wire has a field for the same purpose, otherwise left out.
- **left out**, as are fields that this page does not list: reported in the header `x-dragoman-warnings`, the access log, the
  event log and the metric `dragoman_warnings_total`.
- **refused**, because the answer would mean something else without the field. The error says what to do.

A field with its default value is neither sent nor reported. With `on_loss: reject` for a key or for a model in `models.yaml`, a
request with any loss is refused; with `on_loss: drop` for a key, log probabilities are left out, for clients that always
request them. Fields that determine where a request goes are always refused: NEVER.

## Betas

Clients of the anthropic wire opt in to new features with the header `anthropic-beta`. To a model of the same wire, the gateway
sends each beta that `--beta` allows, and those of the model's configuration. A field that needs a beta which is not sent is
left out or refused, as if the model used another wire; a field *or no beta* is sent unless the client names its beta and the
gateway drops it. If a beta is dropped (reported as `beta_dropped`), fields that this page does not list are left out too.

By default, `--beta default`, the betas are allowed that concern one request and its reply alone: SAFE. To allow more, give
the option several times: `--beta default --beta 'files-api-*'`. Think twice about betas that let clients use what belongs to
the operator's account, such as uploaded files (`files-api-*`), other models (`server-side-fallback-*`) or a more expensive
service (`fast-mode-*`). `--beta none` allows none. Claude Code asks gateways to [send on every
beta](https://code.claude.com/docs/en/llm-gateway-protocol) (seen 2026-11-18): where all clients belong to the owner of the vendor's
account, use `--beta '*'`.

The fields `speed` and `inference_geo` raise the price without any beta. They are left out unless the operator allows them:
`--beta default --beta 'fast-mode-*'`, or `--beta inference-geo`. So are service tiers that are not known to cost the usual price
or less, such as `priority`, `fast` and `ultrafast`: `--beta default --beta priority-tier`. What is allowed is [billed at its own
rates](../concepts/prices.md#service-tiers); a key with a budget is refused a tier whose price is not known.

A server may refuse betas that it does not know, as Google Cloud and Bedrock do. The request is then sent once more without the
betas that the error names, and they are left out from then on.
"""
_EFFECTS = {"read": "read", "mapped": "mapped", "hint": "left out", "refused": "refused"}


def write_gateway_fields() -> str:
    """Return the page about the gateway policy for each request field."""
    never = ", ".join([f"`{name}`" for name in NEVER])
    safe = ", ".join([f"`{name}`" for name in SERVER_CODECS["anthropic"].safe_betas])
    parts = [_FIELDS_HEAD.replace("NEVER", never).replace("SAFE", safe), _show_concepts()]
    for wire, rules in TABLES.items():
        read = [f"`{name}`" for name, rule in sorted(rules.items()) if rule.effect == "read"]
        parts.append(f"\n## {wire}\n\nRead: {', '.join(read)}.\n")
        rows: dict[str, dict[tuple[str, str], list[str]]] = {}
        for name, rule in sorted(rules.items()):
            defaults = ", ".join([f"`{json.dumps(value)}`" for value in rule.default])
            effect = _EFFECTS[rule.effect] + (", *always*" if rule.always else "")
            if rule.effect != "read" and not _places(rule):
                about = rule.what + _show_betas(rule)
                rows.setdefault(effect, {}).setdefault((defaults, about), []).append(f"`{name}`")
        for effect, listed in rows.items():
            parts.append(f"\n{effect[0].upper()}{effect[1:]}:\n\n")
            parts += [
                f"- {', '.join(names)}{f' (default {defaults})' if defaults else ''}: {about}\n"
                for (defaults, about), names in listed.items()
            ]
    return "".join([*parts, _HEADERS_HEAD, *_show_headers()])


_CONCEPTS_HEAD = """
## Mapped fields

From a client → to a model:

"""


def _places(rule: FieldRule) -> str:
    """Return where each wire has a field for the same purpose."""
    known = {each: CODECS[each].concepts for each in SERVER_CODECS}  # type: ignore[attr-defined]
    return ", ".join(
        [
            f"{each} `{_place(places[rule.concept])}`"
            for each, places in known.items()
            if rule.concept in places
        ]
    )


def _show_concepts() -> str:
    """Return the table of fields that are translated between wires, one row for each purpose."""
    rows: dict[str, list[str]] = {}
    for wire, rules in TABLES.items():
        for name, rule in sorted(rules.items()):
            if rule.effect != "read" and (places := _places(rule)):
                defaults = " or ".join([f"`{json.dumps(value)}`" for value in rule.default])
                shown = f"{wire} `{name}`" + (f" (default {defaults})" if defaults else "")
                rows.setdefault(places, []).append(shown)
    return _CONCEPTS_HEAD + "".join(
        [f"- {', '.join(names)} → {places}\n" for places, names in rows.items()]
    )


_HEADERS_HEAD = """
## Headers

Of the headers that the vendors' SDKs send, the gateway reads or sends on these:

"""
_IGNORED_HEAD = """
It ignores these, and all others; none is sent to the model's server:

"""


def _show_headers() -> list[str]:
    used: dict[str, list[str]] = {}
    ignored: dict[str, list[str]] = {}
    for rules in (ALL_WIRES, *[codec.headers for codec in SERVER_CODECS.values()]):
        for name, rule in rules.items():
            names = (ignored if rule.effect == "ignored" else used).setdefault(rule.why, [])
            shown = f"`{name}`" + (" (to a model of the same wire)" * (rule.effect == "sent"))
            if shown not in names:
                names.append(shown)
    rows = [
        [f"- {', '.join(names)}: {why}\n" for why, names in each.items()]
        for each in (used, ignored)
    ]
    return [*rows[0], _IGNORED_HEAD, *rows[1]]


def _show_betas(rule: FieldRule) -> str:
    if rule.opt_in:
        pattern = rule.betas[0] if rule.betas else rule.opt_in
        values = " or ".join([f"`{json.dumps(value)}`" for value in rule.cheap])
        which = f"; {values}, and others only" if rule.cheap else "; sent"
        return f"{which} if `--beta` allows `{pattern}`"
    names = " or ".join([f"`{name}`" for name in rule.betas])
    return f"; beta: {names}{' or no beta' if rule.released else ''}" if names else ""


def _place(place: Any) -> str:
    return str(place[0] if isinstance(place, tuple) else place)


def write_errors() -> str:
    """Return the page with the tree of error classes, their codes and the exit codes."""
    rows = [
        f"- `{kind.__name__}` ({_show_codes(kind)}): {_first_line(kind)} {kind.advice}".rstrip()
        for kind in _walk(ProviderError)
    ]
    codes = [
        f"{code} `{name}`" for name, code in sorted(EXIT_CODES.items(), key=lambda item: item[1])
    ]
    return _ERRORS.format(rows="\n".join(rows), codes=", ".join(codes))


def _show_codes(kind: type[ProviderError]) -> str:
    parent = kind.__bases__[0]
    shown = [f"`{parent.__name__}`"] if parent is not ProviderError else []
    shown += [f"`{code}`" for code in (kind.category, kind.error_class, kind.kind)]
    return ", ".join([*shown, "transient"] if kind.transient else shown)


def _walk(kind: type[ProviderError]) -> Iterator[type[ProviderError]]:
    for each in kind.__subclasses__():
        if each.__module__ == "dragoman.errors":
            yield each
            yield from _walk(each)


def _first_line(kind: type) -> str:
    return (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")


# --- reference pages of the Python modules -----------------------------------------------------


def write_modules() -> dict[str, str]:
    """Return one reference page per module; the site build adds the docstrings."""
    pages = {f"python/{name}.md": _module(name) for name in MODULES if _file(name) is not None}
    listed = [
        f"- [`dragoman.{name}`](python/{name}.md): {_about(name)}: {_names(name)}"
        for name in MODULES
        if _file(name)
    ]
    table = "\n".join(listed)
    pages["python.md"] = (
        "# Python API\n\nEvery public name, by module. Names in bold can also be imported from "
        f"`dragoman` itself; they are loaded when they are first used.\n\n{table}\n"
    )
    return pages


def _names(module: str) -> str:
    """Return the classes and functions of a module as a list, without its constants."""
    return ", ".join(
        [
            f"**`{name}`**" if name in dragoman.__all__ else f"`{name}`"
            for name in _exports(module)
            if not name.isupper()
        ]
    )


def _file(name: str) -> Path | None:
    return next(
        (
            path
            for path in (PACKAGE / f"{name}.py", PACKAGE / name / "__init__.py")
            if path.exists()
        ),
        None,
    )


def _module(name: str) -> str:
    # Search finds guides, and the page with all names; 2,500 attributes would hide them.
    return (
        "---\nsearch:\n  exclude: true\n---\n\n"
        f"# dragoman.{name}\n\n::: dragoman.{name}\n    options:\n      members: "
        f"[{', '.join(_exports(name))}]\n"
    )


def _exports(name: str) -> list[str]:
    file = _file(name)
    assert file is not None
    for node in ast.parse(file.read_text()).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == "__all__":
            return list(ast.literal_eval(node.value))  # type: ignore[attr-defined]
    raise AssertionError(f"{name} has no __all__")


def _about(name: str) -> str:
    file = _file(name)
    assert file is not None
    doc = ast.get_docstring(ast.parse(file.read_text())) or ""
    return doc.split("\n")[0].replace("``", "`").rstrip(".:")


_LAYERS = re.compile(r"(<!-- layers -->\n).*(<!-- /layers -->)", re.DOTALL)


def _list_imports(name: str) -> str:
    """Return what a box may import besides itself."""
    imports = BOXES[name].imports.split()
    return ", ".join(imports if name == "core" else ["core", *imports]) or "nothing"


def write_layers(page: str) -> str:
    """Return ``docs/design.md`` with the current boxes and layers."""
    rows = "".join(
        [f"{name:<9}imports {_list_imports(name):<55}{box.what}\n" for name, box in BOXES.items()]
    )
    rows += "\n"
    rows += "".join([f"{name:<14}{find_box(name):<9}{about}\n" for name, about in FLOORS.items()])
    return _LAYERS.sub(lambda found: f"{found[1]}\n```text\n{rows}```\n\n{found[2]}", page)

"""Implement the command ``dragoman agent``."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import click
from click.core import ParameterSource
from msgspec import Struct
from msgspec.structs import replace

from .. import tools as toolbox
from ..errors import AuthenticationError, ProviderError, UnsupportedFeatureError, advise_import
from ..local import WeightsError, find_model, list_models
from ..log import EventLog, LogRecord
from ..messages import RuntimeConfig
from ..permission import Approver, Policy, Rule
from ..provider import SCHEMES, Provider
from ..replay import make_printable
from ..session import (
    Budget,
    ContextPolicy,
    DropOldToolResults,
    KeepAll,
    NativeCompaction,
    Outcome,
    RemoteApprover,
    Session,
    SessionError,
    SharedBudget,
    Summarise,
    Window,
    hook,
)
from .acp_models import EditorModels, list_choices
from .agent_batch import AgentBatchOptions, run_agents
from .agent_view import AgentView
from .approval import InputLines, make_approver
from .completion import ModelName
from .console import notify, show_json
from .errors import EXIT_CODES, reject, report_errors, report_mistakes
from .keys import set_key
from .log_place import LogPlace, open_log_at
from .mcp_servers import McpOptions, open_servers
from .options import ModelOptions, default_model, load_registry, open_model
from .parameters import ExistingFile, Folder, Json, add_options, option
from .sessions import find_session

_EFFECTS = ("none", "read", "write", "execute", "network")
_SYSTEM = (
    "You work in a folder of files, with tools. Find out before you change anything, make the "
    "smallest change that does it, and check that it did. Not every action will be allowed: when "
    "one is refused, find another way or say what you would need. When you are done, say in a few"
    " sentences what you found and what you did."
)
# Writing below .git is not allowed: a hook or a setting there runs programs later, outside the
# sandbox. In worktrees .git is a file.
_HISTORY = [
    Rule("deny", path=path, side_effect=["write"], name="version control is not written")
    for path in ("**/.git", "**/.git/**")
]
_CONTEXTS: dict[str, tuple[ContextPolicy, ...]] = {
    "results": (DropOldToolResults(), Window()),
    "window": (Window(),),
    "summary": (DropOldToolResults(), Summarise()),
    "native": (NativeCompaction(),),
    "all": (KeepAll(),),
}
_READING = Rule("allow", side_effect=["none", "read"], name="reading")


@click.command("doctor")
@add_options
def doctor(
    *,
    workspace: Annotated[Folder, "Check for an agent that works in this folder."] = Path(),
    as_json: Annotated[Json, "Print the findings as JSON."] = False,
) -> None:
    """Try the protections of dragoman agent on this machine, and print which are active.

    Advice is printed for each missing protection. Exit code 1 means that one is missing. No model
    is called.
    """
    found = asyncio.run(toolbox.list_protections(workspace))
    missing = [each for each in found if not each.active]
    if as_json:
        show_json({"complete": not missing, "protections": found})
    else:
        for each in found:
            word, colour = ("active", "green") if each.active else ("missing", "red")
            text = each.detail if each.active else f"{each.detail}; {each.advice}"
            state = click.style(f"{word:7}", fg=colour)
            click.echo(f"{state}  {each.name:26}  {make_printable(text)}")
    if missing:
        raise SystemExit(1)


class _Agent(click.Command):
    """Parse ``dragoman agent GOAL`` and its only subcommand, ``dragoman agent doctor``.

    A Click group would parse the beginning of GOAL as a subcommand.
    """

    commands: ClassVar[dict[str, click.Command]] = {"doctor": doctor}

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if args[:1] == ["doctor"]:
            return doctor.make_context(f"{info_name} doctor", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


class AgentOptions(Struct, kw_only=True):
    """The options of ``dragoman agent``."""

    model: Annotated[
        str | None,
        "Use this model in place of $DRAGOMAN_MODEL or the default of models.yaml.",
        option(type=ModelName()),
    ] = None
    target: ModelOptions
    workspace: Annotated[Folder, "Let the agent work in this folder only."] = Path()
    allowed: Annotated[
        tuple[str, ...], "Allow calls that match RULE; may be repeated.", option("RULE", "--allow")
    ] = ()
    denied: Annotated[
        tuple[str, ...], "Deny calls that match RULE, even allowed ones.", option("RULE", "--deny")
    ] = ()
    policy: Annotated[ExistingFile, "Read permission rules from a YAML or JSON file."] = None
    mode: Annotated[
        str | None,
        "Allow every tool call that no rule denies, without asking.",
        option(flags="--yes", flag_value="yes"),
        "Ask about every tool call, even calls that only read.",
        option(flags="--ask", flag_value="ask"),
    ] = None
    hook: Annotated[
        str | None,
        "Let a program decide on each tool call; JSON goes in and out.",
        option("COMMAND"),
    ] = None
    await_approval: Annotated[
        bool, "Accept decisions that another process makes with dragoman log approve."
    ] = False
    limits: Annotated[
        tuple[str, ...],
        "Stop at steps=N (50 by default), tokens=N, usd=N, seconds=N or calls=N of tools; may be repeated.",
        option("LIMIT", "--budget"),
    ] = ()
    context: Annotated[
        str,
        "Shorten a conversation that grows too long: leave out old results or old turns, "
        "summarise old turns, let the provider compact the conversation, or keep everything.",
        option(type=click.Choice(list(_CONTEXTS))),
    ] = "results"
    plugins: Annotated[
        tuple[str, ...], "Offer the tools of an installed plugin.", option("NAME", "--plugin")
    ] = ()
    mcp: McpOptions
    network: Annotated[bool, "Let commands in the sandbox use the network."] = False
    readable: Annotated[
        tuple[str, ...],
        "Let sandboxed commands read this folder, such as ~/.cargo; may be repeated.",
        option("PATH", type=click.Path(exists=True)),
    ] = ()
    system: Annotated[
        str, "Replace the built-in system prompt.", option("TEXT", show_default=False)
    ] = _SYSTEM
    max_tokens: Annotated[int | None, "Limit each reply to this many tokens."] = None
    where: LogPlace = None
    resume: Annotated[
        str | None, "Continue a session: its id, a part of its id, or last.", option("SESSION")
    ] = None
    fork: Annotated[str | None, "Begin with a copy of another session.", option("SESSION")] = None
    at: Annotated[
        int | None, "Continue after the record with this number.", option("SEQ", ge=1)
    ] = None
    goals: Annotated[
        tuple[str, ...],
        "Pursue this goal after the previous goal; may be repeated.",
        option("GOAL", "--then"),
    ] = ()
    takeover: Annotated[bool, "Resume a session that another process still runs."] = False
    once: Annotated[bool, "End after the first answer; do not ask for another goal."] = False
    as_json: Annotated[
        Json, "Print every record as one line of JSON, or the report of --batch."
    ] = False
    rows: AgentBatchOptions
    acp: Annotated[
        bool, "Serve an editor by the Agent Client Protocol, on standard input and output."
    ] = False
    login: Annotated[
        bool, "Store the key of the model's vendor, asked for at the terminal; with --acp."
    ] = False


@click.command("agent", cls=_Agent)
@click.argument("goal", required=False)
@add_options
def command(goal: str | None, options: AgentOptions) -> None:
    """Let a model pursue GOAL with tools in a folder: read, list, search and edit files, run bash.

    Reading is allowed. Every other call asks for your approval, and is denied without a terminal.
    A RULE is a tool or a side effect (none, read, write, execute, network), optionally with a
    pattern for its command or its path: "write", "bash:pytest *", "edit_file:src/**". Every step
    is recorded in the log before it runs; see dragoman log and dragoman replay. At a
    terminal, the command asks for the next goal after an answer; an empty line or Ctrl-D ends the
    session. dragoman agent doctor shows which sandbox confines commands on this machine. With
    --acp, an editor sends the goals, and the argument names the model. With --batch, each row of
    a file has a "goal", and its session works in a folder of its own. Exit codes: 0 the model
    answered, 23 a budget is exhausted, 24 the session failed, 130 interrupted.
    """
    toolbox.hide_memory()  # keep commands from reading the API keys of this process in /proc
    policy = _read_policy(options)
    budget = _read_budget(options.limits)
    _check_batch(goal, options)
    if options.rows.batch is None:
        _check_options(goal, options)
    if options.login:
        _log_in(options)
        return
    with report_errors():
        provider = None if options.acp else _open_model(options)
    view = AgentView(as_json=options.as_json)
    # The library's warnings are recorded and shown by other means, not by the logging module.
    logging.getLogger("dragoman").addHandler(logging.NullHandler())
    settings: dict[str, Any] = {
        "provider": provider,
        "policy": policy,
        "system": options.system,
        "config": RuntimeConfig(max_tokens=options.max_tokens),
        "budget": budget,
        "context": _CONTEXTS[options.context],
        "on_record": view.show_record,
        "on_event": view.show_event,
    }
    with open_log_at(options.where, readonly=False) as log:
        settings["log"] = log
        if options.acp:
            asyncio.run(_serve(settings, options))
            return
        if options.rows.batch is not None:
            _run_batch(settings, options, view)
            return
        options.resume = find_session(log, options.resume, "agent")
        options.fork = find_session(log, options.fork, "agent")
        if not options.as_json:  # otherwise the records have the warning
            view.warn_of_sandbox()
        outcome = asyncio.run(_run(goal, settings, options, view)).outcome
        code = 0 if outcome == "completed" else EXIT_CODES.get(f"session_{outcome}")
        raise SystemExit(EXIT_CODES["cancelled"] if code is None else code)


def _extend(approver: Approver | None, log: EventLog, options: AgentOptions) -> Approver | None:
    """Return an approver that also asks other processes and a hook, as the options require."""
    if options.await_approval:
        approver = RemoteApprover(log, approver)
    if options.hook:  # the program decides first
        approver = hook(shlex.split(options.hook), then=approver)
    return approver


async def _serve(settings: dict[str, Any], options: AgentOptions) -> None:
    """Serve the sessions of an editor until it closes the connection."""
    advice = "--acp needs the package of the protocol: pip install 'dragoman[acp]'"
    with reject(ImportError), advise_import(advice):
        acp = importlib.import_module(".acp", __package__)
    log = settings["log"]
    models = _list_models(options)
    # A model without a key must not end the process: the editor shows how to log in.
    with report_errors(), contextlib.suppress(AuthenticationError):
        await models.open()
    view = AgentView(as_json=True)  # its notes go to standard error
    view.warn_of_sandbox()

    async def open_session(
        editor: Any, provider: Provider, servers: Any, resume: str | None
    ) -> Session[Any]:
        def show(record: LogRecord) -> None:
            view.note_losses(record.payload)
            editor.show_record(record)

        chosen = replace(options, workspace=editor.workspace, resume=resume)
        watch = {"provider": provider, "on_record": show, "on_event": editor.show_event}
        watch["approve"] = _extend(editor.approve, log, options)
        tools = await _open_tools(editor.stack, chosen, view, None, servers)
        return await _open_session(tools, settings | watch, chosen)

    with reject(ValueError, about="--acp: "):  # standard input or output is a file
        streams = await acp.open_stdio()
    async with models:
        await acp.EditorAgent(open_session, models, log, settings["config"]).serve(*streams)


def _run_batch(settings: dict[str, Any], options: AgentOptions, view: AgentView) -> None:
    """Run a session for each row of a file."""
    given = click.get_current_context().get_parameter_source("workspace")
    template = None if given is ParameterSource.DEFAULT else options.workspace
    log: EventLog = settings["log"]
    # A session that needs a decision must not block the others, unless a program decides.
    waits = options.await_approval and not options.hook
    approver = "wait" if waits else _extend(None, log, options)
    if not options.as_json:
        view.warn_of_sandbox()

    @asynccontextmanager
    async def open_session(
        name: str, folder: Path, budget: SharedBudget
    ) -> AsyncIterator[Session[Any]]:
        chosen = replace(options, workspace=folder)
        own = {
            "approve": approver,
            "budget": budget,
            "on_event": None,
            "on_record": lambda record: view.note_losses(record.payload),
        }
        async with AsyncExitStack() as stack:
            tools = await _open_tools(stack, chosen, view, None)
            yield await _open_session(tools, settings | own, chosen, name)

    identity = {
        "model": settings["provider"].model,
        "system": options.system,
        "workspace": None if template is None else str(template.resolve()),
    }
    run_agents(
        options.rows, settings["provider"], open_session, log=log, limits=settings["budget"], template=template,
        identity=identity, as_json=options.as_json,
    )  # fmt: skip


def _list_models(options: AgentOptions) -> EditorModels:
    """Return the models of an editor's sessions; at another address, there is only the one."""

    def open_named(name: str | None) -> Provider:
        if name is not None:
            return _open_model(replace(options, model=name))
        try:
            return _open_model(options)
        except UnsupportedFeatureError:
            if options.model is not None or default_model() is not None:
                raise
            advice = "Name one, as in `dragoman agent --acp anthropic:claude-sonnet-4-6`, or set DRAGOMAN_MODEL."
            raise AuthenticationError("no model is chosen", advice=advice) from None

    def find_efforts(name: str) -> tuple[str, ...] | None:
        with contextlib.suppress(ProviderError):
            return registry.find_efforts(registry.find(name))
        return None

    if options.target.base_url is not None:
        return EditorModels(open_named)
    registry = load_registry()
    return EditorModels(open_named, partial(list_choices, registry), find_efforts)


def _log_in(options: AgentOptions) -> None:
    """Ask for the key of the chosen model's vendor, and store it."""
    model = options.model or default_model()
    registry = load_registry()
    variable: str | None
    if model is None:
        variable = str(click.prompt("vendor, such as anthropic or openai", err=True))
    else:
        with report_errors():
            variable = registry.adapter(registry.find(model).adapter).api_key_env
    if variable is None:
        notify(f"{model} needs no key")
        return
    click.get_current_context().invoke(set_key, name=variable, rest=())


def _open_model(options: AgentOptions) -> Provider:
    """Open the named or the default model; raise an error if it is known to lack tool support."""
    base_url = options.target.base_url
    if base_url is not None and options.model is None:
        raise click.UsageError("--base-url needs a model; add --model NAME")
    model = options.model or default_model() or "local"
    scheme, _, rest = model.partition(":")
    if base_url is None and scheme in SCHEMES:
        # for an unknown name, opening the model raises an error that lists the known names
        with contextlib.suppress(WeightsError):
            found = find_model(rest)
            if found.entry is not None and not found.entry.calls_tools:
                raise _refuse("local", found.entry.model)
    provider = open_model(model, options.target).provider
    if provider.capabilities.known("supports_tools") is False:
        raise _refuse(provider.name, provider.model)
    return provider


def _refuse(provider: str, model: str) -> UnsupportedFeatureError:
    advice = "Name one that does with --model."
    if local := next((each.name for each in list_models() if each.calls_tools), None):
        advice += f" Without a key: dragoman local pull {local}, and --model local:{local}."
    problem = "this model does not call tools, and an agent works with tools"
    return UnsupportedFeatureError(problem, provider=provider, model=model, advice=advice)


async def _run(
    goal: str | None, settings: dict[str, Any], options: AgentOptions, view: AgentView
) -> Outcome:
    lines = InputLines()
    approver = make_approver(view, lines, always=options.mode == "ask")
    settings["approve"] = _extend(approver, settings["log"], options)
    is_watched = sys.stdin.isatty() and sys.stdout.isatty()
    is_asked = is_watched and not options.as_json and not options.once
    try:
        async with settings["provider"], AsyncExitStack() as stack:
            tools = await _open_tools(stack, options, view, lines)
            session = await _open_session(tools, settings, options)
            for more in options.goals:
                session.follow_up(more)
            while True:
                outcome = await session.run(goal)
                view.show_outcome(outcome)
                if not is_asked or outcome.outcome != "completed":
                    return outcome
                if not (goal := await _ask_next(lines)):
                    return outcome
    except (SessionError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    except toolbox.ToolFailure as error:
        notify(f"error: {error}")
        raise SystemExit(EXIT_CODES["session_failed"]) from None


async def _open_session(
    tools: list[toolbox.ExecutableTool],
    settings: dict[str, Any],
    options: AgentOptions,
    name: str | None = None,
) -> Session[Any]:
    """Open the session that the options describe; with a name, the session with this name."""
    facts = [(tool.name, tool.side_effect, tool.names_paths) for tool in tools]
    for rule in settings["policy"].find_idle(facts):
        # The session accepts a rule about tools that it does not have. A rule for this command
        # is then a mistake, because the tools that name paths are always there.
        raise click.UsageError(
            f"the rule {rule.label!r} never matches: no tool that it is about names paths"
        )
    folder = str(options.workspace.resolve())
    sandbox = toolbox.find_sandbox().label
    settings |= {"tools": tools, "metadata": {"workspace": folder, "sandbox": sandbox}}
    if name is not None:
        return await Session.open(session_id=name, **settings)
    if options.fork is not None:
        return await Session.fork(session_id=options.fork, at=options.at, **settings)
    if options.resume is None:
        return Session(**settings)
    settings |= {"takeover": options.takeover, "at": options.at}
    return await Session.resume(session_id=options.resume, **settings)


async def _ask_next(lines: InputLines) -> str:
    """Ask for the next goal; return an empty string at the end of the input."""
    click.echo("what next? (empty line to end) ", nl=False, err=True)
    line = await lines.read()
    if line is None:
        click.echo(err=True)
    return (line or "").strip()


async def _open_tools(
    stack: AsyncExitStack,
    options: AgentOptions,
    view: AgentView,
    lines: InputLines | None,
    servers: Sequence[dict[str, Any]] = (),
) -> list[toolbox.ExecutableTool]:
    tools = toolbox.workspace_tools(
        options.workspace, network=options.network, readable=options.readable
    )
    with reject(ValueError, about="--plugin: "):
        tools += toolbox.plugin_tools(options.plugins)
    asked = lines if sys.stdin.isatty() and sys.stderr.isatty() else None
    return tools + await open_servers(stack, options.mcp, view, asked, servers)


# --- reading the options -----------------------------------------------------------------------


def _check_options(goal: str | None, options: AgentOptions) -> None:
    if options.login and not options.acp:
        raise click.UsageError("--login belongs to --acp; dragoman keys set stores a key")
    resumed = options.resume is not None
    forked = options.fork is not None
    if options.acp:
        decided = options.workspace != Path(), options.goals, options.once, options.as_json
        if resumed or forked or any(decided):
            raise click.UsageError(
                "--acp: the editor decides about the sessions; leave out --workspace, --resume, "
                "--fork, --then, --once and --json"
            )
        if goal is not None and options.model is not None:
            raise click.UsageError(f"--acp {goal} --model {options.model}: name one model")
        options.model = options.model or goal
    elif goal is None and not resumed and not forked:
        raise click.UsageError("give a GOAL, or --resume a session")
    if options.takeover and not resumed:
        raise click.UsageError("--takeover continues a session; add --resume SESSION")
    if resumed and forked:
        raise click.UsageError("give --resume or --fork, not both")
    if options.at is not None and not resumed and not forked:
        raise click.UsageError("--at names a record of a session; add --resume or --fork")


def _check_batch(goal: str | None, options: AgentOptions) -> None:
    batch = options.rows
    if batch.batch is None:
        if batch.fresh or batch.retry_failed:
            raise click.UsageError("--fresh and --retry-failed belong to --batch IN OUT")
        return
    others = (
        goal, options.resume, options.fork, options.at, options.goals, options.takeover,
        options.acp, options.login,
    )  # fmt: skip
    if any(others):
        raise click.UsageError(
            "--batch: each row has its goal and its session; leave out GOAL, --resume, --fork, "
            "--at, --then, --takeover, --acp and --login"
        )
    source = batch.batch[0]
    if not source.is_file():
        raise click.UsageError(f"--batch: there is no file {source}")


def _read_policy(options: AgentOptions) -> Policy:
    if options.policy is not None:
        with report_mistakes():
            given = Policy.load(options.policy)
    else:
        given = Policy(_HISTORY if options.mode == "ask" else [*_HISTORY, _READING])
    rules = [
        *[_read_rule("allow", text) for text in options.allowed],
        *[_read_rule("deny", text) for text in options.denied],
    ]
    if options.mode == "yes":
        rules.append(Rule("allow", name="--yes"))
    return Policy([*given.rules, *rules], given.default)


def _read_rule(action: Any, text: str) -> Rule:
    """Parse a permission rule such as ``write``, ``bash:pytest *`` or ``edit_file:src/**``."""
    name, colon, pattern = text.partition(":")
    facts: dict[str, Any] = {"side_effect": [name]} if name in _EFFECTS else {"tool": name}
    if pattern and name in ("bash", "execute"):
        facts["arguments"] = {"command": pattern}
    elif pattern:
        facts["path"] = pattern
    with reject(ValueError, about=f"--{action} {text}: "):
        if not name.strip():
            raise ValueError("names no tool; write TOOL or TOOL:PATTERN")
        if colon and not pattern.strip():
            raise ValueError("nothing follows the colon; leave the colon out to match everything")
        return Rule(action, **facts, name=f"--{action} {text}")


_LIMITS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "steps": ("steps", int),
    "tokens": ("tokens", int),
    "usd": ("cost_usd", Decimal),
    "seconds": ("seconds", float),
    "calls": ("tool_calls", int),
}


def _read_budget(limits: tuple[str, ...]) -> Budget:
    facts: dict[str, Any] = {"steps": 50}
    for text in [part for limit in limits for part in limit.split(",")]:
        name, _, number = text.partition("=")
        if name not in _LIMITS:
            known = ", ".join([f"{each}=N" for each in _LIMITS])
            hint = f"; write usd={number}" if name == "cost_usd" else ""
            raise click.UsageError(f"--budget {text}: must be one of {known}{hint}")
        field, read = _LIMITS[name]
        try:
            facts[field] = read(number)
        except (ValueError, ArithmeticError) as error:
            raise click.UsageError(f"--budget {text}: {number!r} is not a number") from error
    with reject(ValueError, about="--budget: "):
        return Budget(**facts)

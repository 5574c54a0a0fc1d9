"""Read the agents of a service from a file, or from a Python function.

::

    # agents.yaml
    log: sessions.db                # or a postgresql:// URL
    agents:
      support:
        model: openai:gpt-6-sol     # a name that the gateway serves, or of models.yaml
        system: You help customers.
        tools: [company.tools:refund, company.tools:look_up]
        policy: policy.yaml         # the rules of dragoman agent --policy
        budget: {steps: 20, cost_usd: 0.5}
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from ..database import is_postgres
from ..log import open_log
from ..messages import RuntimeConfig
from ..permission import Policy
from ..session import Budget
from ..tools import ExecutableTool, gather_tools, plugin_tools, workspace_tools
from ..validate.yaml import ConfigError, Section, read_yaml
from .agents import Agent, check_agents, check_at_once
from .sessions import Sessions

_LIMITS = ("steps", "tokens", "tool_calls", "cost_usd", "seconds")
_LOG = "sessions.db"


def load_sessions(where: str | Path) -> Sessions:
    """Return the service that a YAML file, or a function named ``module:function``, describes.

    Modules are also found in the folder of the file, or in the current one. Raise ``ConfigError``
    if the file has a mistake.
    """
    text = str(where)
    is_file = Path(text).exists() or ":" not in text
    folder = str(Path(text).resolve().parent if is_file else Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    return read_sessions(Path(text)) if is_file else _call(text)


def read_sessions(path: Path) -> Sessions:
    """Read the agents in a YAML file, and open their log; paths in it begin at its folder."""
    root = read_yaml(path)
    root.allow("log", "at_once", "agents")
    at_once = root.get("at_once", int, 100)
    listed = root.section("agents")
    if not listed.data:
        raise root.fail("must have at least one agent", "agents")
    agents = {name: _read_agent(section, path.parent) for name, section in listed.sections()}
    try:
        check_agents(agents)
        check_at_once(at_once)
    except ValueError as error:
        raise root.fail(str(error)) from None
    place = root.get("log", str, _LOG)
    log = open_log(place if is_postgres(place) else path.parent / Path(place).expanduser())
    return Sessions(agents, log, at_once=at_once)


def _call(place: str) -> Sessions:
    try:
        made = _import(place)()
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(place, None, f"cannot be loaded: {error}") from error
    if not isinstance(made, Sessions):
        problem = f"must return dragoman.service.Sessions, not {type(made).__name__}"
        raise ConfigError(place, None, problem)
    return made


def _import(place: str) -> Any:
    """Return the object of a module, such as ``company.tools:refund``."""
    module, _, name = place.partition(":")
    if not module or not name:
        raise ValueError(f"{place!r} must be MODULE:NAME, such as company.tools:refund")
    return getattr(importlib.import_module(module), name)


def _read_agent(section: Section, folder: Path) -> Agent:
    section.allow(
        "model", "models", "tools", "plugins", "workspace", "policy", "system", "budget",
        "max_tokens", "description",
    )  # fmt: skip
    policy = section.get("policy", str)
    model = section.need_text("model")
    settings: dict[str, Any] = {}
    if (most := section.get("max_tokens", int)) is not None:
        settings["config"] = RuntimeConfig(max_tokens=most)
    try:
        return Agent(
            model,
            gather_tools(list(_read_tools(section, folder))),
            None if policy is None else Policy.load(folder / policy),
            system=section.get("system", str),
            budget=_read_budget(section.section("budget")),
            models=section.texts("models") or (),
            description=section.get("description", str, ""),
            **settings,
        )
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:
        raise section.fail(str(error)) from None


def _read_tools(section: Section, folder: Path) -> Iterator[ExecutableTool | Any]:
    for at, place in enumerate(section.texts("tools") or ()):
        try:
            found = _import(place)
        except (ImportError, AttributeError, ValueError) as error:
            raise section.fail(f"cannot be loaded: {error}", f"tools[{at}]") from None
        yield from found if isinstance(found, list | tuple) else [found]
    yield from plugin_tools(section.texts("plugins") or ())
    workspace = section.get("workspace", str)
    if workspace is not None:
        yield from workspace_tools(folder / workspace)


def _read_budget(section: Section) -> Budget | None:
    section.allow(*_LIMITS)
    limits = {name: section.get(name, (int, float)) for name in _LIMITS}
    found: dict[str, Any] = {name: value for name, value in limits.items() if value is not None}
    if "cost_usd" in found:
        found["cost_usd"] = Decimal(str(found["cost_usd"]))
    return Budget(**found) if found else None

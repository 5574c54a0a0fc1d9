"""Test the files that describe agents, and the functions that return a service."""

from decimal import Decimal
from pathlib import Path

import pytest

from dragoman.log import MemoryLog
from dragoman.permission import Policy
from dragoman.provider import Provider
from dragoman.service import Agent, Sessions, load_sessions
from dragoman.session import Budget
from dragoman.validate.yaml import ConfigError
from tests.listed import Listed

from .serving import TOOLS

FILE = """
log: kept.db
at_once: 7
agents:
  support:
    model: fast
    models: [slow]
    system: You help.
    description: Answers customers.
    tools: [tests.service.serving:TOOLS]
    workspace: .
    policy: policy.yaml
    budget: {steps: 9, cost_usd: 0.25}
    max_tokens: 500
"""


def write(folder: Path, text: str) -> Path:
    (folder / "policy.yaml").write_text("default: deny\nrules: [{action: allow, tool: look}]\n")
    path = folder / "agents.yaml"
    path.write_text(text)
    return path


def test_file_describes_agents(tmp_path: Path) -> None:
    with load_sessions(write(tmp_path, FILE)).log as log:
        assert Path(log.path).name == "kept.db"  # type: ignore[attr-defined]
        assert (tmp_path / "kept.db").exists()
    sessions = load_sessions(tmp_path / "agents.yaml")
    sessions.log.close()
    agent = sessions.agents["support"]
    assert agent.model_name == "fast"
    assert agent.models == ("slow",)
    assert agent.system == "You help."
    assert agent.description == "Answers customers."
    assert agent.policy is not None
    assert agent.policy.default == "deny"
    assert agent.budget == Budget(steps=9, cost_usd=Decimal("0.25"))
    assert agent.settings["config"].max_tokens == 500
    assert {"look", "pay", "ship", "bash", "read_file"} <= {tool.name for tool in agent.tools}


# The line of the file, what is written in its place, and what the error says.
MISTAKES = [
    ("    model: fast", "    modell: fast", "modell"),
    ("    model: fast", "", "model"),
    ("at_once: 7", "at_once: 0", "at_once"),
    ("  support:", "  sup port:", "letters"),
    ("agents:", "agent:", "agent"),
    ("    policy: policy.yaml", "    policy: none.yaml", "none.yaml"),
    ("budget: {steps: 9, cost_usd: 0.25}", "budget: {steps: 0}", "steps"),
    ("budget: {steps: 9, cost_usd: 0.25}", "budget: {usd: 1}", "usd"),
    (":TOOLS]", ":none]", "none"),
    ("tests.service.serving:", "no_such_module:", "no_such_module"),
    ("tests.service.serving:TOOLS", "TOOLS", "MODULE:NAME"),
    ("    max_tokens: 500", "    max_tokens: many", "max_tokens"),
]


@pytest.mark.parametrize(("line", "instead", "about"), MISTAKES)
def test_mistake_in_a_file_is_reported_with_its_place(
    tmp_path: Path, line: str, instead: str, about: str
) -> None:
    assert line in FILE
    with pytest.raises(ConfigError, match=about) as caught:
        load_sessions(write(tmp_path, FILE.replace(line, instead)))
    assert "yaml" in str(caught.value)


def make_sessions() -> Sessions:
    return Sessions({"main": Agent(Listed(), TOOLS)}, MemoryLog())


def make_nothing() -> None:
    pass


def test_function_returns_a_service() -> None:
    assert [*load_sessions(f"{__name__}:make_sessions").agents] == ["main"]
    with pytest.raises(ConfigError, match="must return"):
        load_sessions(f"{__name__}:make_nothing")
    with pytest.raises(ConfigError, match="make_less"):
        load_sessions(f"{__name__}:make_less")


def test_settings_that_the_service_decides_about_are_refused() -> None:
    model: Provider = Listed()
    with pytest.raises(TypeError, match="approve"):
        Agent(model, approve="wait")
    with pytest.raises(TypeError, match="tools must be a list"):
        Agent(model, TOOLS[0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one"):
        Sessions({}, MemoryLog())
    with pytest.raises(ValueError, match="at_once"):
        Sessions({"main": Agent(model)}, MemoryLog(), at_once=0)
    with pytest.raises(TypeError):
        Agent(model, policy=Policy(), colour="red")

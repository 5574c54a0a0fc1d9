"""The agents of a service: with which model, tools, rules and limits their sessions run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from ..errors import InvalidRequestError
from ..permission import Policy
from ..provider import Provider
from ..session import Budget, Session
from ..tools import Tools, gather_tools

MAX_NAME = 64
"""The most characters in the name of an agent."""
MAX_AT_ONCE = 100_000


class Agent:
    """What the sessions of an agent run with.

    ::

        Agent("openai:gpt-6-sol", [look_up, refund], policy, system="...", budget=Budget(steps=20))

    ``model`` is a provider, or a name that the gateway serves or that ``models.yaml`` knows;
    ``models`` are further names that a client may choose instead. ``budget`` limits each session,
    and a client may ask for less. ``settings`` are further ones of ``Session``, such as
    ``context``, ``config`` and ``deps``; a call that needs a decision always waits for it.
    """

    def __init__(
        self,
        model: str | Provider,
        tools: Tools = None,
        policy: Policy | None = None,
        *,
        system: str | None = None,
        budget: Budget | None = None,
        models: Sequence[str] = (),
        description: str = "",
        **settings: Any,
    ) -> None:
        for name in ("approve", "log", "metadata", "on_event", "on_record", "session_id"):
            if name in settings:
                raise TypeError(f"Agent: the service decides about {name}; leave it out")
        self.model = model
        self.models = tuple(models)
        self.tools = gather_tools(tools)
        self.policy = policy
        self.system = system
        self.budget = Budget(steps=50) if budget is None else budget
        self.description = description
        self.settings = settings
        if isinstance(model, Provider):
            Session(model, self.tools, policy, **settings)  # reject wrong settings now

    @property
    def model_name(self) -> str:
        """The name of the model that a session has unless its client chooses another one."""
        model = self.model
        return model if isinstance(model, str) else f"{model.name}:{model.model}"

    def choose_model(self, wanted: str | None) -> str:
        """Return the name of a session's model; raise ``InvalidRequestError`` for another one."""
        names = (self.model_name, *self.models)
        if wanted is None or wanted in names:
            return wanted or names[0]
        raise InvalidRequestError(f"model: must be one of {', '.join(names)}, not {wanted!r}")

    def limit(self, wanted: Mapping[str, Any]) -> Budget:
        """Return the budget of a session: the lower of this agent's limits and a client's."""
        limits = asdict(self.budget)
        try:
            asked = asdict(Budget(**wanted))
        except ValueError as error:
            raise InvalidRequestError(str(error)) from None
        found = {
            name: [each for each in (limits[name], asked[name]) if each is not None]
            for name in limits
        }
        return Budget(**{name: min(values) for name, values in found.items() if values})


def check_agents(agents: Mapping[str, Agent]) -> None:
    """Raise ``ValueError`` if there are no agents, or if one of them has no usable name."""
    if not agents:
        raise ValueError("agents: must have at least one agent")
    for name, agent in agents.items():
        if not 0 < len(name) <= MAX_NAME or not name.replace("-", "").replace("_", "").isalnum():
            raise ValueError(
                f"agents: {name!r} must be 1 to {MAX_NAME} letters, digits, hyphens and underscores"
            )
        if not isinstance(agent, Agent):
            raise TypeError(f"agents: {name} must be an Agent, not {type(agent).__name__}")


def check_at_once(number: int) -> None:
    """Raise ``ValueError`` unless this many sessions can run at the same time."""
    if not 1 <= number <= MAX_AT_ONCE:
        raise ValueError(f"at_once: must be a number from 1 to {MAX_AT_ONCE}, not {number!r}")

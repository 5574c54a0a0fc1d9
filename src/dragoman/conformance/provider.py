"""Conformance cases for all providers: they test any implementation of ``Provider``."""

from __future__ import annotations

import asyncio
import copy
import fnmatch
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..capabilities import Capabilities
from ..errors import ProviderError
from ..events import Response
from ..messages import ForceTool, Request, RuntimeConfig, Tool
from ..provider import EventStream, Provider, Reply
from .violation import Violation

Factory = Callable[[], Provider | Awaitable[Provider]]
"""A function that returns a new provider for each case."""

CaseT = TypeVar("CaseT")
T = TypeVar("T")

TOOL = Tool(
    "get_weather",
    "Tells the weather in a city.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "population": {"type": "integer"}},
    "required": ["city", "population"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Kit:
    """The arguments of ``suite`` that the cases for a provider use."""

    factory: Factory
    capabilities: Capabilities = field(default_factory=Capabilities)
    failing: Mapping[type[ProviderError], Factory] = field(default_factory=dict)
    breaking: Factory | None = None
    unready: Mapping[type[ProviderError], Factory] = field(default_factory=dict)
    other: Factory | None = None
    prompt: str = "Say hello in one short sentence."
    tool: Tool = TOOL
    tool_prompt: str = "What is the weather in Bern? Use the tool."
    schema: Mapping[str, Any] = field(default_factory=lambda: SCHEMA)
    schema_prompt: str = "Name a city and its population."
    config: RuntimeConfig = field(default_factory=lambda: RuntimeConfig(max_tokens=256))
    at_once: int = 8
    seconds: float = 60.0

    def allows(self, flag: str, *, unless_known: bool = True) -> bool:
        """Return whether a capability is enabled; if that is unknown, return ``unless_known``."""
        value = self.capabilities.known(flag)
        return unless_known if value is None else bool(value)

    async def ask(self, provider: Provider, **settings: Any) -> Response:
        """Call the model with the prompt of the cases."""
        return await provider.complete(self.prompt, config=self.config, **settings)

    def stream(self, provider: Provider, **settings: Any) -> EventStream:
        """Call the model with the prompt of the cases, and return the reply as a stream."""
        return provider.stream(self.prompt, config=self.config, **settings)

    def force(self, method: Callable[..., T]) -> T:
        """Call ``complete`` or ``stream`` of a provider, so that it must call the tool."""
        choice = ForceTool(self.tool.name)
        return method(self.tool_prompt, [self.tool], config=self.config, tool_choice=choice)

    def open(self, factory: Factory | None = None) -> AbstractAsyncContextManager[Provider]:
        """Return a context manager that opens a new provider and closes it at the end."""
        return open_made(factory or self.factory, Provider, "a dragoman.Provider")


@asynccontextmanager
async def open_made(factory: Callable[[], Any], kind: Any, name: str) -> AsyncIterator[Any]:
    """Open the model that a factory makes, check its type, and close it at the end."""
    made = factory()
    model = await made if inspect.isawaitable(made) else made
    if not isinstance(model, kind):
        raise Violation(f"the factory made {type(model).__name__}, which is not {name}")
    try:
        yield model
    finally:
        await model.close()


class Spy:
    """Count the calls that reach a provider, by counting how often ``open`` is called."""

    def __init__(self, provider: Provider) -> None:
        self.calls = 0
        inner = provider.open

        def counting_open(request: Request) -> Reply:
            self.calls += 1
            return inner(request)

        provider.open = counting_open  # type: ignore[method-assign]


def check_settings(owner: str, kit: Any, settings: Iterable[str]) -> None:
    """Raise ``ValueError`` for a setting that the dataclass ``kit`` does not have."""
    known = kit.__dataclass_fields__
    for name in settings:
        if name not in known:
            raise ValueError(f"{owner}: unknown setting {name!r}; one of {', '.join(known)}")


def leave_out(cases: Iterable[CaseT], skip: Iterable[str], kind: str = "case") -> list[CaseT]:
    """Return the cases whose names do not match ``skip``, with ``*`` as a wildcard."""
    listed = list(cases)
    for pattern in skip:
        kept = [case for case in listed if not fnmatch.fnmatchcase(str(case), pattern)]
        if len(kept) == len(listed):
            raise ValueError(f"skip has {pattern!r}, but no {kind} has that name")
        listed = kept
    return listed


@dataclass(frozen=True)
class ProviderCase:
    """One case for the provider under test. Run ``await case.run()`` or ``case.run_sync()``.

    ``factory`` makes the provider, if it is not the factory of the kit.
    """

    name: str
    check: Callable[[Any, Any], Awaitable[None]]
    kit: Any
    factory: Callable[[], Any] | None = None

    def __str__(self) -> str:
        return self.name

    async def run(self) -> None:
        """Test the provider with the case; raise ``Violation`` if it breaks the contract.

        The case has a time limit, and any exception that it raises becomes a ``Violation``.
        """
        name = self.name
        kit = self.kit
        try:
            async with asyncio.timeout(kit.seconds), kit.open(self.factory) as model:
                # each case gets a copy of the settings, so that it cannot affect other cases
                await self.check(copy.copy(kit), model)
        except TimeoutError:
            raise Violation(f"{name}: still running after {kit.seconds:g} s") from None
        except Violation as violation:
            raise Violation(f"{name}: {violation}") from violation.__cause__
        except ProviderError as error:
            raise Violation(f"{name}: it raised {type(error).__name__}: {error}") from error
        except Exception as error:
            raise Violation(f"{name}: {type(error).__name__} came out: {error}") from error

    def run_sync(self) -> None:
        """Run the case in a test that has no event loop."""
        asyncio.run(self.run())

"""Python functions as tools."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, get_type_hints, overload

import msgspec
from msgspec.structs import replace

from ..blocking import run_in_thread
from ..errors import quote
from ..log import SideEffect
from ..messages import Document, Image, Text, Tool
from ..messages.signatures import called_by, field_defaults
from ..validate.structured import convert_value
from . import runtime
from .call_context import is_context, make_context

P = ParamSpec("P")
T = TypeVar("T")


class FunctionTool(runtime.ExecutableTool, Generic[P, T]):
    """A function that the session may call: async in the event loop, otherwise in a thread.

    The return value is what the model receives: strings and blocks unchanged, anything else as
    JSON. An exception becomes an error result. A thread cannot be interrupted: after a timeout or
    a cancellation the function may keep running, and the log records this.
    """

    def __init__(
        self,
        function: Callable[P, T],
        *,
        name: str | None = None,
        side_effect: SideEffect = "execute",
        timeout: float | None = runtime.DEFAULT_TIMEOUT,
        output_limit: int = runtime.DEFAULT_OUTPUT_LIMIT,
        check: Callable[[Mapping[str, Any]], str | None] | None = None,
        locate: Callable[[Mapping[str, Any]], tuple[str, ...]] | None = None,
        context: Mapping[str, Any] | None = None,
        deferred: bool = False,
        external: bool = False,
        on_resume: runtime.OnResume | None = None,
    ) -> None:
        if on_resume not in (None, "ask", "run") and not callable(on_resume):
            raise ValueError(f"on_resume: must be 'ask', 'run' or a function, not {on_resume!r}")
        if on_resume is not None and external:
            raise ValueError("on_resume: an external tool does not run here; leave it out")
        self._hints = get_type_hints(called_by(function), include_extras=True)
        # the parameters that receive the context of the call, which the model does not see
        self._contexts = [key for key, hint in self._hints.items() if is_context(hint)]
        called: Callable[..., Any] = function
        offered = functools.partial(called, **dict.fromkeys(self._contexts))
        description = replace(Tool.from_function(offered, name=name), deferred=deferred)
        super().__init__(
            description, side_effect=side_effect, timeout=timeout, output_limit=output_limit
        )
        self.external = external
        self.on_resume = on_resume
        self._function = called
        self._defaults = field_defaults(function)
        self._parameters = frozenset(description.parameters["properties"])
        self._check = check
        self._locate = locate
        self._context = dict(context or {})
        self.interruptible = _is_async(function)  # type: ignore[misc]

    def __call__(self, *args: P.args, **arguments: P.kwargs) -> T:
        """Call the function itself. Neither a session nor a policy is involved."""
        result: T = self._function(*args, **arguments)
        return result

    def check(self, arguments: Mapping[str, Any]) -> str | None:
        unknown = sorted(set(arguments) - self._parameters)
        if unknown:
            known = ", ".join(sorted(self._parameters)) or "none"
            return f"unknown argument {quote(unknown[0])}; the tool takes {known}"
        try:
            self._convert(arguments)
        except ValueError as error:
            # Validation errors of msgspec and Pydantic are subclasses of ValueError.
            return str(error)
        return self._check(arguments) if self._check is not None else None

    def locate(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        return self._locate(arguments) if self._locate is not None else ()

    @property
    def names_paths(self) -> bool:
        return self._locate is not None

    def context(self) -> dict[str, Any]:
        return dict(self._context)

    async def execute(self, arguments: Mapping[str, Any]) -> runtime.Observation:
        context = dict.fromkeys(self._contexts, make_context())
        call = functools.partial(self._function, **self._convert(arguments), **context)
        try:
            value = (
                await call() if self.interruptible else await run_in_thread(call, "dragoman-tool")
            )
        except (runtime.ToolFailure, asyncio.CancelledError):
            raise
        except Exception as error:
            return runtime.Observation(f"{type(error).__name__}: {error}", is_error=True)
        return make_observation(value)

    def _convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Convert arguments to the parameters' types, and add the defaults of each ``Field``."""
        given = {
            name: convert_value(value, self._hints.get(name, Any))
            for name, value in arguments.items()
        }
        for name in self._defaults.keys() - given.keys():
            given[name] = self._defaults[name].get_default(call_default_factory=True)
        return given


def _is_async(function: Callable[..., Any]) -> bool:
    is_plain = inspect.isfunction(function) or inspect.ismethod(function)
    called = inspect.unwrap(function if is_plain else type(function).__call__)
    return any(map(inspect.iscoroutinefunction, (called, function)))


def make_observation(value: Any) -> runtime.Observation:
    """Return a function's result as an observation."""
    if isinstance(value, runtime.Observation):
        return value
    if isinstance(value, str):
        return runtime.Observation(value)
    if isinstance(value, Text | Image | Document):
        return runtime.Observation((value,))
    if (
        isinstance(value, list | tuple)
        and value
        and all(isinstance(item, Text | Image | Document) for item in value)
    ):
        return runtime.Observation(tuple(value))
    dump = getattr(value, "model_dump", None)  # a Pydantic model, recognised by its method
    if dump is not None:
        value = dump(mode="json")
    try:
        return runtime.Observation(msgspec.json.encode(value).decode())
    except (TypeError, ValueError, RecursionError) as error:
        raise runtime.ToolFailure(
            "unreadable", f"it returned {type(value).__name__}, which is not JSON: {error}"
        ) from error


@overload
def tool(function: Callable[P, T], /) -> FunctionTool[P, T]: ...
@overload
def tool(
    *,
    name: str | None = None,
    side_effect: SideEffect = "execute",
    timeout: float | None = runtime.DEFAULT_TIMEOUT,
    output_limit: int = runtime.DEFAULT_OUTPUT_LIMIT,
    deferred: bool = False,
    external: bool = False,
    on_resume: runtime.OnResume | None = None,
) -> Callable[[Callable[P, T]], FunctionTool[P, T]]: ...
def tool(
    function: Callable[..., Any] | None = None, /, **settings: Any
) -> FunctionTool[..., Any] | Callable[[Callable[..., Any]], FunctionTool[..., Any]]:
    """Turn a function into a tool: ``@tool`` or ``@tool(side_effect="read")``.

    The tool can be passed to ``complete(tools=[...])`` and to a ``Session``, and it can be called
    like the function. Its parameters need type hints; its docstring describes it to the model.

    ``name`` is the name for the model; by default the function's own. ``side_effect`` is
    ``"none"``, ``"read"``, ``"write"``, ``"network"`` or ``"execute"``: the permission rules of a
    session depend on it. ``timeout`` is in seconds, or ``None``. A result of more than
    ``output_limit`` characters is shortened. A ``deferred`` tool is offered once a tool search
    finds it. A session does not call the function of an ``external`` tool: it ends with the
    outcome ``waiting``, and continues once ``observe`` gave the result of each call.

    ``on_resume`` is for a call that ran when the process ended: a resumed session asks whether it
    may run again (``"ask"``), runs it again with the same idempotency key (``"run"``), or calls a
    function with the intent, which returns the result of the call, ``"ask"``, ``"run"``, or
    ``None`` if it is not known. By default a call without side effects runs again, and for
    any other the model receives a result that the effect is not known.
    """
    if function is not None:
        return FunctionTool(function)
    return lambda decorated: FunctionTool(decorated, **settings)

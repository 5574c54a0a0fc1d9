"""The contract of a provider: one check function for each case."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from .. import events as ev
from .. import messages as m
from ..capabilities import Capabilities
from ..errors import (
    CallCancelledError,
    InvalidRequestError,
    ProviderError,
    UnsupportedContentError,
    UnsupportedFeatureError,
)
from ..provider import Provider
from ..validate.arguments import ConfigRecord
from ..validate.schema import compile_schema, first_error
from .contract_streams import (
    STREAMED,
    Check,
    demand_response,
    demand_rules,
    is_known_not_to_stream,
    read_events,
    read_until_error,
    refused,
)
from .provider import Factory, Kit, ProviderCase, Spy
from .violation import Violation, demand, demand_same

# A PNG image of one red pixel.
_DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="


def build_cases(kit: Kit) -> list[ProviderCase]:
    """Return the cases that the settings of the kit enable."""
    checks: dict[str, Check] = dict(_ALWAYS)
    for flag, unless_known, wanted, opposite in _SWITCHED:
        checks |= wanted if kit.allows(flag, unless_known=unless_known) else {}
        checks |= opposite if kit.capabilities.known(flag) is False else {}
    if kit.other is not None:
        checks["swap.answers-are-alike"] = _answer_alike
        if kit.allows("supports_tools"):
            checks["swap.conversation-continues"] = _continue_each_other
    cases = [ProviderCase(name, check, kit) for name, check in checks.items()]
    for kind, factory in kit.failing.items():
        fails = partial(_fails_with, kind=kind, factory=factory)
        cases.append(ProviderCase(f"errors.{kind.__name__}", fails, kit, factory))
    for kind, factory in kit.unready.items():
        unready = partial(_is_not_ready, kind=kind)
        cases.append(ProviderCase(f"ready.{kind.__name__}", unready, kit, factory))
    if kit.breaking is not None:
        breaks = _reports_a_broken_stream
        cases.append(ProviderCase("streams.break-off-well", breaks, kit, kit.breaking))
    return cases


# --- cases for the attributes of a provider and the shape of its reply -------------------------


async def _describes_itself(kit: Kit, provider: Provider) -> None:
    demand(bool(provider.name) and isinstance(provider.name, str), "name is empty")
    demand(bool(provider.model) and isinstance(provider.model, str), "model is empty")
    demand(isinstance(provider.capabilities, Capabilities), "capabilities is not a Capabilities")
    demand("sk-" not in repr(provider), "repr() contains something like a key")


async def _answers_with_a_response(kit: Kit, provider: Provider) -> None:
    reply = await kit.ask(provider)
    demand_response(reply)
    demand(bool(reply.text.strip()), "the reply has no text")
    demand(reply.parsed is None, "parsed is set, but no schema was given")
    demand(
        reply.finish_reason in ("stop", "length"),
        f"a plain reply ended with {reply.finish_reason}",
    )
    demand_same(reply.provider, provider.name, "the reply's provider")


async def _takes_every_form(kit: Kit, provider: Provider) -> None:
    forms: list[Any] = [
        kit.prompt,
        m.User(kit.prompt),
        [m.User([m.Text(kit.prompt)])],
        [{"role": "user", "content": kit.prompt}],
        [m.User(kit.prompt), m.Assistant("Hello."), m.User(kit.prompt)],
    ]
    for form in forms:
        reply = await provider.complete(form, config=kit.config)
        demand(isinstance(reply, ev.Response), f"{type(form).__name__} was not answered")


async def _does_not_change_arguments(kit: Kit, provider: Provider) -> None:
    messages: list[Any] = [{"role": "user", "content": kit.prompt}]
    config: ConfigRecord = {"max_tokens": kit.config.max_tokens or 64, "extras": {}}
    kept = copy.deepcopy((messages, config))
    await provider.complete(messages, config=config)
    if kit.allows("supports_streaming"):
        await read_events(provider.stream(messages, config=config))
    demand_same([messages, config], list(kept), "the caller's lists and mappings were changed")


async def _closes_twice(kit: Kit, provider: Provider) -> None:
    await provider.close()


# --- cases for the validation of arguments -----------------------------------------------------

_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
_WRONG: dict[str, dict[str, Any]] = {
    "no messages": {"messages": []},
    "an unknown role": {"messages": [{"role": "wizard", "content": "x"}]},
    "instructions after a reply": {"messages": [m.User("a"), m.Assistant("b"), m.System("c")]},
    "a result without a call": {"messages": [m.User("a"), m.ToolResult("none", "x")]},
    "two tools of one name": {"tools": [m.Tool("a"), m.Tool("a")]},
    "a tool without a name": {"tools": [m.Tool("")]},
    "parameters that are not a schema": {"tools": [m.Tool("a", "", parameters={"type": 3})]},
    "a forced tool that is not offered": {"tools": [m.Tool("a")], "tool_choice": m.ForceTool("b")},
    "a required call without tools": {"tool_choice": "required"},
    "a schema that is not an object": {"response_schema": {"type": "array"}},
    "a temperature that is not a number": {"config": {"temperature": float("nan")}},
    "a setting that does not exist": {"config": {"temprature": 1}},
}


async def _rejects_invalid_requests(kit: Kit, provider: Provider) -> None:
    spy = Spy(provider)
    for what, wrong in _WRONG.items():
        given = {"messages": kit.prompt, **wrong}
        async with refused(InvalidRequestError, what=what):
            await _call_either(provider.complete, given)
        async with refused(InvalidRequestError, what=f"{what}, streamed"):
            await read_events(await _call_either(provider.stream, given))
    demand_same(spy.calls, 0, "calls that reached the model although the request is invalid")


async def _call_either(method: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Call a provider's method; turn a ``ValueError`` into ``InvalidRequestError``."""
    try:
        made = method(**given)
        return await made if asyncio.iscoroutine(made) else made
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error


# --- cases for errors --------------------------------------------------------------------------


async def _fails_with(
    kit: Kit, provider: Provider, *, kind: type[ProviderError], factory: Factory
) -> None:
    try:
        await kit.ask(provider)
    except ProviderError as error:
        _demand_error(error, kind, provider)
    else:
        raise Violation(f"complete() returned instead of raising {kind.__name__}")
    async with kit.open(factory) as another:
        events, raised = await read_until_error(kit.stream(another))
        demand_rules(events)
        if raised is None:
            raise Violation(f"stream() ended instead of raising {kind.__name__}")
        _demand_error(raised, kind, another)


def _demand_error(error: ProviderError, kind: type[ProviderError], provider: Provider) -> None:
    demand(type(error) is kind, f"it raised {type(error).__name__}, not {kind.__name__}")
    demand_same(error.provider, provider.name, "the error's provider")
    demand_same(error.model, provider.model, "the error's model")
    demand(bool(error.request_id), "the error has no request_id")
    demand(bool(str(error)), "the error has no message")


async def _reports_a_broken_stream(kit: Kit, provider: Provider) -> None:
    events, raised = await read_until_error(kit.stream(provider))
    demand(bool(events), "nothing came before it broke off")
    demand_rules(events)
    demand(raised is not None, "a reply that broke off counted as complete")
    demand_same(
        ev.fold(events).finish_reason, "error", "the finish reason of a reply that broke off"
    )
    partly: Any = getattr(raised, "response", None)
    if partly is None:
        raise Violation("the error lacks the partial response")
    demand_same(partly.text, ev.fold(events).text, "the partial response of the error")


# --- cases for cancelling ----------------------------------------------------------------------


async def _cancelling_nothing_is_false(kit: Kit, provider: Provider) -> None:
    demand(
        not await provider.cancel("01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        "cancel() of an unknown id returned True",
    )
    reply = await kit.ask(provider)
    demand(
        not await provider.cancel(str(reply.request_id)),
        "cancel() of a finished call returned True",
    )


async def _a_call_can_be_cancelled(kit: Kit, provider: Provider) -> None:
    name = m.new_ulid()
    task = asyncio.ensure_future(kit.ask(provider, request_id=name))
    cancelled = False
    while not cancelled and not task.done():
        await asyncio.sleep(0)
        cancelled = await provider.cancel(name)
    try:
        await task
    except CallCancelledError:
        demand(cancelled, "it raised CallCancelledError without being cancelled")
    else:
        demand(not cancelled, "cancel() returned True, but complete() returned a reply")
    await kit.ask(provider)


# --- cases for system prompts and images -------------------------------------------------------


async def _takes_a_system(kit: Kit, provider: Provider) -> None:
    reply = await provider.complete([m.System("Be terse."), m.User(kit.prompt)], config=kit.config)
    demand(bool(reply.text.strip()), "the reply has no text")


async def _rejects_a_system(kit: Kit, provider: Provider) -> None:
    async with refused(UnsupportedFeatureError, what="a system prompt"):
        await provider.complete([m.System("Be terse."), m.User(kit.prompt)], config=kit.config)


_PICTURE = m.User([m.Text("What colour is this?"), m.Image(m.Inline(_DOT), "image/png")])


async def _sees_images(kit: Kit, provider: Provider) -> None:
    reply = await provider.complete([_PICTURE], config=kit.config)
    demand(bool(reply.text.strip()), "the reply to an image has no text")


async def _rejects_images(kit: Kit, provider: Provider) -> None:
    async with refused(UnsupportedContentError, what="an image"):
        await provider.complete([_PICTURE], config=kit.config)


# --- cases for tools ---------------------------------------------------------------------------


async def _proposes_intents_only(kit: Kit, provider: Provider) -> None:
    stream = kit.force(provider.stream)
    events = await read_events(stream)
    ends = [event for event in events if isinstance(event, ev.ToolUseEnd)]
    demand(bool(ends), "the tool was forced, but no call came")
    for end in ends:
        if end.intent is None:
            raise Violation(f"a call came without an intent: {end.problem}: {end.detail}")
        _demand_intent(end.intent, kit.tool)
    demand_same(
        ev.fold(events).finish_reason, "tool_calls", "the finish reason of a reply with calls"
    )


def _demand_intent(intent: ev.ToolIntent, tool: m.Tool) -> None:
    demand_same(intent.tool_name, tool.name, "the tool that was called")
    demand_same(intent.status, "proposed", "the status of an intent")
    demand(intent.id.startswith("tu_"), f"the intent's id is {intent.id!r}")
    wrong = first_error(compile_schema(tool.parameters, "tool"), intent.input)
    demand(wrong is None, f"the arguments violate the tool's schema: {wrong}")


async def _both_ways_propose(kit: Kit, provider: Provider) -> None:
    reply = await kit.force(provider.complete)
    demand(bool(reply.tool_calls), "the tool was forced, but complete() returned no call")
    for call in reply.tool_calls:
        demand(bool(call.id), "a call has no id")
        demand(isinstance(call.arguments, dict), "a call's arguments are not a mapping")


async def _ids_of_calls_are_one(kit: Kit, provider: Provider) -> None:
    stream = kit.force(provider.stream)
    events = await read_events(stream)
    begun = [event.tool_use_id for event in events if isinstance(event, ev.ToolUseStart)]
    final = [
        block.id for block in ev.fold(events).message.content if isinstance(block, m.ToolCall)
    ]
    demand(len(set(begun)) == len(begun), "two calls have the same id")
    demand_same(final, begun, "the ids of calls at their start and in the final content")


async def _takes_results(kit: Kit, provider: Provider) -> None:
    first = await kit.force(provider.complete)
    results: list[m.Message] = [
        m.ToolResult(call.id, "Sunny, 21 degrees.") for call in first.tool_calls
    ]
    second = await provider.complete(
        [m.User(kit.tool_prompt), first.message, *results],
        [kit.tool],
        config=kit.config,
        tool_choice="none",
    )
    demand(isinstance(second, ev.Response), "the results of a call were not answered")


async def _rejects_tools(kit: Kit, provider: Provider) -> None:
    async with refused(UnsupportedFeatureError, what="tools"):
        await provider.complete(kit.tool_prompt, [kit.tool], config=kit.config)


# --- cases for structured output ---------------------------------------------------------------


async def _parses_what_was_asked_for(kit: Kit, provider: Provider) -> None:
    schema = dict(kit.schema)
    reply = await provider.complete(kit.schema_prompt, config=kit.config, response_schema=schema)
    _demand_parsed(reply, schema)
    async with provider.stream(
        kit.schema_prompt, config=kit.config, response_schema=schema
    ) as stream:
        await read_events(stream)
    _demand_parsed(stream.response, schema)


def _demand_parsed(reply: ev.Response | None, schema: Mapping[str, Any]) -> None:
    parsed = None if reply is None else reply.parsed
    demand(parsed is not None, "parsed is empty, but a schema was given")
    wrong = first_error(compile_schema(dict(schema), "schema"), parsed)
    demand(wrong is None, f"parsed violates the schema: {wrong}")
    demand(bool(reply and reply.structured_path), "structured_path is not set")


async def _parses_into_a_type(kit: Kit, provider: Provider) -> None:
    fields = [(name, Any) for name in kit.schema.get("properties", {})]
    kind = msgspec.defstruct("Asked", fields)
    plain = await provider.complete(
        kit.schema_prompt, config=kit.config, response_schema=dict(kit.schema)
    )
    demand(isinstance(plain.parsed, dict), "parsed of a schema is not a mapping")
    typed = await provider.complete(kit.schema_prompt, config=kit.config, response_schema=kind)
    demand(isinstance(typed.parsed, kind), "parsed of a type is not an instance of it")


# --- cases for readiness and concurrency -------------------------------------------------------


async def _ready_costs_nothing(kit: Kit, provider: Provider) -> None:
    spy = Spy(provider)
    answer: Any = await provider.ready()  # type: ignore[func-returns-value]
    demand(answer is None, "ready() must return None or raise")
    demand_same(spy.calls, 0, "calls to the model that ready() made")


async def _is_not_ready(kit: Kit, provider: Provider, *, kind: type[ProviderError]) -> None:
    try:
        await provider.ready()
    except ProviderError as error:
        demand(type(error) is kind, f"ready() raised {type(error).__name__}, not {kind.__name__}")
    else:
        raise Violation(f"ready() returned instead of raising {kind.__name__}")


async def _settings_are_one_calls(kit: Kit, provider: Provider) -> None:
    short = replace(kit.config, max_tokens=max(1, (kit.config.max_tokens or 64) // 4))
    await asyncio.gather(
        provider.complete(kit.prompt, config=short),
        kit.ask(provider),
    )
    demand(
        bool((await kit.ask(provider)).text),
        "a later call has no text",
    )


# --- cases for two providers -------------------------------------------------------------------


async def _answer_alike(kit: Kit, provider: Provider) -> None:
    shapes = []
    async with kit.open(kit.other) as other:
        for each in (provider, other):
            reply = await kit.ask(each)
            demand_response(reply)
            kinds = {type(block) for block in reply.message.content}
            kinds -= {m.Thinking, m.RedactedThinking}
            shapes.append([reply.finish_reason, *sorted([kind.__name__ for kind in kinds])])
    demand_same(shapes[1], shapes[0], "the form of the other provider's reply")


async def _continue_each_other(kit: Kit, provider: Provider) -> None:
    async with kit.open(kit.other) as other:
        talk: list[m.Message] = [m.User(kit.tool_prompt)]
        for each in (provider, other, provider, other):
            reply = await each.complete(
                talk, [kit.tool], config=kit.config, tool_choice=m.ForceTool(kit.tool.name)
            )
            demand(bool(reply.tool_calls), f"{each.name} did not continue with a call")
            results = [m.ToolResult(call.id, "Sunny, 21 degrees.") for call in reply.tool_calls]
            talk += [reply.message, *results]


_ALWAYS: dict[str, Check] = {
    "shape.says-what-it-is": _describes_itself,
    "shape.answers-with-a-response": _answers_with_a_response,
    "shape.takes-every-form": _takes_every_form,
    "shape.leaves-arguments-alone": _does_not_change_arguments,
    "shape.closes-twice": _closes_twice,
    "validation.refuses-what-is-wrong": _rejects_invalid_requests,
    "cancel.nothing-is-false": _cancelling_nothing_is_false,
    "cancel.a-call": _a_call_can_be_cancelled,
    "ready.costs-nothing": _ready_costs_nothing,
    "concurrency.settings-are-one-calls": _settings_are_one_calls,
}
_TOOLS: dict[str, Check] = {
    "tools.are-proposed": _proposes_intents_only,
    "tools.in-both-modes": _both_ways_propose,
    "tools.ids-are-one": _ids_of_calls_are_one,
    "tools.take-results": _takes_results,
}
_SCHEMAS: dict[str, Check] = {
    "structured.parses-what-was-asked-for": _parses_what_was_asked_for,
    "structured.parses-into-a-type": _parses_into_a_type,
}
# Each row has four fields: a capability, whether its cases run if the capability is unknown, those
# cases, and the cases that run instead if the capability is known to be missing.
_SWITCHED: list[tuple[str, bool, dict[str, Check], dict[str, Check]]] = [
    ("supports_streaming", True, STREAMED, {"streams.are-refused": is_known_not_to_stream}),
    (
        "supports_system_prompt",
        True,
        {"system.is-taken": _takes_a_system},
        {"system.is-refused": _rejects_a_system},
    ),
    ("supports_tools", True, _TOOLS, {"tools.are-refused": _rejects_tools}),
    ("supports_structured_output", True, _SCHEMAS, {}),
    (
        "supports_images",
        False,
        {"images.are-seen": _sees_images},
        {"images.are-refused": _rejects_images},
    ),
]

"""Make the same calls with LiteLLM or with ``dragoman.compat.litellm``, and print what they return.

    python litellm_program.py litellm|dragoman URL ...

All calls are made with each URL. Each call has an address of its own below the URL, so that the server knows whose request it gets.
Replies are printed without ids, times and fields that are empty; an error by its class.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
MODEL = "openai/sim-1"
KEY = "a-key-of-this-board"
HI = [{"role": "user", "content": "Hi"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
FUNCTION = {"name": "get_weather", "description": "The weather.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
FORCED = {"type": "function", "function": {"name": "get_weather"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
EXCEPTIONS = (
    "RateLimitError", "ContextWindowExceededError", "AuthenticationError", "BadRequestError",
    "Timeout", "APIConnectionError", "APIError", "InternalServerError", "ServiceUnavailableError",
    "NotFoundError", "ContentPolicyViolationError", "UnprocessableEntityError",
    "PermissionDeniedError", "BudgetExceededError", "JSONSchemaValidationError",
    "UnsupportedParamsError", "InvalidRequestError", "APIResponseValidationError", "MockException",
)  # fmt: skip
STATUSES = (400, 401, 403, 404, 408, 422, 429, 500, 503)
Calls = dict[str, Callable[[], Any]]


def show_message(message: Any) -> dict[str, Any]:
    """Return the parts of a message that a program reads."""
    calls = [
        [call.function.name, json.loads(call.function.arguments), call.id]
        for call in message.tool_calls or ()
    ]
    function = getattr(message, "function_call", None)
    return {
        "role": message.role,
        "content": message.content,
        "calls": calls,
        "function": function and [function.name, json.loads(function.arguments)],
    }


def show(reply: Any) -> dict[str, Any]:
    """Return the parts of a reply that a program reads."""
    usage = reply.usage
    return {
        "object": reply.object,
        "model": reply.model,
        "choices": [
            [choice.index, choice.finish_reason, show_message(choice.message)]
            for choice in reply.choices
        ],
        "usage": [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens],
    }


def show_chunks(chunks: Iterable[Any]) -> dict[str, Any]:
    """Return what the chunks of a stream add up to."""
    parts = list(chunks)
    deltas = [part.choices[0].delta for part in parts if part.choices]
    calls: dict[int, list[str]] = {}
    for delta in deltas:
        for call in delta.tool_calls or ():
            known = calls.setdefault(call.index, ["", ""])
            known[0] += call.function.name or ""
            known[1] += call.function.arguments or ""
    usages = [part.usage for part in parts if getattr(part, "usage", None) is not None]
    ends = [part.choices[0].finish_reason for part in parts if part.choices]
    return {
        "object": parts[0].object,
        "role": deltas[0].role,
        "text": "".join([delta.content or "" for delta in deltas]),
        "calls": [[name, json.loads(text)] for name, text in calls.values()],
        "finish": [end for end in ends if end],
        "usage": [[each.prompt_tokens, each.completion_tokens] for each in usages],
    }


def make_calls(litellm: Any, url: str) -> Calls:
    """Return the calls by name."""
    from pydantic import BaseModel

    class City(BaseModel):
        name: str

    def at(name: str) -> dict[str, Any]:
        return {"api_base": f"{url}/{name.replace(' ', '-')}/v1", "api_key": KEY}

    calls: Calls = {}

    def add(name: str, messages: Any = HI, model: str = MODEL, **given: Any) -> None:
        where = at(name)
        calls[name] = lambda: show(litellm.completion(model, messages, **where, **given))

    def add_stream(name: str, **given: Any) -> None:
        where = at(name)
        calls[name] = lambda: show_chunks(
            litellm.completion(MODEL, HI, stream=True, **where, **given)
        )

    add("completion")
    calls["keywords"] = lambda: show(
        litellm.completion(model=MODEL, messages=HI, **at("keywords"))
    )
    calls["items"] = lambda: litellm.completion(MODEL, HI, **at("items"))["choices"][0]["message"][
        "content"
    ]
    calls["dumped"] = lambda: litellm.completion(MODEL, HI, **at("dumped")).model_dump()[
        "choices"
    ][0]["message"]["content"]
    calls["JSON"] = lambda: json.loads(
        litellm.completion(MODEL, HI, **at("JSON")).model_dump_json()
    )["choices"][0]["finish_reason"]
    calls["base_url"] = lambda: show(
        litellm.completion(MODEL, HI, base_url=at("base_url")["api_base"], api_key=KEY)
    )
    add("custom_llm_provider", model="sim-1", custom_llm_provider="openai")
    add("max_tokens", max_tokens=5)
    add("max_completion_tokens", max_completion_tokens=5)
    add("sampling", temperature=0.1, top_p=0.5, stop=["x"], seed=1, user="u")
    add("penalties", frequency_penalty=0.5, presence_penalty=0.25)
    add("logit_bias", logit_bias={"1": 1})
    add("several choices", n=2)
    add("metadata", metadata={"a": "b"})
    add("extra_headers", extra_headers={"x-a": "b"})
    add("extra_body", extra_body={"zz": 1})
    add("timeout", timeout=30)
    add("num_retries", num_retries=2)
    add("tools", tools=[TOOL])
    add("forced tool", tools=[TOOL], tool_choice=FORCED)
    add("required tool", tools=[TOOL], tool_choice="required")
    add("no parallel calls", tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    add("functions", functions=[FUNCTION])
    add("forced function", functions=[FUNCTION], function_call={"name": "get_weather"})
    add("JSON object", response_format={"type": "json_object"})
    add("response class", response_format=City)
    schema = {"name": "City", "strict": True, "schema": {
        "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"],
        "additionalProperties": False,
    }}  # fmt: skip
    add("response schema", response_format={"type": "json_schema", "json_schema": schema})
    add("system message", [{"role": "system", "content": "Be brief."}, *HI])
    add("system message alone", [{"role": "system", "content": "Say hi"}])
    add("developer message", [{"role": "developer", "content": "Be brief."}, *HI])
    add("beginning of the reply", [*HI, {"role": "assistant", "content": "Sure"}])
    add("image", [{"role": "user", "content": [{"type": "text", "text": "Look"}, IMAGE]}])
    called = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function",
         "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}},
    ]}  # fmt: skip
    result = {"role": "tool", "tool_call_id": "c1", "content": "rain"}
    add("result of a tool", [*HI, called, result], tools=[TOOL])

    def send_back() -> Any:
        where = at("message sent back")
        first = litellm.completion(MODEL, HI, tools=[TOOL], tool_choice="required", **where)
        message = first.choices[0].message
        answer = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}
        return show(litellm.completion(MODEL, [*HI, message, answer], tools=[TOOL], **where))

    calls["message sent back"] = send_back
    add_stream("stream")
    add_stream("streamed usage", stream_options={"include_usage": True})
    add_stream("streamed tool call", tools=[TOOL], tool_choice="required")

    def rebuild() -> Any:
        parts = list(litellm.completion(MODEL, HI, stream=True, **at("rebuilt stream")))
        return show(litellm.stream_chunk_builder(parts, messages=HI))["choices"]

    calls["rebuilt stream"] = rebuild

    async def ask() -> Any:
        return show(await litellm.acompletion(MODEL, HI, **at("acompletion")))

    async def ask_stream() -> Any:
        chunks = await litellm.acompletion(MODEL, HI, stream=True, **at("astream"))
        return show_chunks([chunk async for chunk in chunks])

    calls["acompletion"] = lambda: asyncio.run(ask())
    calls["astream"] = lambda: asyncio.run(ask_stream())
    calls["batch_completion"] = lambda: [
        show(each) for each in litellm.batch_completion(MODEL, [HI, HI], **at("batch_completion"))
    ]
    calls["text_completion"] = lambda: (
        litellm.text_completion(model=MODEL, prompt="Hi", **at("text_completion")).choices[0].text
    )
    calls["responses"] = lambda: (
        litellm.responses(model=MODEL, input="Hi", **at("responses")).output[0].content[0].text
    )
    calls["embedding"] = lambda: [
        each["embedding"]
        for each in litellm.embedding(model=MODEL, input=["a", "b"], **at("embedding")).data
    ]

    def route() -> Any:
        deployment = {"model": MODEL, **at("router")}
        router = litellm.Router(
            model_list=[{"model_name": "a", "litellm_params": deployment}], num_retries=0
        )
        return show(router.completion("a", HI))

    calls["router"] = route

    def observe() -> Any:
        seen = []
        is_seen = threading.Event()
        noted = [{"role": "user", "content": "Note this"}]

        def note(kwargs: Any, reply: Any, start: Any, end: Any) -> None:
            # LiteLLM calls it in a thread, and may do so after a later call has begun
            if kwargs["messages"] == noted:
                seen.append([kwargs["model"], reply.choices[0].message.content, end >= start])
                is_seen.set()

        litellm.success_callback = [note]
        try:
            litellm.completion(MODEL, noted, **at("success_callback"))
            is_seen.wait(60)
        finally:
            litellm.success_callback = []
        return seen

    calls["success_callback"] = observe
    calls["fallbacks"] = lambda: show(
        litellm.completion(
            MODEL, HI, fallbacks=["openai/other"], num_retries=0, max_retries=0, **at("fallbacks")
        )
    )
    for status in STATUSES:
        where = at(f"status-{status}")
        calls[f"status {status}"] = lambda where=where: litellm.completion(
            MODEL, HI, num_retries=0, max_retries=0, **where
        )
    calls["refused connection"] = lambda: litellm.completion(
        MODEL, HI, api_base="http://127.0.0.1:9/v1", api_key=KEY, num_retries=0, max_retries=0
    )
    calls["unknown provider"] = lambda: litellm.completion("nosuchprovider/x", HI)
    calls["mock_response"] = lambda: (
        litellm.completion("gpt-4o", HI, mock_response="mocked").choices[0].message.content
    )
    calls["cost_per_token"] = lambda: [
        round(each, 9)
        for each in litellm.cost_per_token(
            model="gpt-4o", prompt_tokens=1000, completion_tokens=100
        )
    ]
    calls["completion_cost"] = lambda: round(
        litellm.completion_cost(
            litellm.completion(MODEL, HI, **at("completion_cost")), model="gpt-4o"
        ),
        9,
    )
    calls["token_counter"] = lambda: (
        abs(litellm.token_counter(model="gpt-4o", messages=HI) - 8) <= 2
    )
    calls["get_max_tokens"] = lambda: litellm.get_max_tokens("gpt-4o")
    calls["get_model_info"] = lambda: litellm.get_model_info("gpt-4o")["max_input_tokens"]
    calls["model_cost"] = lambda: [
        litellm.model_cost["gpt-4o"][name]
        for name in ("max_input_tokens", "input_cost_per_token", "output_cost_per_token")
    ]
    calls["supports_function_calling"] = lambda: litellm.supports_function_calling("gpt-4o")
    calls["supports_vision"] = lambda: litellm.supports_vision("gpt-4o")
    calls["get_llm_provider"] = lambda: litellm.get_llm_provider("anthropic/claude-3-opus")[:2]
    calls["get_supported_openai_params"] = lambda: sorted(
        {"tools", "temperature", "n"} & {*litellm.get_supported_openai_params("gpt-4o")}
    )
    calls["validate_environment"] = lambda: litellm.validate_environment("gpt-4o")
    calls["exceptions"] = lambda: [name for name in EXCEPTIONS if not hasattr(litellm, name)]
    return calls


def try_call(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or the class of its error."""
    os.environ.pop("OPENAI_API_KEY", None)
    try:
        return call()
    except Exception as error:
        return f"raised {type(error).__name__}"


def main(library: str, urls: list[str]) -> None:
    """Make the calls with each URL, and print what they return by URL and name."""
    if library == "litellm":
        import litellm
    else:
        from dragoman.compat import litellm
    found = {}
    for url in urls:
        calls = make_calls(litellm, url)
        found[url] = {name: try_call(call) for name, call in calls.items()}
    sys.stdout.write("\n" + json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

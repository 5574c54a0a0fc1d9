"""Calls in other forms than a chat: several at once, plain text, responses and rankings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from decimal import Decimal
from typing import Any

import msgspec
from msgspec.structs import replace

from ...integrations.losses import warn_of_losses
from ...integrations.served import ServedCall, StartedStream
from ...prices import cost
from ...retrieval import Reranker
from ...retrieval.wire.server import RerankServer
from .calls import complete, locate, open_model, split
from .exceptions import converted_errors
from .names import Named
from .records import AttributeRecord, ModelReply, ModelResponse

_TOGETHER = 100  # calls of a batch at a time, as many as LiteLLM's threads


class TextCompletionResponse(ModelReply):
    """The reply to a prompt without roles."""


class TextCompletionStreamWrapper(StartedStream[TextCompletionResponse]):
    """The parts of texts: use ``for``, or ``async for`` if they come from ``atext_completion``."""


class ResponsesAPIResponse(ModelReply):
    """A reply in the form of the Responses API."""


class RerankResponse(ModelReply):
    """The order of documents by their relevance to a query."""


async def complete_all(
    model: str, conversations: Sequence[Sequence[Any]], given: Mapping[str, Any]
) -> list[Any]:
    """Return the reply to each conversation, or the exception of its call in its place."""
    limit = asyncio.Semaphore(_TOGETHER)

    async def call(messages: Sequence[Any]) -> Any:
        async with limit:
            return await complete(model, messages, given)

    return await asyncio.gather(*[call(each) for each in conversations], return_exceptions=True)


async def complete_text(
    model: str, prompt: str | Sequence[str], given: Mapping[str, Any]
) -> TextCompletionResponse | TextCompletionStreamWrapper:
    """Send each prompt as the message of a user; return the texts of the replies, or a stream."""
    prompts = [prompt] if isinstance(prompt, str) else [*prompt]
    if given.get("stream"):
        return await TextCompletionStreamWrapper(_read_texts(model, prompts, given)).start()
    replies: list[ModelResponse] = [
        await complete(model, [{"role": "user", "content": each}], given) for each in prompts
    ]
    choices = [
        {
            "text": reply.choices[0].message.content or "",
            "index": at,
            "logprobs": None,
            "finish_reason": reply.choices[0].finish_reason,
        }
        for at, reply in enumerate(replies)
    ]
    first = replies[0]
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    usage = {name: sum([reply.usage[name] for reply in replies]) for name in names}
    made = TextCompletionResponse(
        id=first.id, object="text_completion", created=first.created, model=first.model,
        choices=[AttributeRecord(each) for each in choices], usage=usage,
    )  # fmt: skip
    costs = [reply.find_cost() for reply in replies]
    known = [Decimal(str(each)) for each in costs if each is not None]
    made.note(sum(known, Decimal(0)) if len(known) == len(costs) else None)
    return made


async def _read_texts(
    model: str, prompts: Sequence[str], given: Mapping[str, Any]
) -> AsyncGenerator[TextCompletionResponse]:
    """Yield the parts of the text of each prompt in turn, with the index of the prompt."""
    for at, prompt in enumerate(prompts):
        stream = await complete(model, [{"role": "user", "content": prompt}], given)
        async with aclosing(stream):
            async for chunk in stream:
                choices = [
                    AttributeRecord(
                        text=choice.delta.get("content") or "", index=at, logprobs=None,
                        finish_reason=choice.finish_reason,
                    )
                    for choice in chunk.choices
                ]  # fmt: skip
                made = TextCompletionResponse({**chunk, "object": "text_completion"})
                made["choices"] = choices
                made.note_as(chunk)
                yield made


async def respond(model: str, asked: Any, given: Mapping[str, Any]) -> Any:
    """Call a model in the form of the Responses API; return the response, or its events."""
    options, body = split(given)
    named = locate(model, options["custom_llm_provider"])
    with converted_errors(named.provider, named.model):
        provider = await open_model(named, options)
        fields = {**body, "input": asked}
        call = ServedCall(provider, "responses", fields, drops=bool(options["drop_params"]))
        if not body.get("stream"):
            made = ResponsesAPIResponse(await call.read())
            made.note(call.cost, custom_llm_provider=named.provider)
            return made
    return await StartedStream(_read_events(call, named)).start()


async def _read_events(call: ServedCall, named: Named) -> AsyncGenerator[AttributeRecord]:
    with converted_errors(named.provider, named.model):
        async with aclosing(call.read_stream()) as events:
            async for event in events:
                yield AttributeRecord(event)


async def rank(
    model: str, query: str, documents: Sequence[Any], given: Mapping[str, Any]
) -> RerankResponse:
    """Return documents in the order of their relevance to a query."""
    options, body = split(given)
    named = locate(model, options["custom_llm_provider"])
    server = RerankServer()
    with converted_errors(named.provider, named.model):
        fields = {**body, "model": named.model, "query": query, "documents": [*documents]}
        asked = server.decode(fields)
        reranker: Reranker = await open_model(named, options, "open_reranker")
        answer = await reranker.send(replace(asked.request, model=reranker.model))
    warn_of_losses(asked.warnings, stacklevel=3)
    made = RerankResponse(msgspec.json.decode(server.encode(answer, asked, named.model).body))
    made.note(cost(answer).total, custom_llm_provider=named.provider)
    return made

"""Apply context policies: estimate the conversation's tokens, shorten it, record the change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from .. import messages as m
from ..calls import IS_WORKER, TURN, CallStarted
from ..errors import InvalidResponseError, ProviderError
from ..log import ContextProjected, ContextSummarised, Sent
from ..log.writer import finish_writing
from ..middleware.attempts import Attempt, Price
from ..provider import Provider
from .context import ContextPolicy, ContextView, KeepAll, NativeCompaction, Part, Projection
from .journal import Journal

_SUMMARY_TOKENS = 2_000


class Projector:
    """The context policies of a session, applied in order until the conversation fits."""

    def __init__(
        self,
        policies: Sequence[ContextPolicy],
        journal: Journal,
        config: m.RuntimeConfig,
        price: Price | None = None,
    ) -> None:
        self.policies = tuple(policies) or (KeepAll(),)
        self._journal = journal
        self._config = config
        self._price = price
        self._frames: dict[tuple[str, ...], int] = {}

    @property
    def keeps_all(self) -> bool:
        """Whether every policy sends the complete conversation (``KeepAll``)."""
        return all(isinstance(policy, KeepAll) for policy in self.policies)

    def use_config(self, config: m.RuntimeConfig) -> None:
        """Fit the conversation to other settings from now on."""
        self._config = config

    async def fit(
        self, provider: Provider, tools: Sequence[m.Tool] | None, parent: str, turn: str
    ) -> tuple[list[m.Message], int]:
        """Return the messages to send and their tokens; shorten them if they exceed the limit."""
        messages, tokens = self._measure(provider, tools)
        window = self._find_window(provider)
        if window is None or self.keeps_all or tokens <= self._find_limit(window):
            return messages, tokens
        await self._shorten(provider, tools, "share", self._find_goal(window), parent, turn)
        return self._measure(provider, tools)

    async def unload(
        self,
        provider: Provider,
        tools: Sequence[m.Tool] | None,
        loaded: Sequence[str],
        parent: str,
        turn: str,
        *,
        reason: Literal["share", "overflow"] = "share",
    ) -> bool:
        """Stop offering tools that a search found, in the order of ``loaded``, if it is too long.

        With the reason ``overflow`` the model rejected the request. Return whether fewer are
        offered from now on.
        """
        if self.keeps_all or not loaded:
            return False
        _, before = self._measure(provider, tools)
        window = self._find_window(provider)
        if reason == "share" and (window is None or before <= self._find_limit(window)):
            return False
        goal = before // 2 if window is None else min(before, self._find_goal(window))
        sizes = {tool.name: self._frame(provider, [tool]) for tool in tools or ()}
        empty = self._frame(provider, None)
        after = before
        gone: list[str] = []
        for name in loaded:
            if after <= goal:
                break
            gone.append(name)
            after -= sizes[name] - empty
        projected = ContextProjected(
            rule="definitions",
            reason=reason,
            left_out=(),
            tokens_before=before,
            tokens_after=after,
            window=window,
            tools=tuple(gone),
        )
        if gone:
            await self._journal.write(projected, parent=parent, turn=turn)
        return bool(gone)

    async def shrink(
        self, provider: Provider, tools: Sequence[m.Tool] | None, parent: str, turn: str
    ) -> bool:
        """Shorten a conversation that the model rejected; return whether it became shorter."""
        _, tokens = self._measure(provider, tools)
        window = self._find_window(provider)
        goal = tokens // 2 if window is None else min(tokens // 2, self._find_goal(window))
        return await self._shorten(provider, tools, "overflow", goal, parent, turn)

    def _measure(
        self, provider: Provider, tools: Sequence[m.Tool] | None
    ) -> tuple[list[m.Message], int]:
        """Return the messages to send and their estimated tokens.

        Each message is estimated only once.
        """
        state = self._journal.state
        entries = self._journal.state.conversation.entries
        first = self._find_first(provider)
        sizes = [
            self._estimate(entry, provider)
            for at, entry in enumerate(entries)
            if at >= first or isinstance(entry.message, m.System)
        ]
        return state.project(provider.name), self._frame(provider, tools) + sum(sizes)

    def _find_first(self, provider: Provider) -> int:
        """Return the index of the first message that no compaction of the provider replaces."""
        entries = self._journal.state.conversation.entries
        return provider.compacted_at([entry.message for entry in entries])

    def compaction(self, provider: Provider) -> dict[str, Any]:
        """Return the extras that request compaction by the provider, if a policy uses it."""
        if not any(isinstance(policy, NativeCompaction) for policy in self.policies):
            return {}
        window = self._find_window(provider)
        limit = None if window is None else self._find_limit(window)
        return provider.compaction(limit) or {}

    def list_replaced(self, provider: Provider) -> list[int]:
        """Return the numbers of the records whose messages a compaction now replaces."""
        entries = self._journal.state.conversation.entries[self._find_first(provider) :]
        return [each.seq for each in entries if not isinstance(each.message, m.System)]

    def _estimate(self, entry: Sent, provider: Provider) -> int:
        model = f"{provider.name}:{provider.model}"
        if entry.measured is None or entry.measured[0] != model:
            alone = provider.estimate_input_tokens([entry.message])
            entry.measured = model, max(alone - self._frame(provider, None), 0)
        return entry.measured[1]

    def _frame(self, provider: Provider, tools: Sequence[m.Tool] | None) -> int:
        """Return the estimated tokens of a request apart from its messages."""
        key = (f"{provider.name}:{provider.model}", *[tool.name for tool in tools or ()])
        if key not in self._frames:
            self._frames[key] = provider.estimate_input_tokens([], tools)
        return self._frames[key]

    def _find_window(self, provider: Provider) -> int | None:
        given = next(
            (policy.window for policy in self.policies if policy.window is not None), None
        )
        known: int | None = provider.capabilities.known("max_context_tokens")
        return given or known

    def _find_limit(self, window: int) -> int:
        """Return the number of tokens that may be sent, reserving space for the longest reply."""
        limit = int(self.policies[0].share * window)
        reply = self._config.max_tokens
        return limit if reply is None or reply >= window else max(min(limit, window - reply), 1)

    def _find_goal(self, window: int) -> int:
        """Return the number of tokens to shorten to: the limit times ``target`` / ``share``.

        If conversations were shortened to the limit itself, they would exceed it again at the next
        turn. Every turn would then change the messages sent, and the provider's prompt cache would
        never match.
        """
        policy = self.policies[0]
        return int(self._find_limit(window) * policy.target / policy.share)

    async def _shorten(
        self,
        provider: Provider,
        tools: Sequence[m.Tool] | None,
        reason: Literal["share", "overflow"],
        goal: int,
        parent: str,
        turn: str,
    ) -> bool:
        changed = False
        for policy in self.policies:
            _, before = self._measure(provider, tools)
            if before <= goal:
                break
            window = self._find_window(provider)
            summarise = partial(self._summarise, provider, parent, turn)
            view = ContextView(
                parts=self._list_parts(provider),
                tokens=before,
                goal=goal,
                window=window,
                family=provider.token_family,
                summarise=summarise,
                compacts=reason == "share" and bool(self.compaction(provider)),
            )
            projection = await policy.project(view)
            if projection is None or not projection.left_out:
                continue
            changed = True
            after = before - self._count_savings(projection, provider)
            projected = ContextProjected(
                rule=policy.rule,
                reason=reason,
                left_out=projection.left_out,
                tokens_before=before,
                tokens_after=after,
                window=window,
                note=projection.note,
                summary=projection.summary,
            )
            await self._journal.write(projected, parent=parent, turn=turn)
        return changed

    def _count_savings(self, projection: Projection, provider: Provider) -> int:
        """Return the number of tokens that a projection saves."""
        frame = self._frame(provider, None)
        saved = sum([each.tokens for each in projection.left_out])
        added = [each.instead for each in projection.left_out if each.instead is not None]
        added += [projection.note] if projection.note is not None else []
        return saved - sum(
            [provider.estimate_input_tokens([m.User(text)]) - frame for text in added if text]
        )

    def _list_parts(self, provider: Provider) -> tuple[Part, ...]:
        state = self._journal.state
        entries = state.conversation.entries
        first = self._find_first(provider)
        newest = max(
            [at for at, each in enumerate(entries) if isinstance(each.message, m.Assistant)],
            default=-1,
        )
        calls: dict[str, tuple[m.ToolCall, str | None]] = {}
        parts: list[Part] = []
        for at, entry in enumerate(entries):
            message = entry.message
            call = None
            effect = None
            if isinstance(message, m.Assistant):
                calls = {
                    each.id: (each, entry.recorded.tool_ids.get(each.id))
                    for each in message.tool_calls
                }
            elif isinstance(message, m.ToolResult) and message.tool_call_id in calls:
                call, intent = calls[message.tool_call_id]
                kept = state.intents.get(intent or "")
                effect = kept.side_effect if kept is not None else None
            tokens = self._estimate(entry, provider) if at >= first else 0
            parts.append(
                Part(
                    seq=entry.seq,
                    message=message,
                    tokens=tokens,
                    is_goal=entry.is_goal,
                    is_note=entry.is_note,
                    is_replaced=entry.instead is not None,
                    unseen=at > newest,
                    call=call,
                    side_effect=effect,
                )
            )
        return tuple(parts)

    # --- summarising earlier messages -----------------------------------------------------------

    async def _summarise(
        self,
        own: Provider,
        parent: str,
        turn: str,
        provider: Provider | None,
        instructions: str,
        transcript: str,
        parts: Sequence[Part],
    ) -> tuple[str, str]:
        """Write a summary with a model; return the id of its record, and the text."""
        provider = provider or own
        messages: list[m.Message] = [m.System(instructions), m.User(transcript)]
        request = m.Request(
            messages, config=m.RuntimeConfig(max_tokens=_SUMMARY_TOKENS), model=provider.model,
            stream=True, session_id=self._journal.session,
            metadata={TURN: turn, IS_WORKER: "true"},
        )  # fmt: skip
        attempt = Attempt(provider, request, price=self._price)
        started = attempt.start(provider.estimate_input_tokens(messages))
        call = await self._journal.write(started, parent=parent, turn=turn)
        text = await self._ask(provider, request, attempt, parent, call.id, turn)
        numbers = [part.seq for part in parts]
        summarised = ContextSummarised(
            text=text,
            first=min(numbers),
            last=max(numbers),
            messages=len(parts),
            provider=provider.name,
            model=provider.model,
            request_id=request.request_id,
        )
        return (await self._journal.write(summarised, parent=call.id, turn=turn)).id, text

    async def _ask(
        self,
        provider: Provider,
        request: m.Request,
        attempt: Attempt,
        parent: str,
        started: str,
        turn: str,
    ) -> str:
        """Call a model without tools, and record the end of the call."""
        failure: BaseException | None = None
        try:
            stream = provider.stream(
                request.messages, None, request.config, request_id=request.request_id,
                session_id=request.session_id, metadata=request.metadata,
            )  # fmt: skip
            attempt.reply = stream.reply
            async with stream:
                async for event in stream:
                    attempt.hear((event,))
        except (asyncio.CancelledError, ProviderError) as error:
            failure = error
            raise
        finally:
            attempt.stop(failure)
            await finish_writing(self._record_end(attempt, parent, started, turn))
        response = stream.response
        if not response.text.strip():
            raise InvalidResponseError(
                "the summary is empty", provider=provider.name, model=provider.model
            )
        return response.text

    async def _record_end(self, attempt: Attempt, parent: str, started: str, turn: str) -> None:
        """Record the attempts of a call; the parent of each end is the start of its attempt."""
        for record in attempt.finish():
            is_start = isinstance(record, CallStarted)
            written = await self._journal.write(
                record, parent=parent if is_start else started, turn=turn
            )
            if is_start:
                started = written.id

"""``Guard``: the layer that releases only what its judges allow."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Literal

from msgspec.structs import replace

from ...calls import CallRecord
from ...errors import BlockedError
from ...events import Event, Usage
from ...messages import Request
from ...provider import LayerCall, Reply, WrappedReply
from ...provider.model import Kind, OfKind
from ...validate.reply import Expectation
from ..layer import Middleware, Wrapper, check_number
from .judging import Bench, Failure, name_judge, read_code
from .passage import Window
from .release import Due, Release
from .subject import STAGES, Judge, Stage, Subject, Verdict, read_request

DEADLINE = 10.0
WINDOW = 200
_BLOCKED = "blocked"
_FINISHED = "guard"  # the ``finish_raw`` of a refusal


class Guard(Wrapper[Kind], Middleware[Kind]):
    """Ask judges about each request and each reply, and release only what they allow.

    ``judge`` is a function, or an object that can be called, or a list of them. It receives a
    ``Subject`` and returns ``"allow"``, ``"flag"``, ``"block"`` or a ``Verdict``; it may be a
    coroutine function. The judges of a list are asked side by side, and the strictest verdict
    counts. For judges one after another, put a ``Guard`` around a ``Guard``.

    ``on`` are the stages that are judged: the ``request``, before it is sent; the ``text`` and the
    thinking of a reply; each ``intent``, which is a complete tool call; and the whole ``reply``.
    With ``reply``, nothing of a reply is released before its end. Without it, a stream releases
    each tool call once it is judged, and text in windows: the last ``window`` characters stay
    back, so that a judge sees every string of up to this length as a whole before a part of it
    leaves. ``window="sentence"`` releases whole sentences.

    What is blocked raises ``BlockedError``; with ``refusal``, the reply is this text with the
    finish reason ``content_filter``. If a part was already released, the stream ends after it. A
    ``Verdict("rewrite", ...)`` counts only at the stages in ``rewrites``, and is reported as a
    ``LossWarning``; at other stages it blocks. A judge that fails or takes more than ``deadline``
    seconds blocks too, unless ``on_failure`` is ``"open"``.

    Each verdict is a ``GuardJudged`` in the history of the reply. With ``include_content`` it has
    the reason that the judge gave, which may quote what was judged.
    """

    def __init__(
        self,
        provider: OfKind[Kind],
        judge: Judge | Sequence[Judge],
        *,
        on: Sequence[Stage] = STAGES,
        window: Window = WINDOW,
        on_failure: Failure = "closed",
        deadline: float = DEADLINE,
        rewrites: Sequence[Literal["request", "text", "intent"]] = (),
        refusal: str | None = None,
        include_content: bool = False,
    ) -> None:
        super().__init__(provider)
        judges = tuple(judge) if isinstance(judge, Sequence) else (judge,)
        for each in judges:
            if not callable(each):
                raise ValueError(f"Guard: a judge must be a function, not {type(each).__name__}")
        if not judges:
            raise ValueError("Guard: give at least one judge")
        self._on = _read_stages("on", on, STAGES)
        self._rewrites = _read_stages("rewrites", rewrites, STAGES[:3])
        if not self._rewrites <= self._on:
            raise ValueError("Guard: rewrites names a stage that on does not")
        if window != "sentence":
            check_number("Guard", "window", window, least=1, most=1_000_000, whole=True)
        check_number("Guard", "deadline", deadline, least=0.001, most=3600)
        if on_failure not in ("closed", "open"):
            raise ValueError(f"Guard: on_failure is 'closed' or 'open', not {on_failure!r}")
        self._window: Window = window
        self._refusal = refusal
        self._bench = Bench(
            judges, deadline=deadline, on_failure=on_failure, include_content=include_content
        )

    def settings(self) -> Mapping[str, Any]:
        return {
            "judge": [name_judge(each) for each in self._bench.judges],
            "on": [stage for stage in STAGES if stage in self._on],
            "window": self._window,
            "on_failure": self._bench.on_failure,
            "deadline": self._bench.deadline,
        }

    def open(self, request: Any) -> Reply:
        release = self._begin(request)
        serve = partial(self._serve, release)
        return GuardedReply(request, self.name, self.model, serve, release)

    async def serve(self, request: Any, served: LayerCall) -> AsyncGenerator[list[Event], None]:
        async with aclosing(self._serve(self._begin(request), request, served)) as batches:
            async for batch in batches:
                yield batch

    def _begin(self, request: Any) -> Release:
        return Release(request, self._on, self._window, self._rewrites)

    async def _serve(
        self, release: Release, request: Any, served: LayerCall
    ) -> AsyncGenerator[list[Event], None]:
        if "request" in self._on:
            try:
                request = await self._judge_request(release, request)
            except BlockedError:
                if self._refusal is None or not isinstance(request, Request):
                    raise
                yield self._refuse(release, Usage())
                return
        async with aclosing(self.inner.open(request)) as reply:
            served.reply = reply
            if not isinstance(request, Request) or self._on == {"request"}:
                release.is_as_sent = True
                while batch := await reply.next():
                    yield batch
                return
            while batch := await reply.next():
                for event in batch:
                    release.add(event)
                blocked = await self._judge_reply(release, reply)
                events = release.take() if blocked is None else self._end(release, reply, blocked)
                if events:
                    yield events
                if blocked is not None and self._refusal is not None:
                    return
                failure = blocked or release.error
                if failure is not None:
                    raise failure

    # --- verdicts

    async def _judge_request(self, release: Release, request: Any) -> Any:
        subject = Subject(stage="request", text=read_request(request), request=request)
        due = Due(subject, may_rewrite="request" in self._rewrites)
        verdict = await self._judge(release, due, None)
        if verdict.action != "rewrite":
            return request
        return replace(verdict.request, request_id=request.request_id)

    async def _judge_reply(self, release: Release, reply: Reply) -> BlockedError | None:
        """Judge what is due of a reply; return the error if a part of it is blocked."""
        try:
            for due in release.advance():
                await self._judge(release, due, reply)
        except BlockedError as error:
            return error
        return None

    async def _judge(self, release: Release, due: Due, reply: Reply | None) -> Verdict:
        """Return a verdict that does not block; raise ``BlockedError`` for any other."""
        judged = await self._bench.judge(due.subject)
        release.record(reply, *judged.records)
        verdict = judged.verdict
        problem: str | None = None
        if verdict.action == "block":
            problem = "a judge blocked it"
        elif verdict.action == "rewrite":
            problem = _find_fault(verdict, due)
        if problem is not None:
            code = read_code(verdict) or _BLOCKED
            what = due.subject.stage if due.subject.part == "text" else due.subject.part
            raise BlockedError(
                f"the guard withheld the {_NAMES.get(what, what)}: {problem} [{code}]",
                provider=self.name, model=self.model, request_id=due.subject.request.request_id,
                provider_code=code,
            )  # fmt: skip
        if due.accept is not None:
            due.accept(verdict)
        return verdict

    # --- the end of a blocked reply

    def _end(self, release: Release, reply: Reply, error: BlockedError) -> list[Event]:
        """Return the events that close the message after what was released."""
        reply.cancel()  # this estimates the usage, if the provider did not report it yet
        if self._refusal is not None and not release.has_begun:
            return self._refuse(release, reply.usage)
        out = release.out
        has_begun = out.started
        if not has_begun:
            out.start(reply.model)
        out.provider = reply.provider
        out.reported = reply.usage
        out.warnings = reply.warnings
        if self._refusal is None:
            out.fail(error)
        else:
            out.text(self._refusal)
            out.finish("content_filter", _FINISHED)
        closing = out.take()
        return closing if has_begun else []

    def _refuse(self, release: Release, usage: Usage) -> list[Event]:
        """Return a reply with the text of the refusal."""
        out = release.out
        out.provider = self.name
        out.start(self.model)
        out.reported = usage
        out.text(self._refusal or "")
        out.finish("content_filter", _FINISHED)
        return out.take()


_NAMES = {"intent": "tool call", "other": "content"}


def _find_fault(verdict: Verdict, due: Due) -> str | None:
    """Return why a verdict cannot rewrite its subject; ``None`` if it can."""
    subject = due.subject
    if not due.may_rewrite:
        return "a judge wanted to rewrite it, which rewrites= does not allow here"
    if subject.stage == "request":
        is_same = type(verdict.request) is type(subject.request)
        return None if is_same else "a judge rewrote it without a request"
    if subject.stage == "text":
        return None if verdict.text is not None else "a judge rewrote it without a text"
    if verdict.input is None or subject.intent is None:
        return "a judge rewrote it without an input"
    assert isinstance(subject.request, Request)
    unfit = Expectation(subject.request).tool_problem(subject.intent.tool_name, verdict.input)
    return None if unfit is None else "a judge rewrote its input, which does not fit its schema"


def _read_stages(name: str, given: Any, known: Sequence[Stage]) -> frozenset[Stage]:
    stages: Any = (given,) if isinstance(given, str) else tuple(given)
    for each in stages:
        if each not in known:
            raise ValueError(f"Guard: {name} lists some of {', '.join(known)}, not {each!r}")
    return frozenset(stages)


class GuardedReply(WrappedReply):
    """The reply of a guard, which shows nothing that was not released."""

    def __init__(
        self, request: Any, provider: str, model: str, serve: Any, release: Release
    ) -> None:
        super().__init__(request, provider, model, serve)
        self._release = release

    @property
    def history(self) -> Sequence[CallRecord]:
        return self._release.read_history(self._served.reply)

    @property
    def raw(self) -> Any:
        return self.inner.raw if self._release.is_as_sent else None

    def cancel(self, undelivered: Sequence[Event] = ()) -> list[Event]:
        release = self._release
        if release.is_as_sent or release.out.complete is None:
            return super().cancel([*undelivered, *release.held])
        # The guard has ended the message itself, and the inner reply does not know it.
        closing = release.out.cut(undelivered)
        self._served.cancelled = self._served.cancelled or bool(closing)
        return closing

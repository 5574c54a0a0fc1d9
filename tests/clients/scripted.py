"""A scripted model that does what the prompt requests, for the feature lists of clients."""

import asyncio
import json
from collections.abc import Awaitable, Callable

from dragoman.messages import Request, ToolResult
from dragoman.sim import Answer, Call, Fault, RequestMatch, ScriptedProvider, ScriptRule

PARIS = Call("weather", {"city": "Paris"})
ROME = Call("weather", {"city": "Rome"})
TEXT = "Hello there"
RIVER = '{"name": "Rhine", "km": 1233}'
Sleep = Callable[[float], Awaitable[None]]
STATUSES = (400, 401, 403, 404, 429, 500, 503)


def ends_with_result(request: Request) -> bool:
    return isinstance(request.messages[-1], ToolResult)


def answer_by_tool(request: Request) -> Answer:
    """Answer with a call of the first tool; some clients request structured output as
    a tool call.
    """
    tool = request.tools[0]
    return Answer(
        tool_calls=[Call(tool.name, {} if tool.name.startswith("transfer") else json.loads(RIVER))]
    )


class Pauses:
    """Count the pauses of a slow reply, of which the second does not end by itself."""

    begun = cut = 0

    async def sleep(self, seconds: float) -> None:
        self.begun += 1
        try:
            if self.begun > 1:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cut += 1
            raise


def script(sleep: Sleep = asyncio.sleep, **more: Answer) -> ScriptedProvider:
    """Return a scripted model that does what the prompt requests, and more by other words."""
    answers = {
        "CALL": Answer(tool_calls=[PARIS]),
        "BOTH": Answer(tool_calls=[PARIS, ROME]),
        "PONDER": Answer(thinking="Hm.", text="I look.", tool_calls=[PARIS]),
        "RIVER": Answer(RIVER),
        "THINK": Answer(thinking="Hm.", text="Yes."),
        "SLOW": Answer("one two three four five six", pace=1e6),  # ends only if it is aborted
        **more,
    }
    rules = [
        ScriptRule(answer, RequestMatch(pattern=f"^{word}")) for word, answer in answers.items()
    ]
    faults = [
        ScriptRule(
            TEXT,
            RequestMatch(pattern=f"^E{code}"),
            fault=Fault(status=code, message="the model does not exist" if code == 404 else ""),
        )
        for code in STATUSES
    ]
    final = ScriptRule(answer_by_tool, RequestMatch(pattern="^(FINAL|HANDOFF)"))
    after = ScriptRule("It rains.", RequestMatch(where=ends_with_result))
    return ScriptedProvider(after, final, *rules, *faults, ScriptRule(TEXT), sleep=sleep)

"""Run programs of DSPy's documentation with ``DragomanLM`` over each wire; print what they return.

``test_dspy.py`` starts this in an environment that has DSPy.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import Any, Literal

import dspy

import dragoman as d
from dragoman.integrations.dspy import DragomanLM
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule, SimServer


def answer(request: d.Request) -> Answer:
    """Answer in the form that DSPy's adapters ask for; call the first tool once."""
    if request.tools and not any(isinstance(each, d.ToolResult) for each in request.messages):
        # on the bedrock wire, a tool stands in for the schema of the answer
        tool = request.tools[0]
        wanted = {"answer": 12} if "answer" in tool.parameters["properties"] else {"river": "Aare"}
        return Answer(tool_calls=[Call(tool.name, wanted)])
    text = "".join(getattr(message, "text", "") for message in request.messages)
    if "Fail" in text:
        raise d.InvalidRequestError("this one fails")
    if request.response_schema is not None:
        return Answer(text='{"answer": "12"}')
    values = {"sentiment": "positive", "next_tool_name": "finish", "next_tool_args": "{}"}
    asked = text.rpartition("Respond with")[2] or text
    fields = [name for name in re.findall(r"\[\[ ## (\w+) ## \]\]", asked) if name != "completed"]
    parts = [f"[[ ## {name} ## ]]\n{values.get(name, 'The Aare.')}" for name in fields]
    return Answer(text="\n\n".join([*parts, "[[ ## completed ## ]]"]))


class Classify(dspy.Signature):
    """Classify the sentiment of a sentence."""

    sentence: str = dspy.InputField()
    sentiment: Literal["positive", "negative"] = dspy.OutputField()


class Number(dspy.Signature):
    """Answer with a number."""

    question: str = dspy.InputField()
    answer: int = dspy.OutputField()


def depth(river: str) -> int:
    """Return the depth of a river."""
    return 12


async def stream(program: Any) -> list[str]:
    """Return the pieces of a streamed answer."""
    listener = dspy.streaming.StreamListener(signature_field_name="answer")
    streamed = dspy.streamify(program, stream_listeners=[listener])
    found = [each async for each in streamed(question="Which river?")]
    return [each.chunk for each in found if isinstance(each, dspy.streaming.StreamResponse)]


def run(lm: DragomanLM) -> dict[str, Any]:
    """Run every program with one model, and return what it printed."""
    ask = dspy.Predict("question -> answer")
    with dspy.context(lm=lm, track_usage=True):
        first = ask(question="Which river?")
        found: dict[str, Any] = {
            "predict": first.answer,
            "usage": sorted(next(iter(first.get_lm_usage().values())))[:2],
            "async": asyncio.run(ask.acall(question="Which one?")).answer,
            "thought": dspy.ChainOfThought("question -> answer")(question="Which?").answer,
            "typed": dspy.Predict(Classify)(sentence="What a river!").sentiment,
            "stream": "".join(asyncio.run(stream(ask))),
            "react": dspy.ReAct("question -> answer", tools=[depth])(question="How?").answer,
        }
        with dspy.context(adapter=dspy.JSONAdapter()):
            found["schema"] = dspy.Predict(Number)(question="How deep?").answer
        ask.set_lm(lm)
        found["copied"] = ask.deepcopy()(question="Which river?").answer
        tool = dspy.Tool(depth).format_as_litellm_function_call()
        calls = lm(messages=[{"role": "user", "content": "How deep?"}], tools=[tool])
        found["call"] = calls[0]["tool_calls"][0]["function"]["name"]
        try:
            lm("Fail")
        except dspy.LMError as error:
            found["error"] = f"{type(error).__name__}: {error}"
    return found


def main() -> None:
    with SimServer(ScriptedProvider(ScriptRule(answer), model="sim")) as served:
        for wire in sys.argv[1:]:
            place = {"base_url": served.base_urls[wire], "wire": wire}
            lm = DragomanLM("sim", connection=place, cache=False, num_retries=0, max_tokens=900)
            print(json.dumps({wire: run(lm)}))


if __name__ == "__main__":
    main()

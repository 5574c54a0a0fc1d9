"""Test that the embedded model does not repeat itself up to its limit."""

import json

import pytest

from dragoman import Request, User, connect
from dragoman.local import LocalProvider

from ..gateway.upstream import EXHAUSTIVE

PROMPTS = """
Name a river.
Name a river
Say hello
Hello
What is the capital of France?
Write a haiku about autumn.
Explain recursion in one sentence.
What is 17 * 3?
Who are you?
Tell me a joke.
The longest river in Germany?
Translate 'good morning' to French.
List three fruits.
Write a short story about a cat.
How do I boil an egg?
What is photosynthesis?
Summarise the plot of Romeo and Juliet.
Give me five ideas for a birthday present.
Write an email to my boss that I am ill.
What is the difference between a list and a tuple in Python?
Write a poem about the sea.
Why is the sky blue?
Tell me a long story.
How many legs does a spider have?
Count from 1 to 20.
What should I cook tonight?
Explain how a bicycle works.
What is the meaning of life?
Write a function that reverses a string in Python.
Name the planets of the solar system.
What is the weather like today?
Give me a recipe for pancakes.
Who wrote Hamlet?
Describe a sunset.
What are the benefits of exercise?
Rewrite this sentence politely: Give me the report.
List ten animals.
What happened in 1989 in Germany?
Thank you!
Explain the internet to a child.
""".strip().splitlines()


def repeats(text: str) -> bool:
    """Return whether a text ends in a loop: its last sequences of three words are mostly the same."""
    words = text.split()[-60:]
    triples = list(zip(words, words[1:], words[2:], strict=False))
    return len(words) > 40 and len(set(triples)) < len(triples) / 2


def test_loop_is_recognised() -> None:
    assert repeats("The Red River is a river in the Red River Basin " * 9)
    assert not repeats(" ".join(str(number) for number in range(90)))


def test_embedded_model_is_sent_the_settings_against_loops() -> None:
    preview = LocalProvider().preview(Request([User("Hi")]))
    assert preview is not None
    sent = json.loads(preview.http.body)
    assert sent["dry_multiplier"] > 1
    assert "\n" not in sent["dry_sequence_breakers"]


@pytest.mark.exhaustive
@pytest.mark.skipif(not EXHAUSTIVE, reason="ten minutes of the embedded model")
@pytest.mark.parametrize("prompt", PROMPTS)
async def test_no_everyday_prompt_ends_in_a_loop(prompt: str) -> None:
    async with connect("local") as model:
        reply = await model.complete(prompt, seed=1)
    assert not (reply.finish_reason == "length" and repeats(reply.text)), reply.text

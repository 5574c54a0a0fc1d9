"""Serve models of each wire that refuse what their vendors refuse, and count what comes back."""

import json
from collections.abc import Mapping
from typing import Any

from dragoman.provider import Provider
from dragoman.sim import Answer, Call, ScriptedProvider, SimServer
from dragoman.sim.script import ScriptRule

from .turns import TOOL

# The vendor and the model that each wire's requests are sent to. Their rules are strict.
UPSTREAMS: Mapping[str, tuple[str | None, str]] = {
    "anthropic": ("anthropic", "claude-sonnet-4-5"),
    "bedrock": ("bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
    "responses": ("openai", "gpt-6.1-sol"),
    "gemini": ("google", "gemini-3.7-flash"),
    "openai": ("deepseek", "deepseek-v4-pro"),
    "ollama": (None, "a-model"),
    "cohere": (None, "a-model"),
}
_CALLS = [Call(TOOL, {"at": "x"}), Call(TOOL, {})]
ANSWERS = (
    Answer(thinking="Hm.", text="Let me see.", tool_calls=_CALLS),
    Answer(thinking="So.", tool_calls=_CALLS[:1]),
    "Done.",
)


class StrictUpstream(SimServer):
    """A model that refuses what its vendor refuses, and records the bodies of its requests."""

    def __init__(
        self,
        wire: str,
        *answers: Answer | str | ScriptRule,
        served: tuple[str | None, str] | None = None,
    ) -> None:
        self.wire = wire
        self.vendor, self.model_name = served or UPSTREAMS[wire]
        script = answers or ANSWERS
        super().__init__(ScriptedProvider(*script, strict=True, vendor=self.vendor))
        self.bodies: list[Any] = []

    async def _answer_chat(self, codec: Any, request: Any) -> Any:
        self.bodies.append(json.loads(await request.body()))
        return await super()._answer_chat(codec, request)

    def open(self) -> Provider:
        """Return a provider that calls this model."""
        return self.connect(self.wire, self.model_name, vendor=self.vendor)

    @property
    def returned(self) -> list[int]:
        """The number of thoughts or signatures in each request, as the body has them."""
        return [_count_states(self.wire, body) for body in self.bodies]


def _count_states(wire: str, body: Any) -> int:
    """Return how many records in a body have the state of reasoning that the wire has."""
    if isinstance(body, list):
        return sum([_count_states(wire, each) for each in body])
    if not isinstance(body, dict):
        return 0
    inner = sum([_count_states(wire, each) for each in body.values()])
    name = _STATE_FIELDS[wire]
    token = body.get(name)
    # Some hosts demand a field of each call, so a codec sends a placeholder for what is not known.
    is_state = isinstance(token, str) and token.strip() and not token.startswith("skip_")
    return inner + bool(is_state)


_STATE_FIELDS = {
    "anthropic": "signature",
    "bedrock": "signature",
    "responses": "encrypted_content",
    "gemini": "thoughtSignature",
    "openai": "reasoning_content",
    "ollama": "thinking",
    "cohere": "thinking",
}

"""A served name may be a pattern, for names that clients ask for by themselves."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dragoman.errors import InvalidModelError
from dragoman.gateway.app import _open_models, create_app
from dragoman.gateway.keys import Key, KeyRing, new_key
from dragoman.gateway.models import Models
from dragoman.registry import Registry
from dragoman.sim import Answer, ScriptedProvider, ScriptRule
from dragoman.validate.yaml import ConfigError

from .serving import serving


def answering(text: str) -> ScriptedProvider:
    return ScriptedProvider(ScriptRule(Answer(text)))


MODELS = {
    "claude-haiku-*": "small",
    "claude-*": "large",
    "claude-haiku-4": "exact",
    "haiku": "small",
}


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        ("claude-haiku-5-5", "claude-haiku-*"),
        ("claude-haiku-4", "claude-haiku-4"),
        ("claude-opus-5", "claude-*"),
        ("haiku", "haiku"),
        ("haiku-3", "haiku-3"),
        ("xclaude-haiku-5", "xclaude-haiku-5"),
    ],
)
def test_name_stands_for_itself_or_for_the_longest_pattern_that_matches(
    asked: str, served: str
) -> None:
    models = Models({name: answering(text) for name, text in MODELS.items()})
    assert models.resolve(asked) == served
    assert models.names() == ["claude-haiku-4", "haiku"]


async def test_gateway_answers_names_that_match_a_pattern() -> None:
    key, digest = new_key()
    other, other_digest = new_key()
    ring = KeyRing([Key("ann", digest), Key("bob", other_digest, ("haiku",))])
    app = create_app({name: answering(text) for name, text in MODELS.items()}, keys=ring)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
    async with serving(app) as url, aiohttp.ClientSession() as client:

        async def ask(model: str, secret: str) -> tuple[int, Any, Any]:
            headers = {"authorization": f"Bearer {secret}"}
            sent = {**body, "model": model}
            async with client.post(
                f"{url}/v1/chat/completions", json=sent, headers=headers
            ) as reply:
                made = await reply.json()
            async with client.get(f"{url}/v1/models/{model}", headers=headers) as reply:
                shown = (await reply.json()).get("id")
            if "choices" not in made:
                return reply.status, None, shown
            return reply.status, (made["model"], made["choices"][0]["message"]["content"]), shown

        name = "claude-haiku-5-5"
        assert await ask(name, key) == (200, (name, "small"), name)
        assert await ask("claude-opus-5", key) == (
            200,
            ("claude-opus-5", "large"),
            "claude-opus-5",
        )
        assert await ask("gpt-5", key) == (404, None, None)
        assert await ask(name, other) == (404, None, None)
        async with client.get(
            f"{url}/metrics", headers={"authorization": f"Bearer {key}"}
        ) as reply:
            metrics = await reply.text()
    assert 'model="claude-haiku-*"' in metrics
    assert name not in metrics


CONFIG = """
adapters:
  here: {type: openai-compatible, base_url: "http://127.0.0.1:1/v1"}
models:
  here:m:
    adapter: here
    aliases: ["claude-haiku-*", mine]
"""


async def test_alias_of_the_configuration_may_be_a_pattern(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(CONFIG)
    async with Registry.load(path) as registry:
        models = Models(registry)
        assert models.resolve("claude-haiku-9") == "claude-haiku-*"
        assert models.find("claude-haiku-*").model == "m"
        assert {models.resolve(name) for name in ("here:m", "mine")} == {"here:m", "mine"}
        assert "claude-haiku-*" not in models.names()


VENDORS = """
adapters:
  openai: {type: openai, api_key: k1}
  anthropic: {type: anthropic, api_key: k2}
  groq: {type: groq, api_key: k3}
models:
  openai:mine:
    aliases: [best]
groups:
  pair: {candidates: ["openai:mine", "anthropic:claude-opus-4-7"]}
"""


def names_of(tmp_path: Path, more: str = "") -> list[str]:
    path = tmp_path / "models.yaml"
    path.write_text(VENDORS + more)
    return Models(Registry.load(path)).names()


def test_models_groups_and_aliases_of_the_file_are_served_and_nothing_else(tmp_path: Path) -> None:
    assert sorted(names_of(tmp_path)) == ["best", "openai:mine", "pair"]


def test_stated_pattern_serves_the_listed_models_of_a_vendor_under_its_names(
    tmp_path: Path,
) -> None:
    more = 'serve: {"openai/*": "openai:*", "claude-*": "anthropic:claude-*"}\n'
    served = names_of(tmp_path, more)
    assert "openai/gpt-4.1" in served
    assert "openai/mine" in served
    assert "claude-opus-4-7" in served
    assert not [name for name in served if name.startswith(("anthropic", "groq"))]
    assert [name for name in served if name.startswith("openai:")] == ["openai:mine"]
    models = Models(Registry.load(tmp_path / "models.yaml"))
    assert models.find("openai/gpt-4.1").model == "gpt-4.1"
    assert models.list_model("openai/gpt-4.1").capabilities.max_context_tokens.value
    for unlisted in ("openai/gpt-unheard-of", "openai:gpt-4.1", "groq:llama-3.3-70b-versatile"):
        with pytest.raises(InvalidModelError):
            models.find(models.resolve(unlisted))


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ('"all": "openai:*"', "so the name needs a *, too"),
        ('"*/*": "openai:*"', "a pattern has one *"),
        ('"a/*": "opnai:*"', "no model is named 'opnai:*'; did you mean openai"),
        ('"a/*": [openai]', "serve.a/*"),
    ],
)
def test_pattern_that_stands_for_no_models_is_refused(
    tmp_path: Path, entry: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        names_of(tmp_path, f"serve: {{{entry}}}\n")


def test_command_serves_the_models_of_a_vendor_under_other_names(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(VENDORS)
    opened, _ = _open_models({"config": str(path), "models": {"o/*": "openai:*"}})
    assert isinstance(opened, Mapping)
    assert opened["o/gpt-4.1"].model == "gpt-4.1"

"""Vendors' SDKs read windows, limits and abilities from the gateway's lists of models."""

from pathlib import Path
from typing import Any

import anthropic
import cohere
import httpx
import openai
import pytest
from google import genai
from google.genai.types import HttpOptions

from dragoman.capabilities import Capabilities
from dragoman.gateway.app import create_app
from dragoman.gateway.models import Models
from dragoman.middleware import Fallback
from dragoman.prices import PriceRow, PriceTable
from dragoman.provider import Provider, connect
from dragoman.registry import Registry

from .serving import serving


def model(name: str, **facts: Any) -> Provider:
    return connect(name, base_url="http://127.0.0.1:1/v1", capabilities=facts)


LARGE: dict[str, Any] = {
    "max_context_tokens": 400_000,
    "max_output_tokens": 64_000,
    "supports_images": True,
}
SMALL: dict[str, Any] = {
    "max_context_tokens": 128_000,
    "max_output_tokens": 90_000,
    "supports_images": False,
}


def served() -> dict[str, Provider]:
    return {
        "large": model("a", **LARGE, supports_documents=True, end_date="2027-03-01"),
        "group": Fallback([model("a", **LARGE), model("b", **SMALL)]),
        "unsure": Fallback([model("a", **LARGE), model("c")]),
        "unknown": model("c"),
    }


EXPECTED: dict[str, tuple[int | None, int | None]] = {
    "large": (400_000, 64_000),
    "group": (128_000, 64_000),
    "unsure": (None, None),
    "unknown": (None, None),
}


@pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")
async def test_sdks_read_window_and_output_limit_of_models_and_groups() -> None:
    async with serving(create_app(served())) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as client:
            plain = {each.id: each.model_dump() for each in (await client.models.list()).data}
            one = await client.models.retrieve("group")
        async with anthropic.AsyncAnthropic(base_url=url, api_key="x") as messages:
            listed = {each.id: each for each in (await messages.models.list()).data}
        google = genai.Client(api_key="x", http_options=HttpOptions(base_url=url))
        pager = await google.aio.models.list()
        found = {str(each.name).removeprefix("models/"): each for each in pager.page}
        await google.aio.aclose()
        async with httpx.AsyncClient() as connections:
            ranker = cohere.AsyncClientV2("x", base_url=url, httpx_client=connections)
            named = (await ranker.models.list()).models
        windows = {each.name: each.context_length for each in named}
    for name, (window, longest) in EXPECTED.items():
        assert listed[name].max_input_tokens == window
        assert listed[name].max_tokens == longest
        assert found[name].input_token_limit == window
        assert found[name].output_token_limit == longest
        assert plain[name].get("context_window") == window
        assert plain[name].get("max_output_tokens") == longest
        assert windows[name] == window
    assert one.model_dump()["context_length"] == 128_000
    assert plain["large"]["input_modalities"] == ["text", "image", "file"]
    assert plain["large"]["shutdown_date"] == "2027-03-01"
    known = listed["large"].capabilities
    assert known is not None
    assert known.image_input.supported
    assert listed["large"].lifecycle == "deprecated"
    assert listed["unknown"].lifecycle == "active"
    assert str(listed["large"].retires_at) == "2027-03-01 00:00:00+00:00"
    assert listed["unknown"].capabilities is None
    # a group has a feature if one of its candidates has it, and does not end with one of them
    group = listed["group"].capabilities
    assert group is not None
    assert group.image_input.supported
    assert listed["group"].retires_at is None


CONFIG = """
adapters:
  here: {type: openai-compatible, base_url: "http://127.0.0.1:1/v1"}
models:
  here:gpt-6-sol:
    adapter: here
    capabilities: {max_context_tokens: 400000, max_output_tokens: 64000}
  here:odd:
    adapter: here
    capabilities: {max_context_tokens: 32000, max_output_tokens: 90000, supports_thinking: false}
    priced_as: free
groups:
  both: {candidates: ["here:gpt-6-sol", "here:odd"]}
  same: {candidates: ["here:gpt-6-sol"]}
  embedded: {candidates: ["here:gpt-6-sol", "local"]}
"""


@pytest.mark.parametrize("is_used", [False, True])
async def test_model_is_listed_alike_before_and_after_its_first_use(
    is_used: bool, tmp_path: Path
) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(CONFIG)
    registry = Registry.load(path)
    models = Models(registry)
    names = ["here:gpt-6-sol", "here:odd", "both", "same"]
    if is_used:
        for name in names:
            models.find(name)
    listed = {name: models.list_model(name) for name in names}
    await models.close()
    await registry.close()
    limits = {name: (each.window, each.longest_reply) for name, each in listed.items()}
    assert limits == {
        "here:gpt-6-sol": (400_000, 64_000),
        "here:odd": (32_000, 90_000),
        "both": (32_000, 64_000),
        "same": (400_000, 64_000),
    }
    efforts = listed["here:gpt-6-sol"].efforts
    assert efforts is not None
    assert {"low", "medium", "high"} <= set(efforts)
    assert listed["same"].efforts == efforts
    assert listed["here:odd"].efforts == ()
    assert listed["both"].efforts == ()
    assert listed["here:odd"].rates["input"] == 0
    assert listed["here:odd"].rates["output"] == 0
    # each call of a group has the price of the candidate that answers
    assert listed["both"].rates == {}
    assert listed["here:gpt-6-sol"].rates == {}


async def test_limits_of_a_group_are_unknown_if_those_of_one_candidate_are(
    tmp_path: Path,
) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(CONFIG)
    async with Registry.load(path) as registry:
        listed = Models(registry).list_model("embedded")
    assert listed.window is None
    assert listed.longest_reply is None
    assert listed.efforts is None


def test_model_of_the_catalogue_is_listed_with_its_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x")
    listed = Models(Registry()).list_model("anthropic:claude-haiku-5-5")
    assert listed.window == 1_000_000
    assert listed.longest_reply == 128_000
    assert listed.is_known_to("images")
    assert listed.efforts
    assert listed.capabilities != Capabilities()
    row = PriceTable.default().find("anthropic:claude-haiku-5-5")
    assert isinstance(row, PriceRow)
    assert listed.rates["input"] == row.input
    assert listed.rates["cache_write"] == row.cache_write
    assert row.input

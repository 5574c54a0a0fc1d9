"""A list of models has the facts that are known, under the names that clients of a wire read."""

from decimal import Decimal
from typing import Any

import pytest

from dragoman.capabilities import Capabilities
from dragoman.provider import connect
from dragoman.wire import SERVER_CODECS
from dragoman.wire.listing import ListedModel, find_efforts
from dragoman.wire.reasoning import NOT_REASONING, ReasoningStyle, join_efforts

KNOWN = ListedModel(
    "m",
    Capabilities.of(
        {
            "max_context_tokens": 200_000,
            "max_output_tokens": 64_000,
            "supports_images": True,
            "supports_documents": False,
            "supports_thinking": True,
            "supports_structured_output": False,
            "end_date": "2027-03-01",
        }
    ),
    ("low", "high"),
    {
        "input": Decimal(3),
        "output": Decimal(15),
        "cache_read": Decimal("0.30"),
        "cache_write": None,
        "reasoning": Decimal(15),
    },
)
EFFORT = {
    "supported": True,
    "low": {"supported": True},
    "medium": {"supported": False},
    "high": {"supported": True},
    "xhigh": {"supported": False},
    "max": {"supported": False},
}
LISTED: dict[str, dict[str, Any]] = {
    "openai": {
        "context_window": 200_000,
        "context_length": 200_000,
        "max_model_len": 200_000,
        "max_input_tokens": 200_000,
        "max_output_tokens": 64_000,
        "max_tokens": 64_000,
        "input_modalities": ["text", "image"],
        "reasoning_efforts": ["low", "high"],
        "shutdown_date": "2027-03-01",
        "pricing": {
            "prompt": "0.000003",
            "completion": "0.000015",
            "input_cache_read": "0.0000003",
        },
    },
    "gemini": {"inputTokenLimit": 200_000, "outputTokenLimit": 64_000, "thinking": True},
    "cohere": {"context_length": 200_000},
    "bedrock": {},
    "ollama": {},
}
LISTED["responses"] = LISTED["openai"]
LISTED["bedrock"] = LISTED["ollama"] = LISTED["openai"]
LISTED["anthropic"] = {
    **LISTED["openai"],
    "lifecycle": "deprecated",
    "retires_at": "2027-03-01T00:00:00Z",
    "capabilities": {
        "image_input": {"supported": True},
        "pdf_input": {"supported": False},
        "structured_outputs": {"supported": False},
        "thinking": {"supported": True},
        "effort": EFFORT,
    },
}


@pytest.mark.parametrize("wire", LISTED)
def test_list_of_models_has_what_is_known_and_leaves_out_the_rest(wire: str) -> None:
    codec = SERVER_CODECS[wire]
    found = codec.show_model(KNOWN)
    unknown = codec.show_model(ListedModel("m"))
    added = {name: value for name, value in found.items() if (name, value) not in unknown.items()}
    assert added == LISTED[wire]
    facts = set(LISTED[wire]) - {"lifecycle"}
    assert not facts & set(unknown), "an unknown value was listed"


def test_every_wire_lists_its_models() -> None:
    assert set(LISTED) == set(SERVER_CODECS)


@pytest.mark.parametrize(
    ("ability", "methods", "endpoints"),
    [
        ("supports_embeddings", ["embedContent", "batchEmbedContents"], ["embed"]),
        ("supports_reranking", ["generateContent", "streamGenerateContent", "countTokens"],
         ["rerank"]),
    ],
)  # fmt: skip
def test_models_for_retrieval_are_listed_with_their_own_calls(
    ability: str, methods: list[str], endpoints: list[str]
) -> None:
    model = ListedModel("m", Capabilities.of({ability: True}))
    assert SERVER_CODECS["gemini"].show_model(model)["supportedGenerationMethods"] == methods
    assert SERVER_CODECS["cohere"].show_model(model)["endpoints"] == endpoints


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"supports_images": False, "supports_documents": False}, ["text"]),
        ({"supports_images": True, "supports_documents": True}, ["text", "image", "file"]),
        ({"supports_images": True}, None),
        ({"supports_documents": True}, None),
    ],
)
def test_modalities_are_listed_if_all_are_known(
    facts: dict[str, bool], expected: list[str] | None
) -> None:
    shown = SERVER_CODECS["openai"].show_model(ListedModel("m", Capabilities.of(facts)))
    assert shown.get("input_modalities") == expected


def test_free_model_has_prices_of_zero() -> None:
    free = {"input": Decimal(0), "output": Decimal("0.00")}
    shown = SERVER_CODECS["openai"].show_model(ListedModel("m", rates=free))
    assert shown["pricing"] == {"prompt": "0", "completion": "0"}


def test_model_without_setting_for_reasoning_has_no_effort() -> None:
    shown = SERVER_CODECS["anthropic"].show_model(ListedModel("m", efforts=()))
    assert shown["reasoning_efforts"] == []
    assert not any(each for each in shown["capabilities"]["effort"].values() if each is True)
    assert shown["capabilities"]["effort"]["supported"] is False


def test_ollama_lists_the_window_of_loaded_models() -> None:
    write = SERVER_CODECS["ollama"].pages["/api/ps"]
    loaded = write([KNOWN, ListedModel("n")], "1")["models"]
    assert [each["context_length"] for each in loaded] == [200_000, 0]


STYLES: list[tuple[ReasoningStyle | None, tuple[str, ...] | None]] = [
    (None, None),
    (NOT_REASONING, ()),
    (ReasoningStyle(effort="effort", efforts=("low", "max")), ("low", "max")),
    (ReasoningStyle(budget="tokens"), None),
    (ReasoningStyle(with_effort={"on": True}, off={"on": False}), ()),
]


@pytest.mark.parametrize(("style", "efforts"), STYLES)
def test_efforts_are_those_that_a_model_accepts_by_name(
    style: ReasoningStyle | None, efforts: tuple[str, ...] | None
) -> None:
    model = connect("m", base_url="http://127.0.0.1:1/v1", quirks={"reasoning": style})
    assert find_efforts(getattr(model, "codec", None)) == efforts


def test_group_has_the_efforts_that_all_of_its_candidates_accept() -> None:
    assert join_efforts([("low", "high", "max"), ("high", "low")]) == ("low", "high")
    assert join_efforts([("low",), None]) is None
    assert join_efforts([]) is None

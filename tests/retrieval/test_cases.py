"""Test that every retrieval wire passes its conformance cases."""

from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.conformance import Violation
from dragoman.conformance.retrieval import RetrievalCase, find_retrieval_cases
from dragoman.retrieval import EMBED_CODECS, RERANK_CODECS

CASES = find_retrieval_cases()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance_case_for_retrieval_passes(case: RetrievalCase) -> None:
    case.run()


def test_every_retrieval_wire_has_conformance_cases() -> None:
    found = {(case.operation, case.wire) for case in CASES}
    assert found == {("embed", wire) for wire in EMBED_CODECS} | {
        ("rerank", wire) for wire in RERANK_CODECS
    }


WRONG: list[dict[str, Any]] = [
    # Conformance cases compare the order of JSON fields too.
    {"body": {"input": ["red", "green"], "model": "m"}},
    {"body": {"model": "m", "input": ["red"]}},
    {"url": "http://host/embeddings"},
    {
        "answer": {
            "vectors": [[0.25, -1.0], [1.0, 0.5]],
            "model": "m-1",
            "usage": {"input_tokens": 2},
        }
    },
    {"answer": {"vectors": [[1.0, 0.5], [0.25, -1.0]], "model": "m-1", "usage": {}}},
    {"warnings": ["input_type_dropped"]},
    {"error": {"class": "RateLimitError"}},
    {"reply": {}},
]


@pytest.mark.parametrize("change", WRONG, ids=lambda change: next(iter(change)))
def test_wrong_expectation_makes_a_conformance_case_fail(change: dict[str, Any]) -> None:
    (case,) = [case for case in CASES if str(case) == "embed/openai/numbers"]
    with pytest.raises(Violation):
        replace(case, data={**case.data, **change}).run()

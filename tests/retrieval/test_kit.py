"""Test the conformance kit for embedders and rerankers: correct models pass, and each broken rule
is detected.
"""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import Embedder, Embeddings, Ranking, RateLimitError, Reranker, Retry, Usage, Vectors
from dragoman.conformance import Violation, retrieval_suite
from dragoman.retrieval import EMBED_CODECS, RERANK_CODECS, EmbedRequest, RerankRequest
from dragoman.sim import ScriptedProvider, SimServer, SimulatedEmbedder, SimulatedReranker

FAILING = {RateLimitError: lambda: SimulatedEmbedder(RateLimitError("slow down"))}
MODELS: dict[str, Callable[[], Any]] = {
    "embedder": SimulatedEmbedder,
    "reranker": SimulatedReranker,
    "layered": lambda: Retry(SimulatedEmbedder()),
}


@pytest.mark.parametrize("kind", MODELS)
async def test_simulated_models_pass_the_retrieval_test_suite(kind: str) -> None:
    for case in retrieval_suite(MODELS[kind], failing=FAILING):
        await case.run()


@pytest.mark.exhaustive
async def test_every_wire_passes_the_retrieval_test_suite() -> None:
    with SimServer(ScriptedProvider("Hi.")) as server:
        for connect, wires in (
            (server.connect_embedder, EMBED_CODECS),
            (server.connect_reranker, RERANK_CODECS),
        ):
            for wire in wires:
                # A TEI server has only one kind of model and reports this kind when it is ready,
                # but the simulator has both kinds.
                skip = ["calls.lifecycle"] if wire == "tei" else []
                for case in retrieval_suite(
                    lambda connect=connect, wire=wire: connect(wire), skip=skip
                ):
                    await case.run()


class Wrong(Embedder):
    """Embed texts, but change the answers so that they break a conformance rule."""

    name = "wrong"
    model = "m"

    def __init__(self, change: Callable[[Embeddings, EmbedRequest], Embeddings]) -> None:
        self._change = change
        self._inner = SimulatedEmbedder()

    async def answer(self, request: EmbedRequest) -> Embeddings:
        return self._change(await self._inner.answer(request), request)


class WrongReranker(Reranker):
    """Rank documents, but change the answers so that they break a conformance rule."""

    name = "wrong"
    model = "m"

    def __init__(self, change: Callable[[Ranking, RerankRequest], Ranking]) -> None:
        self._change = change
        self._inner = SimulatedReranker()

    async def answer(self, request: RerankRequest) -> Ranking:
        return self._change(await self._inner.answer(request), request)


def forget(made: list[int]) -> Callable[[Embeddings, EmbedRequest], Embeddings]:
    def change(answer: Embeddings, request: EmbedRequest) -> Embeddings:
        made.append(1)
        return replace(
            answer,
            vectors=Vectors.of([[len(made), -(len(made) ** 2), 1.0] for _ in request.texts]),
        )

    return change


def keep_all(answer: Ranking, request: RerankRequest) -> Ranking:
    return replace(answer, results=answer.results * (1 if request.top_k is None else 2))


class ManyAnswers(Wrong):
    """Send calls of any size in one request, ignoring ``batch_size``."""

    async def _answer_parts(self, request: EmbedRequest) -> Embeddings:
        return await self.answer(request)


WRONG: dict[str, tuple[str, Callable[[], Any]]] = {
    "a vector is missing": ("answer.complete",
                            lambda: Wrong(lambda a, r: replace(a, vectors=a.vectors[1:]))),
    "a number is not finite": (
        "answer.complete", lambda: Wrong(lambda a,
                                         r: replace(a,
                                                    vectors=Vectors.of([[float("nan")]] * len(r.texts)))),
    ),
    "no model": ("answer.complete", lambda: Wrong(lambda a, r: replace(a, model=""))),
    "a negative count": ("answer.complete", lambda: Wrong(lambda a,
                                                          r: replace(a,
                                                                     usage=Usage(input_tokens=-1)))),
    "lists, not vectors": ("answer.complete",
                           lambda: Wrong(lambda a, r: replace(a, vectors=a.vectors.tolist()))),
    "another answer each time": ("answer.stateless", lambda: Wrong(forget([]))),
    "the order is lost": ("answer.order", lambda: Wrong(lambda a,
                                                        r: replace(a, vectors=a.vectors[::-1]))),
    "calls are not split": ("calls.split", lambda: ManyAnswers(lambda a, r: a)),
    "dimensions are ignored": (
        "calls.settings", lambda: Wrong(lambda a,
                                        r: replace(a,
                                                   vectors=Vectors.of([[1.0] * 64] * len(r.texts)))),
    ),
    "the worst is first": ("answer.complete",
                           lambda: WrongReranker(lambda a,
                                                 r: replace(a, results=a.results[::-1]))),
    "an index occurs twice": (
        "answer.complete", lambda: WrongReranker(lambda a,
                                                 r: replace(a, results=a.results[:1] * 2)),
    ),
    "top_k is ignored": ("calls.settings", lambda: WrongReranker(keep_all)),
    "documents are mixed up": (
        "calls.settings",
        lambda: WrongReranker(lambda a, r: replace(a,
                                                   results=tuple([replace(e,
                                                                          document="x") for e in a.results]))),
    ),
    "neither": ("answer.complete", lambda: ScriptedProvider("Hi.")),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
async def test_the_retrieval_test_suite_detects_each_broken_rule(mistake: str) -> None:
    name, factory = WRONG[mistake]
    (case,) = [case for case in retrieval_suite(factory) if str(case) == name]
    with pytest.raises(Violation, match=name):
        await case.run()


async def test_the_retrieval_test_suite_compares_errors_by_class() -> None:
    (case,) = [case for case in retrieval_suite(SimulatedEmbedder,
                                                failing={RateLimitError: SimulatedEmbedder})
        if str(case) == "calls.errors"]  # fmt: skip
    with pytest.raises(Violation, match="the call succeeded, RateLimitError was expected"):
        await case.run()


def test_retrieval_suite_cases_can_be_skipped_and_run_without_an_event_loop() -> None:
    cases = retrieval_suite(SimulatedEmbedder, skip=["calls.*"], seconds=30.0)
    assert {str(case).partition(".")[0] for case in cases} == {"answer"}
    cases[0].run_sync()
    with pytest.raises(ValueError, match=r"skip has 'answers\.\*', but no case has that name"):
        retrieval_suite(SimulatedEmbedder, skip=["answers.*"])
    with pytest.raises(ValueError, match="unknown setting 'prompt'"):
        retrieval_suite(SimulatedEmbedder, prompt="x")

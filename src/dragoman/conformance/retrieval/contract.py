"""Conformance cases for all embedders and rerankers, whatever their implementation."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import InvalidRequestError, ProviderError, UnsupportedFeatureError
from ...retrieval import Embedder, Embeddings, Ranking, Reranker, RetrievalModel, Vectors
from ..provider import ProviderCase, check_settings, leave_out, open_made
from ..violation import Violation, demand, demand_same

Factory = Callable[[], RetrievalModel | Awaitable[RetrievalModel]]
"""A function that returns a new embedder or reranker for each case."""

TEXTS = (
    "The Rhine rises in the Alps.",
    "Bread is made of flour.",
    "A prime has two divisors.",
    "The Danube flows into the Black Sea.",
    "Iron rusts in water.",
)
# Minimum cosine of two vectors of the same text; they differ because computation in batches rounds
# differently.
NEAR = 0.999


@dataclass(frozen=True)
class RetrievalKit:
    """The arguments of ``retrieval_suite`` that its cases use."""

    factory: Factory
    failing: Mapping[type[ProviderError], Factory] = field(default_factory=dict)
    texts: Sequence[str] = TEXTS
    query: str = "Where does the Rhine rise?"
    at_once: int = 4
    seconds: float = 60.0

    def open(self, factory: Factory | None = None) -> contextlib.AbstractAsyncContextManager[Any]:
        """Return a context manager that opens a new model and closes it at the end."""
        kinds = Embedder | Reranker
        return open_made(factory or self.factory, kinds, "an Embedder or a Reranker")


class RetrievalModelCase(ProviderCase):
    """One case for the model under test. Run ``await case.run()`` or ``case.run_sync()``."""


def retrieval_suite(
    factory: Factory,
    *,
    failing: Mapping[type[ProviderError], Factory] | None = None,
    skip: Iterable[str] = (),
    **settings: Any,
) -> list[RetrievalModelCase]:
    """Return the cases of an embedder or a reranker; run each with ``case.run()``.

    ``factory()`` returns a new model for each case, or an awaitable that returns one. ``failing``
    maps an error class to a factory whose calls must raise it. ``settings`` are fields of
    ``RetrievalKit``: ``texts`` (at least five), ``query``, ``at_once``, ``seconds``. ``skip``
    omits cases by name, with ``*`` as a wildcard.
    """
    check_settings("retrieval_suite", RetrievalKit, settings)
    kit = RetrievalKit(factory, failing or {}, **settings)
    return leave_out([RetrievalModelCase(name, check, kit) for name, check in CASES.items()], skip)


# --- calling a model and comparing answers -----------------------------------------------------


async def _ask(
    model: Any, kit: RetrievalKit, texts: Sequence[str] | None = None, **settings: Any
) -> Any:
    """Call ``embed`` of an embedder or ``rerank`` of a reranker, and return the answer."""
    given = list(kit.texts if texts is None else texts)
    if model.operation == "embed":
        return await model.embed(given, **settings)
    return await model.rerank(kit.query, given, **settings)


def _demand_answer(answer: Any, count: int) -> None:
    if isinstance(answer, Embeddings):
        demand(
            isinstance(answer.vectors, Vectors),
            f"vectors are {type(answer.vectors).__name__}, not Vectors",
        )
        demand(len(answer.vectors) == count, f"{len(answer.vectors)} vectors for {count} texts")
        demand(answer.dimensions > 0, "the vectors have no numbers")
        demand(
            all(map(math.isfinite, answer.vectors.data)),
            "a vector has a number that is not finite",
        )
    else:
        _demand_ranking(answer, count)
    named = answer.model is None or (isinstance(answer.model, str) and answer.model != "")
    demand(named, f"the model of the answer is {answer.model!r}")
    for name in ("input_tokens", "search_units"):
        units = getattr(answer.usage, name)
        demand(units is None or (type(units) is int and units >= 0), f"usage.{name} is {units!r}")


def _demand_ranking(answer: Any, count: int) -> None:
    demand(isinstance(answer, Ranking), f"the answer is {type(answer).__name__}, not Ranking")
    places = [each.index for each in answer.results]
    demand(
        all(type(at) is int and 0 <= at < count for at in places),
        f"an index is out of range: {places}",
    )
    demand(len(set(places)) == len(places), f"an index occurs twice: {places}")
    scores = [each.relevance_score for each in answer.results]
    demand(
        all(isinstance(score, float) and math.isfinite(score) for score in scores),
        f"not all are scores: {scores}",
    )
    demand(scores == sorted(scores, reverse=True), f"the best is not first: {scores}")


def _demand_near(found: Any, wanted: Any, what: str) -> None:
    """Check that two answers are nearly equal: vectors by their angle, rankings by their order."""
    if isinstance(wanted, Embeddings):
        for at, (one, other) in enumerate(zip(found.vectors, wanted.vectors, strict=True)):
            demand(find_cosine(one, other) >= NEAR, f"{what}: the vector of text {at} differs")
        return
    scores = [
        {each.index: round(each.relevance_score, 3) for each in answer.results}
        for answer in (found, wanted)
    ]
    demand_same(scores[0], scores[1], f"{what}: the scores differ")


def find_cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the cosine of the angle between two vectors; 0 if one of them is zero."""
    product = math.fsum([a * b for a, b in zip(one, other, strict=True)])
    lengths = math.sqrt(math.fsum([a * a for a in one]) * math.fsum([b * b for b in other]))
    return product / lengths if lengths else 0.0


# --- the cases ---------------------------------------------------------------------------------


async def _check_answer(kit: RetrievalKit, model: Any) -> None:
    demand(bool(model.name) and bool(model.model), "name and model are not set")
    answer = await _ask(model, kit)
    _demand_answer(answer, len(kit.texts))
    one = await _ask(model, kit, kit.texts[:1])
    _demand_answer(one, 1)


async def _check_stateless(kit: RetrievalKit, model: Any) -> None:
    first = await _ask(model, kit)
    await _ask(model, kit, kit.texts[2:])
    _demand_near(await _ask(model, kit), first, "the same call again")


async def _check_order(kit: RetrievalKit, model: Any) -> None:
    together = await _ask(model, kit)
    if isinstance(together, Embeddings):
        for row, text in zip(together.vectors, kit.texts, strict=True):
            alone = (await _ask(model, kit, [text])).vectors[0]
            demand(
                find_cosine(row, alone) >= NEAR,
                f"the vector of {text!r} is another if it is sent alone",
            )
        return
    backwards = await _ask(model, kit, kit.texts[::-1])
    scores = [
        {texts[each.index]: round(each.relevance_score, 3) for each in answer.results}
        for texts, answer in ((kit.texts, together), (kit.texts[::-1], backwards))
    ]
    demand_same(scores[1], scores[0], "documents in another order have other scores")


async def _check_splitting(kit: RetrievalKit, model: Any) -> None:
    unsplit = await _ask(model, kit)
    sizes: list[int] = []
    inner = model.answer

    async def count(request: Any) -> Any:
        sizes.append(len(request.inputs))
        return await inner(request)

    model.answer = count
    model.batch_size = 2
    split = await _ask(model, kit)
    _demand_answer(split, len(kit.texts))
    demand(
        max(sizes) <= 2,
        f"a request has {max(sizes)} texts, batch_size is 2: send() must split",
    )
    # skip rerankers, whose scores may depend on the other documents of a request
    if isinstance(split, Embeddings):
        _demand_near(split, unsplit, "split into requests of two texts")


async def _check_validation(kit: RetrievalKit, model: Any) -> None:
    calls: list[Any] = []

    async def count(request: Any) -> Any:
        calls.append(request)
        raise Violation("an invalid call reached answer()")

    model.answer = count
    bad: list[tuple[list[Any], dict[str, Any]]] = [([], {}), ([1], {})]
    bad.append(
        (list(kit.texts), {"dimensions": 0} if model.operation == "embed" else {"top_k": 0})
    )
    for texts, settings in bad:
        try:
            await _ask(model, kit, texts, **settings)
        except InvalidRequestError:
            continue
        raise Violation(f"{texts[:1]!r} with {settings} was accepted")


async def _check_settings(kit: RetrievalKit, model: Any) -> None:
    """Check that a setting is obeyed, rejected, or reported in ``warnings``, but never ignored."""
    plain = await _ask(model, kit)
    wanted = plain.dimensions // 2 or 1 if isinstance(plain, Embeddings) else 2
    setting: dict[str, Any] = {"dimensions" if isinstance(plain, Embeddings) else "top_k": wanted}
    with contextlib.suppress(InvalidRequestError, UnsupportedFeatureError):
        answer = await _ask(model, kit, **setting)
        if isinstance(answer, Ranking):
            demand(
                len(answer.results) <= wanted,
                f"{len(answer.results)} results for top_k={wanted}",
            )
        else:
            is_warned = any(warning.path == "dimensions" for warning in answer.warnings)
            demand(
                answer.dimensions == wanted or is_warned,
                f"dimensions={wanted} was ignored without a warning",
            )
    if isinstance(plain, Ranking):
        await _check_documents(model, kit)


async def _check_documents(model: Any, kit: RetrievalKit) -> None:
    with contextlib.suppress(InvalidRequestError, UnsupportedFeatureError):
        answer = await _ask(model, kit, return_documents=True)
        is_warned = any(warning.path == "return_documents" for warning in answer.warnings)
        for each in answer.results:
            demand(
                each.document is not None or is_warned,
                "return_documents was ignored without a warning",
            )
            demand(
                each.document in (None, kit.texts[each.index]),
                "a document has the index of another",
            )


async def _check_concurrency(kit: RetrievalKit, model: Any) -> None:
    alone = [await _ask(model, kit, [text]) for text in kit.texts]
    asked = list(kit.texts) * kit.at_once
    found = await asyncio.gather(*[_ask(model, kit, [text]) for text in asked])
    for at, answer in enumerate(found):
        _demand_near(answer, alone[at % len(alone)], "calls at the same time")


async def _check_lifecycle(kit: RetrievalKit, model: Any) -> None:
    await model.ready()
    demand(
        await model.cancel("no-such-request") is False,
        "cancel() of an unknown id must return False",
    )
    await model.close()
    await model.close()


async def _check_errors(kit: RetrievalKit, model: Any) -> None:
    for kind, factory in kit.failing.items():
        async with kit.open(factory) as failing:
            try:
                await _ask(failing, kit)
            except ProviderError as error:
                demand(
                    type(error) is kind, f"{type(error).__name__} was raised, not {kind.__name__}"
                )
                continue
            raise Violation(f"the call succeeded, {kind.__name__} was expected")


CASES: dict[str, Callable[[RetrievalKit, Any], Awaitable[None]]] = {
    "answer.complete": _check_answer,
    "answer.stateless": _check_stateless,
    "answer.order": _check_order,
    "calls.split": _check_splitting,
    "calls.validated": _check_validation,
    "calls.settings": _check_settings,
    "calls.concurrent": _check_concurrency,
    "calls.lifecycle": _check_lifecycle,
    "calls.errors": _check_errors,
}

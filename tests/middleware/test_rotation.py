"""Test key rotation: a rejected or exhausted key is replaced by the next one before the first
event.
"""

import logging

import pytest

import dragoman as d
from dragoman.middleware import KeyRotation
from dragoman.validate import build_request
from tests.listed import Clock, Listed, broken, collect


def keys(*answers: object) -> tuple[list[Listed], KeyRotation, Clock]:
    clock = Clock()
    providers = [Listed(answer, repeat=True) for answer in answers]
    return providers, KeyRotation(providers, clock=clock), clock


@pytest.mark.parametrize("kind", [d.AuthenticationError, d.RateLimitError, d.QuotaExceededError])
async def test_next_api_key_is_used_after_a_failure_and_kept(kind: type[d.ProviderError]) -> None:
    (a, b), model, clock = keys(kind("no"), "from b")
    for _ in range(3):
        assert (await model.complete("hi")).text == "from b"
    assert len(a.requests) == 1
    assert len(b.requests) == 3
    b.answers = [kind("no")]
    clock.now += 1000
    a.answers = ["from a"]
    assert (await model.complete("hi")).text == "from a"


async def test_attempt_with_a_failed_api_key_is_recorded() -> None:
    _, model, _ = keys(d.RateLimitError("slow down", status=429), "from b")
    reply = model.open(build_request("hi", model="m"))
    while await reply.next():
        pass
    assert [record.type for record in reply.history] == ["llm.call_failed", "llm.call_started"]


async def test_api_key_is_not_used_until_its_retry_after_has_passed() -> None:
    (a, b), model, clock = keys(d.RateLimitError("slow", retry_after=20), "from b")
    await model.complete("hi")
    b.answers = [d.UnavailableError("down")]
    with pytest.raises(d.UnavailableError):
        await model.complete("hi")
    b.answers = [d.RateLimitError("slow", retry_after=100)]
    with pytest.raises(d.RateLimitError):
        await model.complete("hi")
    assert len(a.requests) == 1
    clock.now += 20
    a.answers = ["from a"]
    assert (await model.complete("hi")).text == "from a"


async def test_last_error_is_raised_if_all_api_keys_fail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        (a, b), model, _ = keys(d.AuthenticationError("one"), d.AuthenticationError("two"))
        with pytest.raises(d.AuthenticationError, match="two"):
            await model.complete("hi")
        # Every key must wait after a failure, so the key with the shortest remaining wait is used.
        with pytest.raises(d.AuthenticationError, match="one"):
            await model.complete("hi")
    assert len(a.requests) == 2
    assert len(b.requests) == 1
    assert "key 1 of 2 is not used for 300 s (auth)" in caplog.text


@pytest.mark.parametrize("answer", [d.InvalidRequestError("bad"), d.UnavailableError("down")])
async def test_errors_unrelated_to_the_api_key_do_not_switch_it(answer: d.ProviderError) -> None:
    (_, b), model, _ = keys(answer, "from b")
    with pytest.raises(type(answer)):
        await model.complete("hi")
    assert not b.requests


async def test_api_key_is_not_switched_after_the_first_event() -> None:
    (_, b), model, _ = keys(broken("half", d.RateLimitError("slow")), "from b")
    _, error = await collect(model.events(build_request("hi")))
    assert isinstance(error, d.RateLimitError)
    assert not b.requests


def test_key_rotation_rejects_invalid_providers() -> None:
    _, model, _ = keys("a", "b")
    assert model.name == "listed"
    assert model.model == "m"
    assert d.describe(model).splitlines()[0] == "KeyRotation(keys=2)"
    with pytest.raises(ValueError, match="of one name and model"):
        KeyRotation([Listed("a"), Listed("b", name="other")])
    with pytest.raises(ValueError, match="is empty"):
        KeyRotation([])

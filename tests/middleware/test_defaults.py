"""Test Defaults: the settings of a connection apply to the calls that do not have their own."""

from typing import Any

import pytest

import dragoman
from dragoman import Fallback, Observe, Retry, RuntimeConfig, System, User
from dragoman.middleware import CallStarted, Defaults, describe
from dragoman.sim import ScriptedProvider
from tests.server import Connection, serve


class Recorder(ScriptedProvider):
    """A scripted provider that keeps the requests it receives."""

    def __init__(self, *script: Any) -> None:
        super().__init__(*script)
        self.sent: list[dragoman.Request] = []

    def open(self, request: dragoman.Request) -> Any:
        self.sent.append(request)
        return super().open(request)


async def test_a_call_has_the_defaults_where_it_has_no_settings() -> None:
    inner = Recorder("One.", "Two.")
    model = Defaults(inner, temperature=0, system="Be brief.", max_tokens=50)
    await model.complete("Hi")
    async with model.stream("Hi") as stream:
        assert [event async for event in stream]
    for request in inner.sent:
        assert request.messages == (System("Be brief."), User("Hi"))
        assert request.config == RuntimeConfig(temperature=0, max_tokens=50)


async def test_a_call_overrides_the_defaults() -> None:
    inner = Recorder("One.", "Two.")
    model = Defaults(inner, temperature=0, system="Be brief.", extras={"top_k": 3, "min_p": 0.1})
    await model.complete("Hi", system="Be long.", temperature=1, seed=7, extras={"top_k": 9})
    await model.complete([System("Sing."), User("Hi")])
    first, second = inner.sent
    assert first.messages == (System("Be long."), User("Hi"))
    assert first.config == RuntimeConfig(temperature=1, seed=7, extras={"top_k": 9, "min_p": 0.1})
    assert second.messages == (System("Sing."), User("Hi"))


async def test_each_candidate_of_a_group_has_its_own_defaults() -> None:
    first = Recorder(dragoman.errors.OverloadedError("busy"))
    second = Recorder("Hello.")
    second.name = "other"
    group = Fallback([Defaults(first, temperature=0), Defaults(second, temperature=1)])
    await Retry(group).complete("Hi")
    assert [each.sent[0].config.temperature for each in (first, second)] == [0, 1]


async def test_layers_outside_see_the_defaults() -> None:
    seen: list[Any] = []
    model = Observe(Defaults(Recorder("Hello."), temperature=0), seen.append)
    await model.complete("Hi")
    (started,) = [each for each in seen if isinstance(each, CallStarted)]
    assert started.config.temperature == 0


def test_the_system_prompt_is_counted_once() -> None:
    plain = ScriptedProvider()
    model = Defaults(plain, system="Be as brief as you can be.")
    expected = plain.estimate_input_tokens([System("Be as brief as you can be."), User("Hi")])
    assert model.estimate_input_tokens("Hi") == expected
    with_own = [System("Sing."), User("Hi")]
    assert model.estimate_input_tokens(with_own) == plain.estimate_input_tokens(with_own)


def test_the_defaults_are_described() -> None:
    model = Defaults(ScriptedProvider(), temperature=0, system="Be brief. " * 20)
    assert describe(model).startswith("Defaults(system='Be brief. Be brief. ")
    assert "temperature=0" in describe(model)
    assert len(describe(model).splitlines()[0]) < 100


async def test_connect_takes_settings_as_defaults() -> None:
    async def answer(connection: Connection) -> None:
        connection.reply(200, b'{"choices": [{"message": {"content": "Hello."}}]}')

    async with serve(answer) as server:
        url = server.url
        async with dragoman.connect("m", base_url=url, temperature=0, system="Brief.") as model:
            await model.complete("Hi")
            await model.complete("Hi", temperature=1)
    bodies = [request.json for request in server.requests]
    assert [body["temperature"] for body in bodies] == [0, 1]
    assert bodies[0]["messages"][0] == {"role": "system", "content": "Brief."}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"temprature": 0}, "connect() has no setting 'temprature'; did you mean temperature?"),
        ({"temperature": "hot"}, "temperature"),
        ({"system": 5}, "system must be a string, not int"),
    ],
)
def test_wrong_defaults_are_refused_at_once(settings: Any, problem: str) -> None:
    with pytest.raises((TypeError, dragoman.InvalidRequestError)) as raised:
        dragoman.connect("m", base_url="http://127.0.0.1:9", **settings)
    assert problem in str(raised.value)

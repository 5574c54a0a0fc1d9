"""Test that a session uses the default settings of its provider, and records them."""

from dragoman import Session, System, User
from dragoman.calls import CallStarted
from dragoman.middleware import Defaults
from dragoman.sim import ScriptedProvider


async def test_a_session_uses_the_defaults_and_records_them() -> None:
    inner = ScriptedProvider("Done.")
    session = Session(Defaults(inner, temperature=0, system="Be brief."))
    await session.run("Hi")
    assert inner.requests[0].messages == (System("Be brief."), User("Hi"))
    records = [each.payload for each in session.log.read(session.id)]
    (started,) = [each for each in records if isinstance(each, CallStarted)]
    assert started.config.temperature == 0

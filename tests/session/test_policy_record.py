"""Test that the log has the permission rules that decided, and those that replaced them."""

import hashlib

import msgspec

from dragoman.log import MemoryLog
from dragoman.permission import Policy, Rule
from dragoman.session import Session

from ..listed import Listed
from .playing import of

RULES = [Rule("allow", side_effect="read"), Rule("deny", path="secrets/**", reason="private")]


async def test_log_has_the_rules_and_their_hash() -> None:
    log = MemoryLog()
    await Session(Listed("Hi."), [], Policy(RULES, "deny"), log, session_id="s1").run("Go.")
    [started] = of(list(log.read("s1")), "session.started")
    assert started.policy.rules == {
        "default": "deny",
        "rules": [
            {"action": "allow", "side_effect": ["read"]},
            {"action": "deny", "path": "secrets/**", "reason": "private"},
        ],
    }
    canonical = msgspec.json.encode(started.policy.rules, order="sorted")
    assert started.policy.sha256 == hashlib.sha256(canonical).hexdigest()


async def test_resumed_session_records_rules_only_if_they_changed() -> None:
    log = MemoryLog()
    await Session(Listed("Hi."), [], Policy(RULES), log, session_id="s1").run("Go.")
    for rules in (RULES, RULES[:1], RULES[:1], RULES):
        session = await Session.resume(Listed("Hi."), [], Policy(rules), log, "s1")
        await session.run("More.")
    recorded = [
        it.policy and len(it.policy.rules["rules"])
        for it in of(list(log.read("s1")), "session.resumed")
    ]
    assert recorded == [None, 1, None, 2]

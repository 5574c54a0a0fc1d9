"""The trace viewer as people see it, in a real browser."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from dragoman.events import AssembledFrom, IntentSource, ToolIntent
from dragoman.log import (
    MessageRecorded,
    PermissionGranted,
    SessionFinished,
    SessionStarted,
    SqliteLog,
    ToolObserved,
    TurnStarted,
)
from dragoman.messages import Assistant, Text, Thinking, User

from ..story import GOAL, LEFT_OPEN, STORY, tell
from .conftest import Served, Watched


def open_page(watched: Watched, url: str, session: str = "") -> Page:
    watched.page.goto(url + (f"#{session}" if session else ""))
    expect(watched.page.locator("#chain")).to_contain_text("chain")
    expect(watched.page.locator("#totals dt")).to_have_count(6)
    return watched.page


def test_a_session_from_proposal_to_observation(watched: Watched, log: SqliteLog, url: str) -> None:
    tell(log, "look", LEFT_OPEN)
    tell(log, "fix")
    page = open_page(watched, url)  # the newest is opened
    expect(page.locator("h1")).to_have_text(GOAL)
    expect(page.locator("#sessions a")).to_have_count(2)
    expect(page.locator("#outcome")).to_have_text("completed")
    expect(page.locator("#chain")).to_have_text(f"chain whole, {len(STORY)} records")
    assert page.locator("#totals").inner_text().split("\n") == [
        "Turns", "4", "Model calls", "4", "1 failed", "Tokens in", "5,600", "3,900 cached", "Tokens out", "205",
        "Cost", "$0.0083", "+ 1 unknown", "Tools", "3", "2 allowed, 1 denied, 2 ran",
    ]  # fmt: skip
    cards = page.locator(".proposal")
    assert [card.locator("strong").inner_text() for card in cards.all()] == ["bash", "bash", "edit_file"]
    assert [card.locator("header .chip").inner_text() for card in cards.all()] == [
        "observed an error", "denied", "observed",
    ]  # fmt: skip
    stages = [[stage.get_attribute("class") for stage in card.locator(".stages li").all()] for card in cards.all()]
    assert stages == [["done"] * 4, ["done", "stopped", None, None], ["done"] * 4]
    words = [card.locator(".what").all_inner_texts() for card in cards.all()]
    assert words[2] == ["Proposed", "Asked", "Allowed", "Ran", "Observed"]
    assert "by user" in cards.nth(2).inner_text()
    assert "looks right" in cards.nth(2).inner_text()
    assert "rm -rf /" in cards.nth(1).inner_text()
    calls = page.locator("li.call")
    expect(calls).to_have_count(5)
    expect(calls.nth(1)).to_contain_text("1,300 in (1,100 cached)")
    expect(calls.nth(4)).to_contain_text("price unknown")
    assert watched.complaints == []
    assert all(asked.startswith((url, "data:")) for asked in watched.asked)


def test_what_was_said_is_read_before_what_was_proposed(watched: Watched, log: SqliteLog, url: str) -> None:
    # A session records intents as they come, then the message, then the end of the call.
    tell(log, "heard", [STORY[0], STORY[1], STORY[2], STORY[3], STORY[6], STORY[5], STORY[4], STORY[7]])
    page = open_page(watched, url, "heard")
    expect(page.locator(".proposal")).to_have_count(1)
    seqs = [item.get_attribute("data-seq") for item in page.locator("#timeline > li").all()]
    assert seqs == ["1", "2", "3", "7", "6", "5"]  # the call, what was said, what was proposed and allowed
    assert watched.complaints == []


def test_the_raw_record_and_the_exchange_on_demand(watched: Watched, log: SqliteLog, url: str) -> None:
    tell(log, "fix")
    page = open_page(watched, url, "fix")
    page.get_by_label("Record 8 as stored").click()
    window = page.locator("#window")
    expect(window).to_contain_text('"type": "permission.granted"')
    record = next(record for record in log.read("fix") if record.seq == 8)
    expect(window).to_contain_text(record.hash)
    with page.expect_download() as download:
        window.get_by_text("Save the whole record").click()
    assert Path(download.value.path()).read_bytes() == record.line + b"\n"
    page.keyboard.press("Escape")
    expect(window).to_be_hidden()
    page.locator("li.call").nth(1).get_by_text("exchange").click()
    expect(window).to_contain_text('"estimated_input_tokens": 1300')
    expect(window).to_contain_text("expected 4, received 5")
    expect(window).to_contain_text("I will clear the disk.")
    expect(window).not_to_contain_text("The sign is wrong.")  # that came later
    assert watched.complaints == []


def test_it_can_be_used_with_keys_alone(watched: Watched, log: SqliteLog, url: str) -> None:
    tell(log, "look", LEFT_OPEN)
    tell(log, "fix")
    page = open_page(watched, url, "fix")
    focused = "document.activeElement.closest('#timeline > li')?.dataset.seq"
    for key, seq in (("j", "1"), ("j", "2"), ("j", "5"), ("k", "2")):
        page.keyboard.press(key)
        assert page.evaluate(focused) == seq
    page.keyboard.press("r")
    expect(page.locator("#window-title")).to_have_text("Record 2: message.recorded")
    page.keyboard.press("j")  # means nothing while the window is open
    page.keyboard.press("Escape")
    assert page.evaluate(focused) == "2"
    page.keyboard.press("j")
    page.keyboard.press("e")
    expect(page.locator("#window-title")).to_have_text("Exchange r1")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.locator("#window-title")).to_have_text("Keys")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("only look")
    expect(page.locator("#sessions a")).to_have_count(1)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#name")).to_have_text("look")
    assert watched.complaints == []


def test_light_and_dark(watched: Watched, log: SqliteLog, url: str) -> None:
    tell(log)
    background = "getComputedStyle(document.body).backgroundColor"
    watched.page.emulate_media(color_scheme="dark")
    page = open_page(watched, url)
    dark = page.evaluate(background)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(background)
    assert light != dark
    page.keyboard.press("t")
    assert page.evaluate(background) == dark
    page.reload()
    assert page.evaluate(background) == dark, "the choice is kept"
    page.get_by_label("Light or dark").click()
    assert page.evaluate(background) == light


def test_filters_and_what_does_not_follow(watched: Watched, log: SqliteLog, url: str) -> None:
    tell(log, "odd", [payload for payload in STORY if not isinstance(payload, PermissionGranted)])
    page = open_page(watched, url, "odd")
    shown = page.locator("#timeline > li:visible:not(.turn)")
    page.get_by_role("button", name="Tools").click()
    expect(shown).to_have_count(3)
    page.get_by_role("button", name="What does not follow").click()
    expect(shown).to_have_count(2)
    expect(shown.nth(0)).to_contain_text("it ran without a decision")
    page.get_by_role("button", name="Everything").click()
    assert shown.count() > 10


def test_a_broken_chain_says_where(watched: Watched, log: SqliteLog, url: str) -> None:
    tell(log, "fix")
    log.close()
    connection = sqlite3.connect(log.path)
    connection.execute("UPDATE records SET actor = 'user' WHERE seq = 17")
    connection.commit()
    connection.close()
    with SqliteLog(log.path, readonly=True) as again, Served(again) as other:
        page = open_page(watched, other, "fix")
        expect(page.locator("#chain")).to_have_text(
            "chain broken at record 17: hash mismatch: its content is not what was written"
        )
        expect(page.locator("#chain")).to_have_class("chip bad")


def test_a_session_under_way_is_followed(watched: Watched, log: SqliteLog, url: str) -> None:
    tell(log, "live", STORY[:8])
    watched.page.clock.install()
    page = open_page(watched, url, "live")
    expect(page.locator("#outcome")).to_have_text("not finished")
    expect(page.locator(".proposal .chip")).to_have_text("allowed")
    for payload in STORY[8:11]:
        log.append_sync("live", payload)
    page.clock.run_for(2500)
    expect(page.locator(".proposal .chip")).to_have_text("observed an error")
    log.append_sync("live", SessionFinished("cancelled"))
    page.clock.run_for(2500)
    expect(page.locator("#outcome")).to_have_text("cancelled")


def test_a_long_session_comes_in_pages(watched: Watched, log: SqliteLog, url: str) -> None:
    for _ in range(2):
        tell(log, "long", [MessageRecorded(User(f"line {number}")) for number in range(200)])
    page = open_page(watched, url, "long")
    expect(page.locator("#timeline > li")).to_have_count(300)
    page.get_by_role("button", name="Show more").click()
    expect(page.locator("#timeline > li")).to_have_count(400)
    expect(page.get_by_role("button", name="Show more")).to_be_hidden()


EVIL = (
    "<script>window.ran = 1; alert(1)</script><img src=x onerror='window.ran = 1'>"
    "</pre></textarea><svg onload=alert(1)>{{7*7}} javascript:alert(1) \u2028 \u202egnp.exe \x1b[31m \x00 \ud7ff"
)


def poison() -> list[Any]:
    """A run in which every text there is was written by somebody who means harm."""
    source = IntentSource(EVIL, EVIL, "r", 0)
    return [
        SessionStarted(EVIL, EVIL, EVIL, (EVIL,), {EVIL: EVIL}),
        TurnStarted(1, EVIL, EVIL),
        MessageRecorded(Assistant([Thinking(EVIL), Text(EVIL)]), EVIL, EVIL, EVIL),
        ToolIntent("tu_1", EVIL, EVIL, {EVIL: EVIL, "__proto__": {"x": EVIL}}, EVIL, source, AssembledFrom(1, 0, 0)),
        PermissionGranted("tu_1", EVIL, EVIL, EVIL, EVIL),
        ToolObserved("tu_1", EVIL, EVIL * 2000, details={EVIL: EVIL}),
        ToolObserved("tu_1", "bash", "x" * 1_000_000),
        SessionFinished("failed", EVIL),
    ]


def test_what_a_log_holds_is_shown_and_never_run(watched: Watched, log: SqliteLog, url: str) -> None:
    session = "<img src=x onerror=alert(1)>/b?c#d&e=%41"
    tell(log, session, poison())
    page = watched.page
    page.goto(url)
    expect(page.locator("#chain")).to_have_text("chain whole, 8 records")
    expect(page.locator("#totals dt")).to_have_count(6)
    expect(page.locator("#name")).to_have_text(session)
    assert "<script>window.ran = 1" in page.locator("h1").inner_text()
    text = page.locator("#timeline").inner_text()
    assert "<img src=x onerror=" in text
    assert "\\u202e" in text, "what turns the direction of writing is shown as what it is"
    assert "\u202e" not in text
    assert "characters more" in text
    assert len(text) < 60_000
    for seq in (4, 6, 7):
        page.get_by_label(f"Record {seq} as stored").click()
        expect(page.locator("#window")).to_be_visible()
        page.keyboard.press("Escape")
    assert page.evaluate("window.ran") is None
    assert page.locator("script").count() == 1
    assert page.locator("#main img, #main svg, #main script, #sessions img").count() == 0
    assert page.evaluate("({}).x") is None
    assert watched.complaints == []
    assert all(asked.startswith((url, "data:")) for asked in watched.asked)


def test_markup_would_be_refused_by_the_page_s_own_policy(watched: Watched, log: SqliteLog, url: str) -> None:
    tell(log)
    page = open_page(watched, url)
    assert page.evaluate("try { document.body.innerHTML = '<b>'; 'done' } catch (error) { error.name }") == "TypeError"
    page.evaluate("document.body.append(Object.assign(document.createElement('img'), { src: 'http://127.0.0.1:9/x' }))")
    page.wait_for_function("true")
    assert any("Content Security Policy" in complaint for complaint in watched.complaints)


def test_a_narrow_screen(watched: Watched, log: SqliteLog, url: str) -> None:
    tell(log)
    watched.page.set_viewport_size({"width": 380, "height": 800})
    page = open_page(watched, url)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380


def test_a_session_that_is_not_there(watched: Watched, log: SqliteLog, url: str) -> None:
    tell(log)
    watched.page.goto(url + "#nobody")
    expect(watched.page.locator("#trouble")).to_have_text("the log has no session nobody")


def test_an_empty_log(watched: Watched, url: str) -> None:
    watched.page.goto(url)
    expect(watched.page.locator("#sessions")).to_have_text("No session.")
    expect(watched.page.locator("#empty")).to_be_visible()

"""Test the trace viewer in a real browser."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sqlite3
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from dragoman import log as logs
from dragoman.calls import CallCompleted, Inbound
from dragoman.events import AssembledFrom, IntentSource, ToolIntent
from dragoman.log import SqliteLog
from dragoman.messages import Assistant, Text, Thinking, User
from dragoman.permission import Policy
from dragoman.session import RemoteApprover, Session
from dragoman.tools import tool
from dragoman.trace import export_html

from ..listed import Listed
from ..session.playing import call as propose_call
from ..session.playing import of, propose
from ..story import GOAL, LEFT_OPEN, MODEL, STORY, call, observe, tell, use
from .conftest import Served, Watched
from .test_server import ALLOW, ASKED


def open_page(watched: Watched, url: str, session: str = "") -> Page:
    watched.page.goto(url + (f"#{session}" if session else ""))
    expect(watched.page.locator("#chain")).to_contain_text("Chain")
    expect(watched.page.locator("#totals dt")).to_have_count(6)
    return watched.page


def test_page_shows_the_quality_of_tool_calls(watched: Watched, log: SqliteLog, url: str) -> None:
    facts = {"model": "<b>m</b>", "provider": "p", "stop_reason": "tool_use", "latency_ms": 1.0}
    log.append_sync("s", CallCompleted(**facts, tool_outcomes={"sound": 19, "unknown_name": 1}))
    page = open_page(watched, url)
    page.locator("#to-tools").click()
    expect(page.locator("#rates tbody tr")).to_have_count(1)
    cells = page.locator("#rates tbody td").all_inner_texts()
    assert cells[:4] == ["p:<b>m</b>", "", "20", "5.0 % 0.9 % to 23.6 %"]
    expect(page.locator("#session")).to_be_hidden()
    page.locator("#sessions a").first.click()
    expect(page.locator("#session")).to_be_visible()
    expect(page.locator("#tools")).to_be_hidden()


def test_page_shows_a_call_and_its_result(watched: Watched, log: SqliteLog, url: str) -> None:
    tell(log, "look", LEFT_OPEN)
    tell(log, "fix")
    page = open_page(watched, url)  # the page opens the newest session
    expect(page.locator("h1")).to_have_text(GOAL)
    expect(page.locator("#sessions a")).to_have_count(2)
    expect(page.locator("#outcome")).to_have_text("completed")
    expect(page.locator("#chain")).to_have_text(f"Chain verified, {len(STORY)} records")
    assert page.locator("#totals").inner_text().split("\n") == [
        "Turns", "4", "Model calls", "4", "1 failed", "Tokens in", "5,600", "3,900 cached",
        "Tokens out", "205",
        "Cost", "$0.0083", "+ 1 unknown", "Tool calls", "3", "2 allowed, 1 denied, 2 ran",
    ]  # fmt: skip
    cards = page.locator(".proposal")
    expected = ["bash", "bash", "edit_file"]
    assert [card.locator("strong").inner_text() for card in cards.all()] == expected
    assert [card.locator("summary .chip").inner_text() for card in cards.all()] == [
        "observed an error", "denied", "observed",
    ]  # fmt: skip
    stages = [
        [stage.get_attribute("class") for stage in card.locator(".stages li").all()]
        for card in cards.all()
    ]
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


def test_text_is_shown_before_tool_proposals(watched: Watched, log: SqliteLog, url: str) -> None:
    # A session records tool proposals as they arrive, then the message, then the end of the call.
    tell(
        log,
        "heard",
        [STORY[0], STORY[1], STORY[2], STORY[3], STORY[6], STORY[5], STORY[4], STORY[7]],
    )
    page = open_page(watched, url, "heard")
    expect(page.locator(".proposal")).to_have_count(1)
    seqs = [item.get_attribute("data-seq") for item in page.locator("#timeline > li").all()]
    # The page shows the call, then its text, then the proposals and decisions.
    assert seqs == ["1", "2", "3", "7", "6", "5"]
    assert watched.complaints == []


def test_raw_records_are_shown_on_request(watched: Watched, log: SqliteLog, url: str) -> None:
    tell(log, "fix")
    page = open_page(watched, url, "fix")
    page.get_by_label("Record 8 as stored").click()
    window = page.locator("#window")
    expect(window).to_contain_text('"type": "permission.granted"')
    record = next(record for record in log.read("fix") if record.seq == 8)
    expect(window).to_contain_text(record.hash)
    with page.expect_download() as download:
        window.get_by_text("Save the complete record").click()
    assert Path(download.value.path()).read_bytes() == record.line + b"\n"
    page.keyboard.press("Escape")
    expect(window).to_be_hidden()
    page.locator("li.call").nth(1).get_by_text("exchange").click()
    expect(window).to_contain_text('"estimated_input_tokens": 1300')
    expect(window).to_contain_text("expected 4, received 5")
    expect(window).to_contain_text("I will clear the disk.")
    # This message was recorded after the call, so it was not sent.
    expect(window).not_to_contain_text("The sign is wrong.")
    assert watched.complaints == []


def test_page_is_usable_with_the_keyboard(watched: Watched, log: SqliteLog, url: str) -> None:
    tell(log, "look", LEFT_OPEN)
    tell(log, "fix")
    page = open_page(watched, url, "fix")
    focused = "document.activeElement.closest('#timeline > li')?.dataset.seq"
    for key, seq in (("j", "1"), ("j", "2"), ("j", "5"), ("k", "2")):
        page.keyboard.press(key)
        assert page.evaluate(focused) == seq
    page.keyboard.press("r")
    expect(page.locator("#window-title")).to_have_text("Record 2: message.recorded")
    page.keyboard.press("j")  # the shortcut has no effect while the window is open
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
    page.keyboard.press("Enter")
    expect(page.locator("#name")).to_have_text("look")
    assert watched.complaints == []


def test_page_follows_the_theme_of_the_system(watched: Watched, log: SqliteLog, url: str) -> None:
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


def test_records_can_be_filtered(watched: Watched, log: SqliteLog, url: str) -> None:
    tell(
        log,
        "odd",
        [payload for payload in STORY if not isinstance(payload, logs.PermissionGranted)],
    )
    page = open_page(watched, url, "odd")
    shown = page.locator("#timeline > li:visible:not(.turn)")
    page.get_by_role("button", name="Tools").click()
    expect(shown).to_have_count(3)
    page.get_by_role("button", name="Evidence problems").click()
    expect(shown).to_have_count(2)
    expect(shown.nth(0)).to_contain_text("it ran without a decision")
    page.get_by_role("button", name="All", exact=True).click()
    assert shown.count() > 10


def test_page_shows_where_a_chain_is_broken(watched: Watched, log: SqliteLog, url: str) -> None:
    tell(log, "fix")
    log.close()
    connection = sqlite3.connect(log.path)
    connection.execute("UPDATE records SET actor = 'user' WHERE seq = 17")
    connection.commit()
    connection.close()
    with SqliteLog(log.path, readonly=True) as again, Served(again) as other:
        page = open_page(watched, other, "fix")
        expect(page.locator("#chain")).to_have_text(
            "Chain broken at record 17: hash mismatch: its content is not what was written"
        )
        expect(page.locator("#chain")).to_have_class("chip bad")


def test_new_records_appear_without_a_reload(browser: Browser, log: SqliteLog, url: str) -> None:
    tell(log, "live", STORY[:8])
    # A page of its own, because its clock stays replaced.
    with browser.new_context() as context:
        page = context.new_page()
        page.clock.install()
        open_page(Watched(page), url, "live")
        expect(page.locator("#outcome")).to_have_text("not finished")
        expect(page.locator(".proposal .chip")).to_have_text("allowed")
        for payload in STORY[8:11]:
            log.append_sync("live", payload)
        page.clock.run_for(2500)
        expect(page.locator(".proposal .chip")).to_have_text("observed an error")
        log.append_sync("live", logs.SessionFinished("cancelled"))
        page.clock.run_for(2500)
        expect(page.locator("#outcome")).to_have_text("cancelled")
        tell(log, "look", LEFT_OPEN)
        # Append a record to a session that had finished.
        log.append_sync("live", logs.MessageRecorded(message=User("One more thing")))
        page.clock.run_for(6000)
        expect(page.locator("#sessions a")).to_have_count(2)
        expect(page.locator("#timeline")).to_contain_text("One more thing")


def test_long_session_is_loaded_in_pages(watched: Watched, log: SqliteLog, url: str) -> None:
    for _ in range(2):
        tell(
            log,
            "long",
            [logs.MessageRecorded(message=User(f"line {number}")) for number in range(200)],
        )
    page = open_page(watched, url, "long")
    expect(page.locator("#timeline > li")).to_have_count(300)
    page.get_by_role("button", name="Show more").click()
    expect(page.locator("#timeline > li")).to_have_count(400)
    expect(page.get_by_role("button", name="Show more")).to_be_hidden()


EVIL = (
    "<script>window.ran = 1; alert(1)</script><img src=x onerror='window.ran = "
    "1'></pre></textarea><svg onload=alert(1)>{{7*7}} javascript:alert(1) \u2028 \u202egnp.exe "
    "\x1b[31m \x00 \ud7ff"
)


def poison() -> list[Any]:
    """Return the records of a run in which an attacker has written every text."""
    source = IntentSource(EVIL, EVIL, "r", 0)
    return [
        logs.SessionStarted(
            goal=EVIL, model=EVIL, provider=EVIL, tools=(EVIL,), metadata={EVIL: EVIL}
        ),
        logs.TurnStarted(1, EVIL, EVIL),
        logs.MessageRecorded(
            message=Assistant([Thinking(EVIL), Text(EVIL)]),
            model=EVIL,
            provider=EVIL,
            request_id=EVIL,
        ),
        ToolIntent(
            id="tu_1",
            provider_call_id=EVIL,
            tool_name=EVIL,
            input={EVIL: EVIL, "__proto__": {"x": EVIL}},
            raw_input_text=EVIL,
            source=source,
            assembled_from=AssembledFrom(1, 0, 0),
        ),
        logs.PermissionGranted(intent_id="tu_1", tool_name=EVIL, by=EVIL, rule=EVIL, reason=EVIL),
        logs.ToolObserved(
            intent_id="tu_1", tool_name=EVIL, content=EVIL * 2000, details={EVIL: EVIL}
        ),
        logs.ToolObserved(intent_id="tu_1", tool_name="bash", content="x" * 1_000_000),
        logs.SessionFinished("failed", EVIL),
    ]


def test_log_contents_are_shown_and_never_executed(
    watched: Watched, log: SqliteLog, url: str
) -> None:
    session = "<img src=x onerror=alert(1)>/b?c#d&e=%41"
    tell(log, session, poison())
    page = watched.page
    page.goto(url)
    expect(page.locator("#chain")).to_have_text("Chain verified, 8 records")
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
    assert page.locator("script").count() == 4
    assert page.locator("#main img, #main svg, #main script, #sessions img").count() == 0
    assert page.evaluate("({}).x") is None
    assert watched.complaints == []
    assert all(asked.startswith((url, "data:")) for asked in watched.asked)


def test_content_security_policy_blocks_inserted_markup_and_remote_images(
    watched: Watched, log: SqliteLog, url: str
) -> None:
    tell(log)
    page = open_page(watched, url)
    assert (
        page.evaluate(
            "try { document.body.innerHTML = '<b>'; 'done' } catch (error) { error.name }"
        )
        == "TypeError"
    )
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('img'), { src: "
        "'http://127.0.0.1:9/x' }))"
    )
    page.wait_for_function("true")
    assert any("Content Security Policy" in complaint for complaint in watched.complaints)


def test_page_explains_an_empty_log(watched: Watched, log: SqliteLog, url: str) -> None:
    watched.page.goto(url)
    expect(watched.page.locator("#sessions")).to_have_text("No sessions yet.")
    expect(watched.page.locator("#empty")).to_be_visible()
    tell(log)
    watched.page.goto(url + "#nobody")
    watched.page.reload()
    expect(watched.page.locator("#trouble")).to_have_text("the log has no session nobody")


# --- rendering of texts ------------------------------------------------------------------------

RICH = """# Findings

The sign in `add.py` is **wrong**, see [the docs](https://example.org/add) <b>now</b>.

- first
- second *point*

| file | state |
|---|---|
| add.py | fixed |

```diff
--- a/add.py
+++ b/add.py
@@ -1 +1 @@
-return a - b
+return a + b
```

![a picture](https://example.org/x.png)
"""
READ: Any = {"path": "notes.txt"}


def tell_rich(log: SqliteLog, session: str = "rich") -> None:
    """Record a run that contains Markdown, a diff, JSON, and a read that a rule allowed."""
    story: list[logs.Payload] = [
        logs.SessionStarted(
            goal="Look around",
            model="claude-sonnet-4-6",
            provider="anthropic",
            tools=("read_file",),
        ),
        *call(1, (100, 20, 0), "0.01"),
        *use(1, "read_file", READ, RICH),
        logs.ToolIntentValidated("tu_1", "read_file", "read", ("notes.txt",)),
        logs.PermissionGranted(intent_id="tu_1", tool_name="read_file", by="policy", rule="read"),
        *observe(1, "read_file", READ, '{"lines": 3, "ok": true}'),
        logs.SessionFinished("failed"),
    ]
    tell(log, session, story)


def check_accessible(page: Page) -> None:
    """Check the page with all rules of axe, and again in dark mode with only its contrast rule."""
    package = importlib.util.find_spec("axe_playwright_python")
    assert package.origin is not None
    page.evaluate(Path(package.origin).with_name("axe.min.js").read_text("utf-8"))
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    light = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(
        "axe.run(document, { resultTypes: ['violations'], runOnly: ['color-contrast'] })"
    )
    for result in (light, dark):
        found = [
            (each["id"], [node["target"] for node in each["nodes"]])
            for each in result["violations"]
        ]
        assert found == []
    assert len(light["passes"]) > 15


def test_markdown_diffs_and_json_are_rendered(watched: Watched, log: SqliteLog, url: str) -> None:
    tell_rich(log)
    page = open_page(watched, url, "rich")
    shown = page.locator(".markdown")
    assert shown.locator(".heading").inner_text() == "Findings"
    assert shown.locator("strong").inner_text() == "wrong"
    assert shown.locator("em").inner_text() == "point"
    assert shown.locator("ul li").all_inner_texts() == ["first", "second point"]
    assert shown.locator("td").all_inner_texts() == ["add.py", "fixed"]
    expected = ["-return a - b\n", "+return a + b\n"]
    assert shown.locator(".d-removed, .d-added").all_text_contents() == expected
    colours = {
        each.evaluate("e => getComputedStyle(e).color")
        for each in shown.locator(".diff span").all()
    }
    assert len(colours) == 3
    assert "<b>now</b>" in shown.inner_text()  # HTML in a message is shown as text
    assert "https://example.org/add" in shown.inner_text()
    # The Markdown has created no link and no picture.
    assert page.locator("#timeline a, #timeline img, #timeline b").count() == 0
    # A read that a rule allowed is collapsed to one line with its path.
    card = page.locator(".proposal")
    assert card.get_attribute("open") is None
    expect(card.locator(".gist")).to_have_text("notes.txt")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    card.locator("summary").first.click()
    observed = card.locator(".json").last
    assert observed.locator(".j-key").all_inner_texts() == ['"lines"', '"ok"']
    observed.locator("xpath=..").get_by_role("button", name="Copy").click()
    expect(observed.locator("xpath=..").get_by_role("button")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == '{\n  "lines": 3,\n  "ok": true\n}'
    assert watched.complaints == []
    assert all(asked.startswith((url, "data:")) for asked in watched.asked)


def test_bars_show_when_a_call_ran(watched: Watched, log: SqliteLog, url: str) -> None:
    tell(log, "fix")
    page = open_page(watched, url, "fix")
    bars = page.locator("li.call .track i").all()
    assert len(bars) == 5
    places = [
        bar.evaluate("e => [parseFloat(e.style.left), parseFloat(e.style.width)]") for bar in bars
    ]
    assert all(left >= 0 and width > 0 and left + width <= 100.01 for left, width in places)
    label = page.locator("li.call .track").first.get_attribute("aria-label")
    assert label == "model call 801 ms"
    # One bar shows how long the edit waited for a person's approval.
    assert page.locator("li.proposal-item .track i.waited").count() == 1
    page.get_by_role("button", name="Evidence problems").click()
    expect(page.locator("#nothing")).to_have_text(
        "No evidence problems: every step follows from the records before it."
    )
    expect(page.locator("#timeline > li:visible")).to_have_count(0)


def test_sessions_are_sorted_and_searched(watched: Watched, log: SqliteLog, url: str) -> None:
    tell(log, "look", LEFT_OPEN)
    tell(log, "fix")
    tell_rich(log)
    tell(
        log, "ask_1",
        [logs.SessionStarted(goal="What is 2 + 2?", **MODEL, kind="ask"),
         logs.MessageRecorded(message=User("2 + 2?"))],
    )  # fmt: skip
    inbound = Inbound(wire="anthropic", key="team-a", name="fast", status=200)
    served = CallCompleted(
        **MODEL, request_id="g1", stop_reason="end_turn", latency_ms=90.0, inbound=inbound
    )
    tell(log, "gateway_1", [logs.SessionStarted(kind="gateway"), served])
    page = open_page(watched, url, "gateway_1")
    expect(page.locator("li.call")).to_contain_text(
        "client over anthropic, key team-a, asked for fast, HTTP 200"
    )
    links = page.locator("#sessions a")
    expect(links).to_have_count(5)
    fix = links.filter(has_text=GOAL)
    expected = ["completed", "$0.0083+ · 4 turns"]
    assert fix.locator(".under").all_inner_texts()[0].split("\n")[:2] == expected
    expect(fix).to_contain_text("anthropic:claude-sonnet-4-6")
    page.locator("#sort").select_option("cost")
    expect(links.first).to_contain_text("Look around")
    page.locator("#by-outcome").select_option("open")
    expect(links).to_have_count(3)
    page.locator("#kind").select_option("ask")
    expect(links).to_have_count(1)
    page.get_by_label("Model", exact=True).fill("another")
    expect(page.locator("#sessions")).to_have_text("No session fits.")
    page.get_by_label("Model", exact=True).fill("")
    page.locator("#kind").select_option("")
    page.locator("#by-outcome").select_option("")
    page.get_by_label("Search all sessions").fill("received 5")
    expect(links).to_have_count(1)
    expect(links).to_contain_text("2 matches: expected 4, received 5")
    page.keyboard.press("Enter")
    expect(page.locator("#found")).to_have_text("2 matches")
    page.get_by_label("Next match").click()
    expect(page.locator("#found")).to_have_text("1 of 2")
    expect(page.locator("#timeline > li.hit")).to_contain_text("expected 4, received 5")
    assert page.evaluate("CSS.highlights.get('found').size") >= 2
    assert watched.complaints == []


def test_the_page_is_accessible(watched: Watched, log: SqliteLog) -> None:
    tell_rich(log)
    tell(
        log,
        "odd",
        [payload for payload in STORY[:-4] if not isinstance(payload, logs.PermissionGranted)],
    )
    with Served(log, "ann") as url:
        page = open_page(watched, url, "odd")
        expect(page.get_by_role("button", name="Deny")).to_be_visible()
        check_accessible(page)
        page.set_viewport_size({"width": 390, "height": 800})
        page.goto(url + "#rich")
        expect(page.locator("h1")).to_have_text("Look around")
        page.locator("details:not([open]) > summary").first.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.get_by_label("Record 1 as stored").click()
        check_accessible(page)


# --- answering permission requests on the page -------------------------------------------------


def test_a_person_can_allow_or_deny_a_call(watched: Watched, log: SqliteLog, url: str) -> None:
    ran: list[str] = []

    @tool(side_effect="execute")
    def bash(command: str) -> str:
        """Run a command."""
        ran.append(command)
        return "ok"

    model = Listed(
        propose(propose_call("bash", command="git push"),
            propose_call("bash", call_id="2", command="rm \u202ex")),
        "Done.",
    )  # fmt: skip
    session = Session(
        model, [bash], Policy([]), log, approve=RemoteApprover(log, interval=0.02), session_id="s1"
    )
    running = threading.Thread(target=lambda: asyncio.run(session.run("Go.")))
    with Served(log, "ann") as approving:
        running.start()
        page = open_page(watched, approving, "s1")
        expect(page.locator("#waiting")).to_contain_text("waiting")
        first = page.locator(".decide:visible").first
        first.get_by_label("Input, which you may change").fill('{"command": "git push --dry-run"}')
        first.get_by_role("button", name="Allow").click()
        card = page.locator(".proposal").nth(1)
        assert '"rm \\u202ex"' in card.get_by_label("Input, which you may change").input_value()
        card.get_by_label("Reason").fill("keep x")
        card.get_by_role("button", name="Deny").click()
        expect(page.locator("#outcome")).to_have_text("completed")
        expect(page.locator("#waiting")).to_be_hidden()
        expect(card.locator(".chip")).to_have_text("denied")
    running.join()
    assert ran == ["git push --dry-run"]
    records = list(log.read("s1"))
    [granted] = of(records, "permission.granted")
    [denied] = of(records, "permission.denied")
    assert granted.by == "ann"
    assert granted.input == {"command": "git push --dry-run"}
    assert denied.by == "ann"
    assert denied.reason == "keep x"
    assert watched.complaints == []
    watched.page.goto(url + "#s1")  # the second server shows the same log without --approve
    expect(watched.page.locator(".proposal")).to_have_count(2)
    expect(watched.page.locator("#waiting, .decide:visible")).to_have_count(1)


# Each attack is a script of the page; its result must contain nothing of the viewer.
POST = "fetch(URL + 'api/answer', {method: 'POST', body: ANSWER, %s}).then(r => r.text())"
ATTACKS = {
    "simple request": POST % "mode: 'no-cors', headers: {'content-type': 'text/plain'}",
    "as JSON": POST % "headers: {'content-type': 'application/json', 'x-approval-token': 'x'}",
    "with cookies": POST % "mode: 'no-cors', credentials: 'include', keepalive: true",
    "beacon": "navigator.sendBeacon(URL + 'api/answer', new Blob([ANSWER])) && 0",
    "reads questions": "fetch(URL + 'api/questions').then(r => r.text())",
    "as a script": """new Promise(done => { const s = document.createElement('script');
        s.src = URL + 'api/questions'; s.onload = () => done('loaded'); s.onerror = () => done('');
        document.head.append(s); })""",
    "in a frame": """new Promise(done => { const f = document.createElement('iframe'); f.src = URL;
        f.onload = () => { let found = '';
          try { found = f.contentDocument.body.innerText } catch {} done(found) };
        document.body.append(f); })""",
    "in a window": """new Promise(done => { const w = window.open(URL); setTimeout(() => {
        let found = ''; try { found = w.document.body.innerText } catch {} done(found) }, 200) })""",
}


class HostilePage(BaseHTTPRequestHandler):
    """An empty page on the same site as the viewer, but of another origin."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()


def test_another_web_page_cannot_answer_or_read_questions(
    watched: Watched, log: SqliteLog
) -> None:
    """The page even knows the secret address of the viewer."""
    tell(log, "fix", STORY[:ASKED])
    page = watched.page
    with Served(log, "ann") as url, HTTPServer(("127.0.0.1", 0), HostilePage) as hostile:
        threading.Thread(target=hostile.serve_forever, daemon=True).start()
        page.goto(f"http://127.0.0.1:{hostile.server_port}/")
        given = [url, json.dumps(ALLOW)]
        page.evaluate("([url, answer]) => { URL = url; ANSWER = answer }", given)
        for name, attack in ATTACKS.items():
            found = page.evaluate(f"async () => {{ try {{ return await {attack} }} catch {{}} }}")
            assert not found, name
        for other in page.context.pages[1:]:
            other.close()
        hostile.shutdown()
    assert not log.path.with_name("log.db.answers").exists()


# --- exporting a session as one HTML file ------------------------------------------------------


def test_session_is_exported_as_one_file(
    watched: Watched, browser: Browser, log: SqliteLog, url: str, tmp_path: Path
) -> None:
    tell(log, "fix")
    tell(
        log, "bad",
        [*poison()[:4],
         logs.MessageRecorded(message=Assistant("</script><script>window.ran = 1</script><!--"))],
    )  # fmt: skip
    page = open_page(watched, url, "fix")
    with page.expect_download() as download:
        page.get_by_text("Save as HTML").click()
    saved = Path(download.value.path()).read_text("utf-8")
    assert saved == export_html(log, "fix")
    (tmp_path / "fix.html").write_text(saved)
    (tmp_path / "bad.html").write_text(export_html(log, "bad"))
    context = browser.new_context(offline=True)
    alone = Watched(context.new_page())
    alone.page.goto((tmp_path / "fix.html").as_uri())
    expect(alone.page.locator("h1")).to_have_text(GOAL)
    expect(alone.page.locator("#chain")).to_have_text(
        f"Chain verified, {len(STORY)} records at export"
    )
    expect(alone.page.locator(".proposal")).to_have_count(3)
    alone.page.get_by_label("Find in this session").fill("received 5")
    expect(alone.page.locator("#found")).to_have_text("1 of 2")
    alone.page.get_by_label("Record 8 as stored").click()
    expect(alone.page.locator("#window")).to_contain_text('"type": "permission.granted"')
    alone.page.goto((tmp_path / "bad.html").as_uri())
    expect(alone.page.locator("#chain")).to_contain_text("Chain verified")
    assert alone.page.evaluate("window.ran") is None
    assert "</script><script>window.ran" in alone.page.locator("#timeline").inner_text()
    assert alone.complaints == []
    assert all(asked.startswith(("file:", "data:")) for asked in alone.asked)
    context.close()

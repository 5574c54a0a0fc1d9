"""Sessions and reports in notebooks: the conversation is shown, and no key or address is."""

from dragoman import connect
from dragoman.conformance import CheckOutcome, Report
from dragoman.session import Session
from dragoman.sim import Answer, Call, ScriptedProvider
from dragoman.tools import tool

from ..messages.test_display import Page


def test_display_of_a_report_shows_each_check_and_no_address() -> None:
    outcomes = (
        CheckOutcome(name="a.b", title="does b", status="fail", detail="not so"),
        CheckOutcome(name="a.c", title="does c", status="pass"),
    )
    report = Report(
        url="https://user:secret@h/v1",
        wire="openai",
        model="m",
        by="dragoman",
        at="2026-01-01T00:00:00Z",
        outcomes=outcomes,
    )
    page = Page(report._repr_html_())
    assert "Check of m over the openai wire" in page.text
    assert "1 pass, 1 fail" in page.text
    assert "a.bFAILnot so (wanted: does b)" in page.text
    assert "secret" not in report._repr_html_() + report._repr_markdown_()


async def test_display_of_a_session_shows_the_conversation_without_keys() -> None:
    session = Session(ScriptedProvider("Done & <b>well</b>."))
    await session.run(
        "Use the key sk-proj-abcdefghijklmnopqrstuvwxyz0123456789 at https://u:hunter22@h.example"
    )
    page = Page(session._repr_html_())
    assert "Session with sim:sim" in page.text
    assert "1 turns" in page.text
    assert "assistantDone & <b>well</b>." in page.text
    shown = session._repr_html_() + session._repr_markdown_()
    assert "sk-proj" not in shown
    assert "hunter22" not in shown


async def test_display_of_a_session_shows_tool_names_and_no_credentials() -> None:
    script = ScriptedProvider(
        Answer("Looking.", tool_calls=[Call("look", {"password": "hunter22"})]), Answer("Seen.")
    )

    @tool(side_effect="none")
    def look(password: str) -> str:
        """Describe the room."""
        return "nothing"

    session = Session(script, [look], system="Be brief.")
    await session.run("Look around.")
    page = Page(session._repr_html_())
    assert "assistantLooking. → look" in page.text
    assert "toolresultnothing" in page.text
    async with connect(
        "m", base_url="http://127.0.0.1:9/v1", api_key="sk-secret-key-0123456789"
    ) as model:
        shown = Session(model)._repr_html_()
    assert "secret" not in shown
    assert "hunter22" not in shown + session._repr_html_()

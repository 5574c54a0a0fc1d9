"""``dragoman spend`` prints the bill of a gateway from its store."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from msgspec.structs import replace

from dragoman.cli import main
from dragoman.gateway.usage_book import UsageBook, UsageRow

ROW = UsageRow(
    at=int(datetime(2030, 1, 15, 12, tzinfo=UTC).timestamp() * 1000), id="r", key="ann",
    model="fast", status=200, error="", input=7, output=3, usd=Decimal("0.000123456789"),
    unpriced=0, latency=12, session="s", team="core", tag="nightly",
)  # fmt: skip


async def test_command_prints_the_bill(tmp_path: Path) -> None:
    place = str(tmp_path / "used.db")
    book = UsageBook(place)
    book.count(ROW)
    book.count(replace(ROW, team="web", usd=Decimal(2)))
    await book.flush(())
    book.close()
    span = ["--state", place, "--from", "2030-01-01", "--to", "2030-01-31"]

    def run(*words: str) -> Any:
        return CliRunner().invoke(main, ["spend", *words])

    shown = run(*span)
    assert shown.exit_code == 0, shown.output
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["team", "requests", "failed", "in", "out", "usd", "unpriced"],
        ["core", "1", "0", "7", "3", "0.000123456789", "0"],
        ["web", "1", "0", "7", "3", "2", "0"],
    ]
    assert run(*span, "--by", "tag,day", "--csv").stdout.splitlines()[1] == (
        "nightly,2030-01-15,2,0,14,6,2.000123456789,0"
    )
    wrong = run("--state", place, "--by", "color")
    assert wrong.exit_code == 2
    assert "--by: 'color' is not one of" in wrong.stderr
    assert "does not exist" in run("--state", place + "x").stderr

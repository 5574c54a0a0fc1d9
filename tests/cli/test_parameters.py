"""Options made of annotated parameters and of the fields of structs."""

from pathlib import Path
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner
from msgspec import Struct

from dragoman.cli.parameters import ExistingFile, Folder, Json, add_options, option


class Inner(Struct):
    size: Annotated[int, "Size.", option("N", ge=1, le=9)] = 3
    quiet: Annotated[bool, "Quiet."] = False


class Outer(Struct, kw_only=True):
    needed: Annotated[str, "Needed.", option("WORD", "-n --need")]
    inner: Inner
    colour: Annotated[bool | None, "Colour."] = None
    mode: Annotated[
        str | None,
        "Fast.",
        option(flags="--fast", flag_value="fast"),
        "Slow.",
        option(flags="--slow", flag_value="slow"),
    ] = None


SEEN: list[dict[str, Any]] = []


@click.command()
@click.argument("file")
@add_options
def command(
    file: str,
    *,
    outer: Outer,
    order: Annotated[Literal["up", "down"], "Order."] = "up",
    share: Annotated[float | None, "Share.", option(ge=0.5)] = None,
    words: Annotated[tuple[str, ...], "Words.", option("WORD", "--word")] = (),
    source: Annotated[ExistingFile, "Source."] = None,
    folder: Annotated[Folder, "Folder."] = Path(),
    is_open: Annotated[bool, "Open."] = True,
    as_json: Annotated[Json, "Print JSON."] = False,
) -> None:
    SEEN.append({**locals()})


HELP = """\
Usage: command [OPTIONS] FILE

Options:
  -n, --need WORD           Needed.  [required]
  --size N                  Size.  [default: 3; 1<=x<=9]
  --quiet                   Quiet.
  --colour / --no-colour    Colour.
  --fast                    Fast.
  --slow                    Slow.
  --order [up|down]         Order.  [default: up]
  --share FLOAT RANGE       Share.  [x>=0.5]
  --word WORD               Words.
  --source FILE             Source.
  --folder DIRECTORY        Folder.  [default: .]
  --is-open / --no-is-open  Open.  [default: is-open]
  --json                    Print JSON.
  --help                    Show this message and exit.
"""


def run(*args: str) -> tuple[int, str]:
    SEEN.clear()
    done = CliRunner().invoke(command, args)
    return done.exit_code, done.output


def test_help_is_taken_from_the_annotations() -> None:
    assert run("--help") == (0, HELP)


def test_option_defaults_are_passed_to_the_command() -> None:
    assert run("in", "--need", "x")[0] == 0
    [seen] = SEEN
    assert seen.pop("outer") == Outer(needed="x", inner=Inner())
    assert seen == {
        "file": "in", "order": "up", "share": None, "words": (), "source": None,
        "folder": Path(), "is_open": True, "as_json": False,
    }  # fmt: skip


def test_values_reach_the_fields_of_nested_structs() -> None:
    given = "in -n x --size 9 --quiet --no-colour --fast --slow --word a --word b --share 0.5"
    assert run(*given.split(), "--no-is-open", "--order", "down", "--json") == (0, "")
    [seen] = SEEN
    inner = Inner(size=9, quiet=True)
    assert seen["outer"] == Outer(needed="x", inner=inner, colour=False, mode="slow")
    assert seen["words"] == ("a", "b")
    assert seen["share"] == 0.5
    assert seen["order"] == "down"
    assert seen["is_open"] is False
    assert seen["as_json"] is True


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("in", "Missing option '-n' / '--need'."),
        ("in -n x --size 0", "Invalid value for '--size': 0 is not in the range 1<=x<=9."),
        ("in -n x --size 10", "Invalid value for '--size': 10 is not in the range 1<=x<=9."),
        ("in -n x --order by", "Invalid value for '--order': 'by' is not one of 'up', 'down'."),
        ("in -n x --share 0.1", "Invalid value for '--share': 0.1 is not in the range x>=0.5."),
        (
            "in -n x --source nowhere",
            "Invalid value for '--source': File 'nowhere' does not exist",
        ),
    ],
)
def test_wrong_values_are_rejected(args: str, message: str) -> None:
    code, output = run(*args.split())
    assert code == 2
    assert message in output
    assert not SEEN

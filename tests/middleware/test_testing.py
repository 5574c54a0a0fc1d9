"""Test the pytest fixture: the calls of a test are recorded once and replayed in later runs."""

import os
from pathlib import Path

import pytest

import dragoman
from dragoman.testing import cassette_path

pytest_plugins = ("pytester",)

TEST = """
from tests.listed import Listed
import pytest

ASKED = []

class Counting(Listed):
    def events(self, request):
        ASKED.append(request)
        return super().events(request)

@pytest.mark.parametrize("name", ["a", "b/c"])
async def test_scripted_calls(dragoman_cassette, name):
    async with dragoman_cassette(Counting("hello")) as model:
        assert (await model.complete(name)).text == "hello"
    with pytest.raises(ValueError, match="is used twice"):
        dragoman_cassette(Counting())
    second = dragoman_cassette(Counting("again"), "second")
    assert (await second.complete(name)).text == "again"

def test_fixture_counts_calls():
    print("asked", len(ASKED), "times")
"""


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    """Run pytest with only two plugins, because loading all installed plugins would take seconds."""
    settings = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"]
    settings += ["-p", "dragoman.testing", "-p", "pytest_asyncio.plugin"]
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-s", *settings, *options)


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow the pytest subprocess, which runs in another folder, to import ``dragoman`` and
    ``tests.listed``.
    """
    places = [Path(dragoman.__file__).parents[1], Path(__file__).parents[2]]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place.resolve()) for place in places]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_pytest_plugin_records_calls_once_and_then_replays_them(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_river=TEST)
    first = run(pytester)
    first.assert_outcomes(passed=3)
    first.stdout.fnmatch_lines(["*asked 4 times*"])
    folder = pytester.path / "cassettes" / "test_river"
    names = sorted(path.name for path in folder.iterdir())
    assert names[:2] == ["test_scripted_calls[a].jsonl", "test_scripted_calls[a].second.jsonl"]
    assert len(names) == 4
    second = run(pytester, "--dragoman-cassettes=replay")
    second.assert_outcomes(passed=3)
    second.stdout.fnmatch_lines(["*asked 0 times*"])


def test_replay_mode_sends_no_requests_and_off_mode_writes_no_cassettes(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_river=TEST)
    missing = run(pytester, "--dragoman-cassettes=replay")
    missing.assert_outcomes(failed=2, passed=1)
    missing.stdout.fnmatch_lines(["*asked 0 times*", "*there is no call on this cassette*"])
    off = run(pytester, "--dragoman-cassettes=off")
    off.assert_outcomes(passed=3)
    assert not (pytester.path / "cassettes").exists()


def test_every_test_has_its_own_cassette_file() -> None:
    file = Path("tests/test_a.py")
    names = [
        "test_x", "test_x[a/b]", "test_x[a:b]", "test_x[a-b]", "test_x[" + "y" * 300 + "]",
        "test_x[" + "y" * 301,
    ]  # fmt: skip
    paths = {cassette_path(file, name) for name in names} | {
        cassette_path(file, "test_x", "second")
    }
    assert len(paths) == len(names) + 1
    assert cassette_path(file, "test_x") == Path("tests/cassettes/test_a/test_x.jsonl")
    assert all(
        len(path.name) < 200 and "/" not in path.name and ":" not in path.name for path in paths
    )

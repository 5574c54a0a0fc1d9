"""``dragoman keys gateway``: each key is shown once, and every change is audited."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dragoman.cli import main
from dragoman.gateway.keys import new_key
from dragoman.gateway.keystore import KeyStore, load_keys
from tests.rows import read_table


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DRAGOMAN_AUTH", str(tmp_path / "keys.db"))
    return str(tmp_path / "keys.db")


def run(*words: str, code: int = 0) -> Any:
    done = CliRunner().invoke(main, ["keys", "gateway", *words])
    assert done.exit_code == code, done.output
    return done


def find(place: str, key: str) -> Any:
    ring = load_keys(place)
    ring.close()
    return ring.find(key)


def test_gateway_key_is_created_changed_rotated_and_revoked(place: str) -> None:
    limits = ["--model", "fast", "--model", "anthropic:*", "--budget-month", "20"]
    limits += ["--expires", "2999-01-31", "--requests-per-minute", "60"]
    key = json.loads(run("new", "ann", "--team", "core", *limits, "--json").stdout)["key"]
    run("team", "core", "--budget-month", "100")
    found = find(place, key)
    assert found.models == ("fast", "anthropic:*")
    assert str(found.budget_usd_month) == "20"
    assert found.requests_per_minute == 60
    assert found.team_budget_usd_month == 100
    assert found.user is None
    assert found.names_user is False
    run("change", "ann", "--user", "ann@example.org", "--names-user")
    found = find(place, key)
    assert found.user == "ann@example.org"
    assert found.names_user is True
    assert "the user of a key must be" in run("change", "ann", "--user", "", code=2).stderr
    run("change", "ann", "--budget-month", "none", "--max-concurrency", "4", "--model", "*")
    run("change", "ann", "--no-names-user", "--user", "none")
    found = find(place, key)
    assert found.user is None
    assert found.names_user is False
    assert found.budget_usd_month is None
    assert found.max_concurrency == 4
    assert found.models == ("*",)
    rotated = run("rotate", "ann", "--overlap", "2h")
    new = rotated.stdout.removeprefix("key: ").strip()
    assert find(place, key) == find(place, new) is not None
    listed = run("list").stdout
    assert "ann" in listed
    assert "4 at a time, old key until" in listed
    assert "team core: $100 a month" in listed
    run("revoke", "ann")
    assert find(place, new) is None
    actions = [each["action"] for each in json.loads(run("audit", "--json").stdout)]
    assert actions == ["revoke", "rotate", *["change"] * 3, "team", "create"]
    everything = "".join(
        [
            run(*words).output
            for words in (["list"], ["list", "--json"], ["audit"], ["audit", "ann"])
        ]
    )
    assert not any(each in everything for each in (key, new, "sha256"))


def test_gateway_keys_are_imported_from_a_file(place: str, tmp_path: Path) -> None:
    key, digest = new_key()
    file = tmp_path / "keys.yaml"
    file.write_text(
        f"keys:\n  ann: {{hash: '{digest}', team: core}}\nteams:\n  core: {{budget_usd_month: "
        "5}\n"
    )
    run("import", str(file))
    assert find(place, key).team_budget_usd_month == 5
    assert "already" in run("import", str(file), code=2).stderr
    file.write_text("keys: {ann: {hash: x}}\n")
    assert "sha256" in run("import", str(file), code=2).stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        *read_table("invalid_gateway_key_commands_are_reported_and_change_nothing"),
        (["list", "--auth", __file__], "is not a database"),
    ],
)
def test_invalid_gateway_key_commands_are_reported_and_change_nothing(
    place: str, words: list[str], complaint: str
) -> None:
    store = KeyStore(place)
    store.create("ann")
    before = store.read_keys()
    done = run(*words, code=2)
    assert complaint in done.stderr
    assert "secret" not in done.output
    assert store.read_keys() == before
    store.close()

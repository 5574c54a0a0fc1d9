"""Stored API keys: where they are, which vendor receives them; no output shows them."""

import json
from collections.abc import Callable
from pathlib import Path

import keyring.core
import pytest
from click.testing import CliRunner, Result

from dragoman.cli import main
from dragoman.registry import Registry, keys_path, remove_key, store_key, stored_keys

from .terminal import Terminal

KEY = "sk-canary-0123456789abcdef"
Run = Callable[..., Result]


@pytest.fixture(params=["keyring", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set up a key store: the keyring with a test backend, or the file without a keyring."""
    backend = (
        "tests.file_keyring.FileKeyring"
        if request.param == "keyring"
        else "keyring.backends.fail.Keyring"
    )
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", backend)
    monkeypatch.setenv("FILE_KEYRING", str(tmp_path / "keyring.json"))
    monkeypatch.setenv("DRAGOMAN_KEYS", str(tmp_path / "settings" / "keys.json"))
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(tmp_path / "models.yaml"))
    (tmp_path / "models.yaml").write_text("adapters: {}\n")
    for variable in ("OPENAI_API_KEY", "GROQ_API_KEY", "MY_KEY"):
        monkeypatch.delenv(variable, raising=False)
    # The package reads the environment variable only once, on first use.
    keyring.core.init_backend()
    return str(request.param)


@pytest.fixture
def run(place: str) -> Run:
    def start(*words: str, given: str = "", **variables: str) -> Result:
        return CliRunner().invoke(main, list(words), input=given, env=variables)

    return start


def test_api_keys_are_stored_listed_and_removed(run: Run, place: str, tmp_path: Path) -> None:
    outputs = [
        run("keys", "set", "groq", given=f"{KEY}\n"), run("keys", "list"),
        run("keys", "list", "--json"), run("keys", "list", GROQ_API_KEY="other-canary-key"),
        run("models", "groq:llama-3.3-70b-versatile"), run("models", "--json", "groq:*"),
        run("config", "check"), run("keys", "rm", "groq"),
    ]  # fmt: skip
    assert all(each.exit_code == 0 for each in outputs), outputs
    said, listed, as_json, over, model, *_ = [each.stdout for each in outputs]
    assert "GROQ_API_KEY is stored in" in said
    assert listed.splitlines()[1].split() == ["GROQ_API_KEY", place, "groq"]
    assert json.loads(as_json) == [
        {"name": "GROQ_API_KEY", "source": place, "also": None, "vendors": ["groq"]}
    ]
    assert f"environment, over that of the {place}" in over
    assert "configured" in model.splitlines()[0]
    assert "not configured" not in model
    everything = "".join(each.stdout + each.stderr for each in outputs)
    assert "canary" not in everything
    assert run("keys", "list").stdout.startswith("no keys")
    assert run("keys", "rm", "groq").exit_code == 1
    kept = [path.read_text() for path in tmp_path.rglob("*.json")]
    assert KEY not in "".join(kept)


def test_key_file_is_readable_by_its_owner_only(run: Run, place: str) -> None:
    run("keys", "set", "MY_KEY", given=KEY)
    path = keys_path()
    assert path.stat().st_mode & 0o777 == 0o600
    assert (KEY in path.read_text()) == (place == "file")
    path.chmod(0o644)
    assert run("keys", "list").exit_code == 0
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("words", "given", "complaint"),
    [
        (["groq", KEY], "", "a key as an argument can be seen by others"),
        ([KEY], KEY, "by a vendor's name or an environment variable's"),
        (["groq"], "", "a key is one line of printable"),
        (["groq"], "canary with spaces", "a key is one line of printable"),
        (["ollama"], KEY, "needs no key"),
    ],
)
def test_invalid_keys_are_not_kept(run: Run, words: list[str], given: str, complaint: str) -> None:
    result = run("keys", "set", *words, given=given)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert "canary" not in result.stdout + result.stderr
    assert stored_keys() == {}


def test_stored_api_key_is_sent_to_its_vendor_only(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_key("OPENAI_API_KEY", KEY)
    store_key("MY_KEY", "own-canary-key")
    (tmp_path / "models.yaml").write_text(
        "adapters:\n  other: {type: openai, base_url: 'http://127.0.0.1:9/v1'}\n  named: {type: "
        "openai, base_url: 'http://127.0.0.1:9/v1', api_key_env: OPENAI_API_KEY}\n  own: {type: "
        "openai-compatible, base_url: 'http://127.0.0.1:9/v1', api_key_env: MY_KEY}\n"
    )
    registry = Registry.load()
    keys = {name: registry.adapter(name).key() for name in ("openai", "other", "named", "own")}
    assert keys == {"openai": KEY, "other": None, "named": None, "own": "own-canary-key"}
    monkeypatch.setenv("OPENAI_API_KEY", "from the environment")
    assert registry.adapter("openai").key() == "from the environment"
    monkeypatch.delenv("OPENAI_API_KEY")
    assert remove_key("OPENAI_API_KEY")
    assert registry.adapter("openai").key() is None
    assert "canary" not in repr(registry.adapter("own"))


def test_damaged_key_file_is_reported_in_one_line(run: Run, tmp_path: Path) -> None:
    keys_path().parent.mkdir()
    keys_path().write_text(f"{{'{KEY}")
    result = run("keys", "list")
    assert result.exit_code == 2
    assert result.stderr.endswith("the file of stored keys is not a file of keys\n")
    assert "canary" not in result.stderr
    assert run("models", "groq:*", "--json").exit_code == 0


def test_prompt_for_an_api_key_hides_the_typed_text(place: str) -> None:
    with Terminal("keys", "set", "groq") as terminal:
        terminal.see("key for GROQ_API_KEY: ")
        terminal.type(f"{KEY}\n")
        terminal.see("GROQ_API_KEY is stored in")
        assert terminal.wait() == 0
    assert "canary" not in terminal.raw
    assert Registry.load().adapter("groq").key() == KEY

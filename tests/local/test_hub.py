"""Downloads from a hub are resumed and verified, and tokens are sent to the hub only."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.local import WeightsError, find_model, list_models, pull_model
from dragoman.local.catalog import load_catalog
from dragoman.local.hub import _check_address, locate

from .hub_server import HubServer, serve_hub

CONTENT = b"GGUF" + os.urandom(400_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
SPEC = "hf:owner/some-repo/Some-Model.Q4.gguf"
TOKEN = "hf_0123456789abcdefghij"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with serve_hub(CONTENT) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def part(folder: Path) -> Path:
    return folder / "models" / ".parts" / f"{DIGEST}.part"


def test_downloaded_model_is_found_by_its_file_name(hub: HubServer, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    pulled = pull_model(SPEC, progress=lambda *facts: seen.append(facts))
    assert pulled.name == "Some-Model.Q4"
    assert pulled.sha256 == DIGEST
    assert pulled.source == SPEC
    assert pulled.size == len(CONTENT)
    assert Path(pulled.path).read_bytes() == CONTENT
    assert find_model("Some-Model.Q4").path == Path(pulled.path)
    assert [each.name for each in list_models()][-1] == "Some-Model.Q4"
    assert {doing for doing, _, _ in seen} == {"fetching", "checking"}
    assert seen[-1] == ("checking", len(CONTENT), len(CONTENT))
    assert hub.asked[0].path == "/owner/some-repo/resolve/main/Some-Model.Q4.gguf"
    assert list((tmp_path / "models" / ".parts").iterdir()) == []


def test_access_token_is_sent_to_the_hub_only(hub: HubServer) -> None:
    pull_model(SPEC)
    sent = {(each.server, each.method): each.headers.get("authorization") for each in hub.asked}
    assert sent == {
        ("hub", "HEAD"): f"Bearer {TOKEN}",
        ("hub", "GET"): f"Bearer {TOKEN}",
        ("storage", "GET"): None,
    }
    assert not [each for each in hub.asked if TOKEN in each.path]


def test_authorization_requires_a_token(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    pull_model(SPEC)
    assert not [each for each in hub.asked if "authorization" in each.headers]


def test_model_that_is_already_downloaded_is_not_downloaded_again(hub: HubServer) -> None:
    pull_model(SPEC)
    before = len(hub.asked)
    assert pull_model(SPEC).sha256 == DIGEST
    assert len(hub.asked) == before


def test_broken_download_is_resumed(hub: HubServer) -> None:
    hub.cuts = [100_000, 50_000]
    assert Path(pull_model(SPEC).path).read_bytes() == CONTENT
    expected = [None, "bytes=100000-", "bytes=150000-"]
    assert [each.headers.get("range") for each in hub.gets()] == expected


def test_partial_download_is_kept_for_the_next_pull(hub: HubServer, tmp_path: Path) -> None:
    hub.cuts = [100_000, 0]  # the second attempt receives no bytes, so the download is given up
    with pytest.raises(WeightsError, match="pull again to fetch the rest"):
        pull_model(SPEC)
    assert part(tmp_path).stat().st_size == 100_000
    assert Path(pull_model(SPEC).path).read_bytes() == CONTENT
    assert hub.gets()[-1].headers["range"] == "bytes=100000-"


def test_complete_file_is_downloaded_if_the_server_lacks_range_requests(hub: HubServer) -> None:
    hub.cuts = [100_000]
    hub.ranges = False
    assert Path(pull_model(SPEC).path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("faults", "complaint"),
    [
        ({"cuts": [100_000], "shift": 7}, "a different range"),
        ({"size": 1000}, "more than the 1000 bytes"),
        ({"content": b"<html>" + CONTENT}, "not a GGUF file"),
        ({"digest": "0" * 64}, "wrong contents"),
    ],
    ids=["another range", "longer than announced", "not GGUF", "wrong digest"],
)
def test_faulty_download_is_rejected(
    hub: HubServer, tmp_path: Path, faults: dict[str, Any], complaint: str
) -> None:
    for name, value in faults.items():
        setattr(hub, name, value)
    with pytest.raises(WeightsError, match=complaint):
        pull_model(SPEC)
    if "digest" in faults:
        assert [path for path in (tmp_path / "models").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("size", [None, -1])
def test_too_long_part_is_discarded(hub: HubServer, tmp_path: Path, size: int | None) -> None:
    hub.size = size
    part(tmp_path).parent.mkdir(parents=True)
    part(tmp_path).write_bytes(b"x" * (len(CONTENT) + 5))
    if size is None:
        # The partial file is longer than the complete file, so the server answers with status 416.
        assert Path(pull_model(SPEC).path).read_bytes() == CONTENT
        return
    with pytest.raises(WeightsError, match="wrong contents"):
        pull_model(SPEC)
    assert not part(tmp_path).exists()
    assert Path(pull_model(SPEC).path).read_bytes() == CONTENT


def test_file_without_a_published_digest_needs_the_digest_option(hub: HubServer) -> None:
    hub.digest = None
    with pytest.raises(WeightsError, match="--sha256"):
        pull_model(SPEC)
    with pytest.raises(WeightsError, match="64 hexadecimal"):
        pull_model(SPEC, sha256="short")
    with pytest.raises(WeightsError, match="wrong contents"):
        pull_model(SPEC, sha256="1" * 64)
    assert pull_model(SPEC, sha256=DIGEST.upper()).sha256 == DIGEST


def test_digest_that_differs_is_rejected_before_download(hub: HubServer) -> None:
    with pytest.raises(WeightsError, match=DIGEST):
        pull_model(SPEC, sha256="1" * 64)
    assert hub.gets() == []


@pytest.mark.parametrize(
    ("location", "complaint"),
    [
        ("file:///etc/passwd", "must begin with"),
        ("ftp://127.0.0.1/x", "must begin with"),
        ("http://user:pass@127.0.0.1/x", "must not contain credentials"),
        ("/again", "redirects"),
    ],
)
def test_redirects_to_other_schemes_fail(hub: HubServer, location: str, complaint: str) -> None:
    hub.digest = None
    hub.location = location
    with pytest.raises(WeightsError, match=complaint) as caught:
        pull_model(SPEC, sha256=DIGEST)
    assert "pass@" not in str(caught.value)


def test_redirect_from_https_to_http_is_rejected() -> None:
    _check_address("https://b.example/x", after="https://a.example/")
    with pytest.raises(WeightsError, match="from https to http"):
        _check_address("http://b.example/x", after="https://a.example/")


@pytest.mark.parametrize(
    ("status", "complaint"),
    [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (404, "no such file"), (500, "HTTP 500")],
)
def test_rejection_by_the_hub_has_advice(hub: HubServer, status: int, complaint: str) -> None:
    hub.status = status
    with pytest.raises(WeightsError, match=complaint) as caught:
        pull_model(SPEC)
    assert TOKEN not in str(caught.value)


def test_an_error_never_shows_a_signed_download_url(hub: HubServer) -> None:
    hub.cuts = [10, 0]
    with pytest.raises(WeightsError) as caught:
        pull_model(SPEC)
    assert "s3cret" not in str(caught.value)


def test_unreachable_hub_is_reported(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(WeightsError, match="cannot be reached"):
        pull_model(SPEC)


def test_access_token_is_not_sent_without_tls(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The hub's server also answers as the proxy through which urllib reaches hub.example.
    monkeypatch.setenv("http_proxy", hub.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    pull_model(SPEC)
    sent = [each for each in hub.asked if each.path.startswith("http://hub.example/")]
    assert [each.method for each in sent] == ["HEAD", "GET"]
    assert not [each for each in hub.asked if "authorization" in each.headers]


@pytest.mark.parametrize(
    "spec",
    [
        "hf:owner", "hf:owner/repo", "hf:owner/repo/file.bin", "hf:owner/../file.gguf",
        "hf:a/b/../../x.gguf", "hf:",
    ],
)  # fmt: skip
def test_invalid_hub_names_are_rejected(hub: HubServer, spec: str) -> None:
    with pytest.raises(WeightsError):
        pull_model(spec)
    assert hub.asked == []


def test_model_split_into_several_files_is_rejected(hub: HubServer) -> None:
    with pytest.raises(WeightsError, match="split"):
        pull_model("hf:owner/repo/model-00001-of-00002.gguf")


def test_hub_name_may_contain_a_revision_and_a_folder(hub: HubServer) -> None:
    remote = locate(load_catalog().hubs["hf"], "owner/repo@v1.2/sub dir/file.gguf")
    assert remote.url == f"{hub.url}/owner/repo/resolve/v1.2/sub%20dir/file.gguf"
    assert remote.file == "file.gguf"
    assert remote.sha256 == DIGEST
    assert remote.size == len(CONTENT)


def test_download_under_the_name_of_another_model_is_rejected(hub: HubServer) -> None:
    pull_model(SPEC)
    with pytest.raises(WeightsError, match="--name"):
        pull_model("hf:other/repo/Some-Model.Q4.gguf")
    with pytest.raises(WeightsError, match="--name"):
        pull_model("hf:other/repo/qwen.gguf")
    with pytest.raises(WeightsError, match="cannot be a model's name"):
        pull_model(SPEC, name="../evil")
    assert pull_model("hf:other/repo/Some-Model.Q4.gguf", name="mine").name == "mine"


def test_second_process_does_not_download_the_file(hub: HubServer, tmp_path: Path) -> None:
    part(tmp_path).parent.mkdir(parents=True)
    with part(tmp_path).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(WeightsError, match="another process"):
            pull_model(SPEC)
    assert pull_model(SPEC).sha256 == DIGEST

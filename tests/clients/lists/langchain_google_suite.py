"""The standard tests of langchain-tests for langchain-google-genai, unchanged.

They run in a separate environment, because this client needs another version of google-genai than
the development tools: ``URL=... MODEL=... python -m pytest langchain_google_suite.py``.
"""
# mypy: ignore-errors
# pyright: reportMissingImports=false

from __future__ import annotations

import base64
import os
from typing import Any

import httpx
import pytest
from langchain_google_genai import ChatGoogleGenerativeAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class TestGoogle(ChatModelIntegrationTests):
    @pytest.fixture(autouse=True)
    def _world(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the images that the tests would download from the internet."""
        monkeypatch.setattr(httpx, "get", lambda url, **_: httpx.Response(200, content=PNG))

    @property
    def chat_model_class(self) -> type[ChatGoogleGenerativeAI]:
        return ChatGoogleGenerativeAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": os.environ["MODEL"],
            "base_url": os.environ["URL"],
            "api_key": "x",
            "max_retries": 1,
        }

    supports_image_inputs = True
    supports_json_mode = True

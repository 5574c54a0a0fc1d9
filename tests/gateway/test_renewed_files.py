"""Test that a running gateway uses the new content of its files: models, certificate, keys."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

from ..server import answering, serve
from ..transport.certificates import Authority
from ..waiting import poll
from .serving import serving
from .test_app import BODY, post
from .test_http_protocol import app, port_of
from .test_serve import running, write_config


async def test_changed_models_are_served_without_a_signal(tmp_path: Path) -> None:
    async with serve(answering("first")) as one, serve(answering("second")) as two:
        config = Path(write_config(tmp_path, one.url))
        options = ["--config", str(config), "--model", "fast=up:m"]
        async with running(*options) as (url, _):
            path = f"{url}/v1/chat/completions"
            assert b"first" in (await post(path, BODY))[2]
            config.write_text(config.read_text().replace(one.url, two.url))
            await poll(
                lambda: post(path, BODY), lambda answer: b"second" in answer[2], "the new models"
            )


async def test_invalid_or_missing_models_file_leaves_the_models(tmp_path: Path) -> None:
    async with serve(answering("first")) as one, serve(answering("second")) as two:
        config = Path(write_config(tmp_path, one.url))
        valid = config.read_text()
        async with running("--config", str(config), "--model", "fast=up:m") as (url, process):
            path = f"{url}/v1/chat/completions"
            config.write_text("adapters: [")
            assert process.stderr is not None
            async for line in process.stderr:
                if b"was not read again" in line:
                    break
            assert b"first" in (await post(path, BODY))[2]
            config.unlink()
            assert b"first" in (await post(path, BODY))[2]
            config.write_text(valid.replace(one.url, two.url))
            await poll(
                lambda: post(path, BODY), lambda answer: b"second" in answer[2], "the new models"
            )


async def test_renewed_certificate_is_used_from_the_next_connection_on(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    trusted = ssl.create_default_context(cafile=authority.path)
    cert, key = authority.issue("127.0.0.1")
    newer_cert, newer_key = authority.issue("127.0.0.1")

    # ``serving`` would check the replies of the gateway itself with the vendors' clients.
    gateway = app()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await gateway(scope, receive, send)

    async with serving(answer, ssl_certfile=cert, ssl_keyfile=key) as url:

        async def find_serial() -> str:
            port = port_of(url)
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
            serial: str = writer.get_extra_info("peercert")["serialNumber"]
            writer.close()
            return serial

        first = await find_serial()
        Path(cert).write_bytes(Path(newer_cert).read_bytes())
        assert await find_serial() == first, "the key does not fit yet"
        Path(key).write_bytes(Path(newer_key).read_bytes())
        assert await find_serial() != first

"""A llama.cpp server in a child process that ends whenever its parent process ends."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any, Literal
from urllib.request import ProxyHandler, Request, build_opener


def is_installed() -> bool:
    """Return whether the extra that contains llama.cpp's server is installed."""
    return importlib.util.find_spec("xllamacpp") is not None


class LocalServerError(RuntimeError):
    """The server did not start. The message states the reason."""


class LocalServer:
    """Serve one model on a loopback port.

    Clients must send ``key``, which is random by default; an empty ``key`` means that no key is
    needed. ``threads`` is the number of compute threads. If it were not set, llama.cpp would use
    all cores. Its threads wait for each other in a busy loop: when another program needs a core,
    two threads are ten times slower than one.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        alias: str = "local",
        context: int = 4096,
        parallel: int = 2,
        port: int = 0,
        threads: int = 1,
        template: str = "",
        key: str | None = None,
        embeds: bool = False,
    ) -> None:
        self.alias = alias
        self.calls: Literal["native", "schema"] = "schema"
        """How tools are offered to the model.

        ``start`` sets this to ``native`` if the model's chat template supports tools.
        """
        self.key = secrets.token_urlsafe(24) if key is None else key
        self._settings = {
            "model": str(model),
            "alias": alias,
            "context": context * parallel,
            "parallel": parallel,
            "port": port,
            "threads": threads,
            "template": template,
            "key": self.key,
            "embeds": embeds,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def start(self) -> str:
        """Start the child process, wait until the model is loaded, return the address."""
        if not Path(str(self._settings["model"])).is_file():
            raise LocalServerError(f"the model file {self._settings['model']} does not exist")
        if not is_installed():
            raise LocalServerError(
                "the local server is not installed; run: pip install 'dragoman[local]'"
            )
        process = self.launch()
        assert process.stdout is not None
        line, _, knows_tools = process.stdout.readline().decode().strip().partition(" ")
        if not line.startswith("http://"):
            reason = self._read_error()
            self.stop()
            raise LocalServerError(f"the local server did not start: {reason}")
        self.calls = "native" if knows_tools else "schema"
        return line

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the child process without waiting for the model to be loaded."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dragoman.local.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # use a separate session, so that Ctrl-C in a chat stops the reply and not the server
            start_new_session=True,
        )
        assert self._process.stdin is not None
        # If the child process died at once, its standard error has the reason.
        with contextlib.suppress(BrokenPipeError):
            # The settings are passed on standard input, because every user of the machine can read
            # the arguments of a process.
            self._process.stdin.write(json.dumps(self._settings).encode() + b"\n")
            self._process.stdin.flush()
        return self._process

    def is_alive(self) -> bool:
        """Return whether the child process is running."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Kill the child process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def __del__(self) -> None:
        self.stop()

    def _read_error(self) -> str:
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
        if self._errors is None:
            return "unknown reason"
        self._errors.seek(0)
        lines = self._errors.read()[-4000:].decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else "unknown reason"


def _serve() -> None:
    """Run in the child process: read the settings, serve, exit when the parent closes the pipe."""
    # Imported here, since the import is slow and only the child process needs it.
    import xllamacpp  # type: ignore[import-untyped]

    settings: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    params = xllamacpp.CommonParams()  # pyright: ignore[reportAttributeAccessIssue] - an extension module
    params.model.path = settings["model"]
    params.model_alias = {settings["alias"]}
    params.n_ctx = settings["context"]
    params.n_parallel = settings["parallel"]
    params.hostnames = ["127.0.0.1"]
    params.port = settings["port"]
    params.api_keys = [settings["key"]] if settings["key"] else []
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    # llama.cpp's default lets every web page read the replies
    params.cors_origins = "http://localhost"
    params.use_jinja = True
    if settings["embeds"]:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN  # pyright: ignore[reportAttributeAccessIssue]
        # llama.cpp rejects texts that exceed these batch sizes, with status 500
        params.n_batch = params.n_ubatch = settings["context"]
    params.chat_template = settings["template"]
    params.warmup = False
    params.ui = False
    server = xllamacpp.Server(params)  # pyright: ignore[reportAttributeAccessIssue]
    knows_tools = " tools" if _knows_tools(server.listening_address, settings["key"]) else ""
    sys.stdout.write(f"{server.listening_address}{knows_tools}\n")
    sys.stdout.flush()
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)


def _knows_tools(address: str, key: str) -> bool:
    """Ask the server whether the model's chat template supports tools."""
    request = Request(f"{address}/props", headers={"Authorization": f"Bearer {key}"})  # noqa: S310 - the URL of our own server
    with build_opener(ProxyHandler({})).open(request, timeout=60) as reply:
        return bool(json.load(reply).get("chat_template_caps", {}).get("supports_tools"))


if __name__ == "__main__":
    _serve()

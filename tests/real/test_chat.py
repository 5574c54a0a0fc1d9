"""Test ``dragoman chat`` at a real terminal with a real server and a model with random weights."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from ..cli.terminal import Terminal
from .tiny import write_model


def test_chat_command_answers_with_a_real_model(tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny.gguf")
    with Terminal("chat", f"local:{model}") as terminal:
        terminal.see(">")
        terminal.type("Say something.\r")
        terminal.drain(3)  # discard the answer: a small model may print any character
        terminal.type("/cost\r")
        assert "1 answer," in terminal.see("free", 60)
        terminal.see(">")
        children = psutil.Process(terminal.process.pid).children(recursive=True)
        assert children  # the child process is the model's server
        terminal.type("/exit\r")
        assert terminal.wait() == 0
    deadline = time.monotonic() + 10
    while any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children):
        assert time.monotonic() < deadline, "the server is left behind"

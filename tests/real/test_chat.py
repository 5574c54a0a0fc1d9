"""Test ``dragoman chat`` at a real terminal with a real server and a model with random weights."""

from pathlib import Path

import psutil

from ..cli.terminal import Terminal
from ..waiting import block_until


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_chat_command_answers_with_a_real_model(tiny: Path) -> None:
    with Terminal("chat", f"local:{tiny}") as terminal:
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
    block_until(lambda: not any(map(_runs, children)), "the end of the server of the model")

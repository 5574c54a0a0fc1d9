"""A session in a process that is killed, again and again, and taken up by the next.

    python living_process.py FOLDER

For every line on standard input, a session's name, a new process runs that session, or takes it up. It says
``ready PID``, then one line for every record once it is on disk (``seq hash``), and when it has ended, by
whatever means, ``end STATUS`` comes after them. Every run of the tool leaves a line in ``FOLDER/effects``.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from dragoman.events import Assembler, Event
from dragoman.log import LogRecord, SqliteLog
from dragoman.messages import Assistant, Request, new_ulid
from dragoman.permission import Policy, Rule
from dragoman.provider import Provider
from dragoman.session import Session
from dragoman.tools import tool

TURNS = 6


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")  # at once, and whole: a kill cannot cut it in two


class Busy(Provider):
    """Proposes something new in every turn, and answers in the last."""

    name, model = "busy", "m"

    async def events(self, request: Request) -> AsyncIterator[Event]:
        turns = sum(isinstance(message, Assistant) for message in request.messages)
        out = Assembler(request_id=request.request_id, model=self.model, provider=self.name)
        out.start()
        out.text("On we go.")
        calls = 0 if turns >= TURNS else 1 + turns % 3
        for number in range(calls):
            out.tool_start(number, f"call_{number}", "peek" if turns % 2 else "mark")
            out.tool_input(number, f'{{"token": "{new_ulid()}"}}')
            out.block_end(number)
        out.finish("tool_calls" if calls else "stop")
        for event in out.take():
            yield event
            await asyncio.sleep(0)


async def live(folder: Path, name: str) -> None:
    effects = os.open(folder / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def act(token: str) -> str:
        os.write(effects, f"{token}\n".encode())
        return f"did {token}"

    async def mark(token: str) -> str:
        """Leave a mark."""
        if random.random() < 0.5:
            await asyncio.sleep(0)
        return act(token)

    def peek(token: str) -> str:
        """Leave a mark too, from a thread."""
        return act(token)

    tools = [tool(side_effect="write")(mark), tool(side_effect="read")(peek)]
    with SqliteLog(folder / "log.db") as log:
        say(f"ready {os.getpid()}")

        def watch(record: LogRecord) -> None:
            say(f"{record.seq} {record.hash}")

        policy = Policy([Rule("allow")])
        if any(entry.session == name for entry in log.sessions()):
            session = await Session.resume(Busy(), tools, policy, log, name, on_record=watch)
            if session.state.finished is None:  # else it was killed when all was said
                await session.run()
        else:
            await Session(Busy(), tools, policy, log, session_id=name, on_record=watch).run("Go on for a while.")


def serve(folder: Path) -> None:
    """Fork the sessions from here, where everything is imported already."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            asyncio.run(live(folder, line.strip()))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        say(f"end {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    serve(Path(sys.argv[1]))

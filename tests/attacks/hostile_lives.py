"""Run sessions in processes that are killed, paused and started twice, then check the log.

``python -m tests.attacks.hostile_lives`` reads lines of JSON: ``[PLACE, FOLDER, SEED, SESSIONS,
KILLS, RUNNERS]``. For each it prints a ``Tally`` as JSON.

A session pays invoices. If a result states that a payment did not run, the model proposes the
invoice again; if the outcome is unknown, it continues with the next invoice. So every invoice must
be paid at most once. The model also calls a tool that does not exist. Context policies summarise
old turns and omit old results, and an approver edits every payment that needs approval. With two
RUNNERS, each process is started on the same session while the other one is alive: it takes the
session over or is rejected. Signals pause and continue both processes. If the log is a file, its
lock file is deleted from time to time, as programs that clean temporary folders do.
"""

import asyncio
import collections
import os
import random
import re
import select
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

import dragoman as d
from dragoman import log as logs
from dragoman.events import Assembler
from dragoman.permission import Decision, Proposal, Verdict
from dragoman.replay import read_steps
from dragoman.session import ContextPolicy
from dragoman.tools import tool

from ..session.playing import check_evidence, of, types

INVOICES = 9
# exit codes of a process that was rejected or that lost its session
REFUSED = 3
FENCED = 4
WINDOW = 3_000  # the model's context window in tokens: a few payments fill it
RECEIPT = "with a receipt of many words " * 90
# A process is killed after at most this many records, about half of a complete session.
RECORDS = 50
SETTLED = "settled:"  # each summary that the model writes begins with this


class Tally(msgspec.Struct):
    """Count the interruptions of all sessions and what their logs contain afterwards, and list
    every violation.
    """

    sessions: int = 0
    lives: int = 0
    kills: int = 0
    pauses: int = 0
    locks_deleted: int = 0
    takeovers: int = 0
    refused: int = 0
    fenced: int = 0
    acknowledged: int = 0
    payments: int = 0
    unknown_outcomes: int = 0
    projections: int = 0
    summaries: int = 0
    edits: int = 0
    rejections: int = 0
    # Each list collects one kind of violation and must stay empty.
    lost: list[str] = []
    paid_twice: list[str] = []
    unrecorded: list[str] = []
    problems: list[str] = []


def open_place(place: str, *, readonly: bool = False) -> logs.EventLog:
    return (logs.PostgresLog if "host=" in place else logs.SqliteLog)(place, readonly=readonly)


# --- a life: one process that runs or resumes one session --------------------------------------


class Payer(d.Provider):
    """A model that proposes one to three unpaid invoices at a time, and answers when all are
    paid.
    """

    name = "payer"
    model = "m"
    capabilities = d.Capabilities.of({"max_context_tokens": WINDOW})

    async def events(self, request: d.Request) -> AsyncIterator[d.Event]:
        out = Assembler(request_id=request.request_id, model=self.model, provider=self.name)
        out.start()
        if not request.tools:
            out.text(
                " ".join([SETTLED, *map(str, sorted(_read_transcript(request.messages[-1].text)))])
            )
            out.finish("stop")
        else:
            self._propose(request, out)
        for event in out.take():
            yield event
            await asyncio.sleep(0)

    def _propose(self, request: d.Request, out: Assembler) -> None:
        turns = 0
        settled = set[int]()
        asked: dict[str, int] = {}
        for message in request.messages:
            if isinstance(message, d.User):
                settled |= _read_transcript(message.text)
            elif isinstance(message, d.Assistant):
                turns += 1
                asked.update(
                    {
                        call.id: call.arguments["invoice"]
                        for call in message.tool_calls
                        if call.arguments
                    }
                )
            elif isinstance(message, d.ToolResult) and not str(message.content).startswith(
                "Not run"
            ):
                settled.add(asked[message.tool_call_id])
        due = [number for number in range(INVOICES) if number not in settled][: 1 + turns % 3]
        out.text("Next.")
        for place, number in enumerate(due):
            # Use the same call ids in every turn, as some servers do.
            out.tool_start(place, f"call_{place}", "transfer" if turns % 2 else "pay")
            out.tool_input(place, f'{{"invoice": {number}}}')
            out.block_end(place)
        if due and turns % 2:
            out.tool_start("odd", "call_odd", "fly")
            out.tool_input("odd", '{"invoice": -1}')
            out.block_end("odd")
        out.finish("tool_calls" if due else "stop")


def _read_transcript(text: str) -> set[int]:
    """Return the invoices that a transcript or a summary reports as paid.

    A transcript does not show which result belongs to which call, so a payment counts for all
    calls of the same turn.
    """
    found = {
        int(number)
        for line in text.splitlines()
        if line.startswith(SETTLED)
        for number in line.split()[1:]
    }
    for turn in text.split("ASSISTANT: ")[1:]:
        results = re.findall(r"^TOOL RESULT: (.*)", turn, re.MULTILINE)
        if not all(result.startswith("Not run") for result in results):
            found |= {
                int(number)
                for number in re.findall(r'^CALLS .*"invoice": ?(-?\d+)', turn, re.MULTILINE)
            }
    return found


def choose_policies(name: str) -> list[ContextPolicy]:
    """Return the context policies of a session; in every second session, one policy drops old tool
    results.
    """
    if int(name.rpartition("-")[2]) % 2:
        return [d.DropOldToolResults(keep=1), d.Summarise(keep=1)]
    return [d.Summarise(keep=1)]


async def live(place: str, folder: Path, name: str, acknowledge: int, *, takeover: bool) -> None:
    payments = os.open(folder / "payments", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def pay(invoice: int, memo: str = "") -> str:
        """Pay an invoice. Calls of this tool run one after the other."""
        await asyncio.sleep(random.uniform(0, 0.004))
        os.write(payments, f"{name}/{invoice}\n".encode())
        await asyncio.sleep(random.uniform(0, 0.004))
        return f"paid {memo} " + RECEIPT

    def transfer(invoice: int) -> str:
        """Pay an invoice from a thread. Several calls of this tool run at once."""
        time.sleep(random.uniform(0, 0.002))
        os.write(payments, f"{name}/{invoice}\n".encode())
        # A kill during this pause leaves a payment without a result.
        time.sleep(random.uniform(0, 0.01))
        return "paid " + RECEIPT

    def edit(proposal: Proposal, verdict: Verdict) -> Decision:
        return Decision(True, "ann", input={**proposal.input, "memo": "looked at"})

    def watch(record: logs.LogRecord) -> None:
        os.write(acknowledge, f"{name} {record.seq} {record.hash}\n".encode())

    # It counts as a read, so that its calls run at once; it must not run again after a kill.
    once = tool(side_effect="read", on_resume=lambda intent: None)
    tools = [tool(side_effect="write")(pay), once(transfer)]
    policy = d.Policy([d.Rule("allow", tool="transfer")])
    settings: dict[str, Any] = {
        "on_record": watch,
        "approve": edit,
        "context": choose_policies(name),
    }
    with open_place(place) as log:
        if next(log.read(name), None) is None:
            session = d.Session(Payer(), tools, policy, log, session_id=name, **settings)
            await session.run("Pay everything.")
            return
        session = await d.Session.resume(
            Payer(), tools, policy, log, name, takeover=takeover, **settings
        )
        # A session that was killed after its last record is already finished.
        if session.state.finished is None:
            await session.run()


def run_child(place: str, folder: Path, name: str, acknowledge: int, *, takeover: bool) -> int:
    random.seed()
    try:
        asyncio.run(live(place, folder, name, acknowledge, takeover=takeover))
    except logs.LogLockedError:
        return REFUSED
    except logs.LogConflictError:
        return FENCED
    except BaseException as error:
        # If two processes find an empty log, the second one is rejected, because the first has
        # created the session by then.
        return REFUSED if "there is a session" in str(error) else _report(error)
    return 0


def _report(error: BaseException) -> int:
    os.write(2, f"{type(error).__name__}: {error}\n".encode())
    return 1


# --- killing and pausing the session processes -------------------------------------------------


class World:
    """Starts session processes, kills or pauses them, and stores the records that they
    acknowledged.
    """

    def __init__(self, place: str, folder: Path, seed: int, runners: int) -> None:
        self.place = place
        self.folder = folder
        self.runners = runners
        self.draw = random.Random(seed)
        self.tally = Tally()
        self.acknowledged: list[tuple[str, int, str]] = []
        # For each process: the reading end of its pipe, and the bytes received so far.
        self.pipes: dict[int, tuple[int, bytearray]] = {}
        self.stopped: set[int] = set()
        self.silent: set[int] = set()  # processes that closed their pipe and are about to exit

    def play(self, name: str, kills: int) -> None:
        """Run one session until it is finished, and kill its processes at most ``kills`` times."""
        self.tally.sessions += 1
        finished = False
        for moment in range(3000):
            calm = moment > 60 or self.tally.kills >= kills
            while not finished and len(self.pipes) < (1 if calm else self.runners):
                self.start(name, takeover=bool(self.pipes) and self.draw.random() < 0.7)
            self.listen(
                self.draw.randrange(RECORDS) if self.runners == 1 else self.draw.randrange(10)
            )
            if calm or finished:
                self.let_go()
            else:
                self.disturb()
            finished = self.reap() or finished
            if finished and not self.pipes:
                return
        self.tally.problems.append(f"{name}: did not come to an end")

    def start(self, name: str, *, takeover: bool) -> None:
        self.tally.lives += 1
        self.tally.takeovers += takeover
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            os._exit(run_child(self.place, self.folder, name, write, takeover=takeover))
        os.close(write)
        self.pipes[pid] = read, bytearray()

    def disturb(self) -> None:
        victim = self.draw.choice(list(self.pipes))
        act = self.draw.random()
        in_file = "host=" not in self.place
        if self.runners == 1 or act < 0.1:
            os.kill(victim, signal.SIGKILL)
            return
        self.let_go()
        if act < 0.6:
            self.tally.pauses += 1
            os.kill(victim, signal.SIGSTOP)
            self.stopped.add(victim)
        if in_file and self.draw.random() < 0.5:
            self.tally.locks_deleted += 1
            Path(f"{self.place}.lock").unlink(missing_ok=True)

    def let_go(self) -> None:
        for pid in self.stopped:
            os.kill(pid, signal.SIGCONT)
        self.stopped.clear()

    def listen(self, records: int) -> None:
        """Wait until a number of further records is acknowledged, a process ends, or no record
        arrives for a while.
        """
        until = sum(came.count(b"\n") for _, came in self.pipes.values()) + records
        while sum(came.count(b"\n") for _, came in self.pipes.values()) < until:
            ready, _, _ = select.select(
                [end for end, _ in self.pipes.values()], [], [], 0.1 if self.stopped else 1
            )
            if not ready:
                return
            for pid in [pid for pid, (end, _) in self.pipes.items() if end in ready]:
                if not self._read(pid):
                    self.silent.add(pid)
            if self.silent:
                return
        # Wait a moment, so that the kill hits the process while it acts on its last record.
        time.sleep(self.draw.uniform(0, 0.003))

    def _read(self, pid: int) -> bytes:
        end, came = self.pipes[pid]
        data = os.read(end, 65536)
        came += data
        return data

    def reap(self) -> bool:
        """Collect the processes that ended; return whether one of them finished the session."""
        finished = False
        for pid in list(self.pipes):
            ended, status = os.waitpid(pid, 0 if pid in self.silent else os.WNOHANG)
            if not ended:
                continue
            self.silent.discard(pid)
            while self._read(pid):
                pass
            end, came = self.pipes.pop(pid)
            os.close(end)
            self.stopped.discard(pid)
            for line in came.decode().splitlines():
                name, seq, digest = line.split()
                self.acknowledged.append((name, int(seq), digest))
            code = os.waitstatus_to_exitcode(status)
            finished = finished or code == 0
            self._count(code)
        return finished

    def _count(self, code: int) -> None:
        names = {-9: "kills", REFUSED: "refused", FENCED: "fenced"}
        if code in names:
            setattr(self.tally, names[code], getattr(self.tally, names[code]) + 1)
        elif code != 0:
            self.tally.problems.append(f"a life ended with {code}")

    # The following methods check the records of the log.

    def check(self, names: list[str]) -> Tally:
        tally = self.tally
        with open_place(self.place, readonly=True) as log:
            report = log.verify()
            if not report.ok:
                tally.problems.append(str(report))
            held = {name: list(log.read(name)) for name in names}
            for name in names:
                tally.problems += [
                    f"{name}: {note}" for step in read_steps(log, name) for note in step.notes
                ]
        path = self.folder / "payments"
        paid = collections.Counter(path.read_text().split() if path.exists() else [])
        digests = {(name, record.seq): record.hash for name in names for record in held[name]}
        started = {
            f"{name}/{it.input['invoice']}"
            for name in names
            for it in of(held[name], "tool.started")
        }
        tally.acknowledged = len(self.acknowledged)
        tally.payments = paid.total()
        tally.lost = [
            f"{name} {seq}"
            for name, seq, digest in self.acknowledged
            if digests.get((name, seq)) != digest
        ]
        tally.paid_twice = [f"{invoice} x{times}" for invoice, times in paid.items() if times > 1]
        tally.unrecorded = sorted(set(paid) - started)
        for name in names:
            self._check_session(name, held[name], paid)
        return tally

    def _check_session(
        self, name: str, records: list[logs.LogRecord], paid: collections.Counter[str]
    ) -> None:
        try:
            check_evidence(records)
        except AssertionError as error:
            self.tally.problems.append(f"{name}: {error}")
        if types(records)[-1] != "session.finished":
            self.tally.problems.append(f"{name}: not finished")
        proposed = {it.id: it.input["invoice"] for it in of(records, "tool_intent.proposed")}
        for observed in of(records, "tool.observed"):
            if f"{name}/{proposed[observed.intent_id]}" not in paid:
                self.tally.problems.append(f"{name}: observed and never paid")
        results = [
            it.message
            for it in of(records, "message.recorded")
            if isinstance(it.message, d.ToolResult)
        ]
        self.tally.unknown_outcomes += sum(
            "Interrupted, and what it did" in str(it.content) for it in results
        )
        self.tally.projections += len(of(records, "context.projected"))
        self.tally.summaries += len(of(records, "context.summarised"))
        self.tally.edits += sum(it.input is not None for it in of(records, "permission.granted"))
        self.tally.rejections += len(of(records, "tool_intent.rejected"))
        for began in of(records, "tool.started"):
            if began.tool_name == "pay" and began.input.get("memo") != "looked at":
                self.tally.problems.append(f"{name}: ran without the edit")
        epochs = [it.epoch for it in of(records, "session.resumed")]
        if epochs != list(range(2, len(epochs) + 2)):
            self.tally.problems.append(f"{name}: epochs {epochs}")


def main(place: str, folder: str, seed: int, sessions: int, kills: int, runners: int) -> Tally:
    open_place(place).close()
    world = World(place, Path(folder), seed, runners)
    names: list[str] = []
    while len(names) < sessions or (runners == 1 and world.tally.kills < kills):
        names.append(f"s{seed}-{len(names)}")
        world.play(names[-1], kills)
    try:
        return world.check(names)
    except logs.LogError as error:
        world.tally.problems.append(f"{type(error).__name__}: {error}")
        return world.tally


if __name__ == "__main__":
    for line in sys.stdin:
        print(msgspec.json.encode(main(*msgspec.json.decode(line))).decode(), flush=True)

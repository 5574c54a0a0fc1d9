"""Append records until the process is killed, and print which appends were acknowledged.

    python writing_process.py WHERE THREADS     one writer; a failed append ends it with the error's name
    python writing_process.py WHERE             a new writer for every number of threads read from stdin

The output has one line per acknowledged record: session, seq, hash. The line ``ready PID`` comes
before them. In the second form, the line ``end STATUS`` follows when a writer has ended or was
killed.
"""

import os
import sys
import threading

from dragoman.log import EventLog, LogError, ToolObserved, open_log


def say(line: str) -> None:
    # Write each line with one unbuffered call, so that killing the process cannot cut a line in
    # two.
    os.write(1, line.encode() + b"\n")


def append_for_ever(log: EventLog, number: int) -> None:
    try:
        for turn in range(1 << 30):
            payload = ToolObserved(
                intent_id=f"tu_{number}_{turn}", tool_name="bash", content="x" * (turn * 37 % 900)
            )
            record = log.append_sync(f"s{(number + turn) % 3}", payload)
            say(f"{record.session} {record.seq} {record.hash}")
    except LogError as error:
        say(f"! {type(error).__name__} {error}")


def write(where: str, threads: int) -> None:
    with open_log(where) as log:
        say(f"ready {os.getpid()}")
        started = [
            threading.Thread(target=append_for_ever, args=(log, number))
            for number in range(threads)
        ]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()


def serve(where: str) -> None:
    """Fork the writers from this process, which has already imported everything."""
    if where.startswith("postgresql:"):
        import psycopg  # noqa: F401
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            write(where, int(line))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        say(f"end {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        write(sys.argv[1], int(sys.argv[2]))
    else:
        serve(sys.argv[1])

"""Erase the content of a log record by record, and print the number of each record that is gone."""

import sys

from dragoman.log import SqliteLog

with SqliteLog(sys.argv[1]) as log:
    for number in range(int(sys.argv[2]), int(sys.argv[3]) + 1):
        log.erase("s", [number], reason="on request")
        print(number, flush=True)

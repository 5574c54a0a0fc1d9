"""Run the command-line interface: as ``python -m dragoman``, and as the program ``dragoman``."""

import importlib
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command that the arguments name.

    The commands are imported here, so that Ctrl-C during the import ends like one during a
    command.
    """
    try:
        run = importlib.import_module("dragoman.cli").main
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201 - there is no click yet
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()

"""Run the command-line interface as ``python -m dragoman``."""

from .cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()

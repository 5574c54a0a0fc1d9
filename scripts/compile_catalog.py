"""Write ``catalog/compiled.json``: the parsed YAML files of the vendors, so that they are not parsed at run time.

Each is kept with the digest of the file it was read from. A file that differs is parsed instead, so a
forgotten run of this script costs time and nothing else; a test complains of it.
"""

from pathlib import Path

from dragoman.registry.vendors import compile_catalog


def main() -> None:
    path = Path(__file__).parents[1] / "src" / "dragoman" / "catalog" / "compiled.json"
    path.write_bytes(compile_catalog())
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()

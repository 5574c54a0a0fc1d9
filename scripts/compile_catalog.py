"""Write ``catalog/compiled.json``: the parsed YAML files of the vendors, so that they are not
parsed at run time.

Each parsed file is stored with the digest of its source file. A file that has changed since is
parsed at run time instead, so forgetting to run this script only costs time; a test reports it.
"""

from pathlib import Path

from dragoman.registry.vendors import compile_catalog


def main() -> None:
    path = Path(__file__).parents[1] / "src" / "dragoman" / "catalog" / "compiled.json"
    path.write_bytes(compile_catalog())
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()

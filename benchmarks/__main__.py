"""`make bench`: every benchmark in turn, or the ones that are named: `python -m benchmarks worker filters`."""

import argparse
import ast
import importlib
import sys
from pathlib import Path

from benchmarks import table


def main() -> None:
    """Run them."""
    known = _benchmarks()
    lines = "".join(f"\n  {name:<16}{first}" for name, first in known.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"Run benchmarks, one after the other:\n{lines}",
        epilog="For the options of one: python -m benchmarks.NAME --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="name", help="without any, all of them")
    chosen = parser.parse_args().names or list(known)
    if unknown := sorted(set(chosen) - known.keys()):
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(known)}")
    print(table.conditions(), flush=True)
    for name in chosen:
        print(f"== {name}", flush=True)
        sys.argv = [name]  # a benchmark's own options are for `python -m benchmarks.NAME`
        importlib.import_module(f"benchmarks.{name}").main()


def _benchmarks() -> dict[str, str]:
    """Return what each benchmark measures, by its name."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        module = ast.parse(path.read_text())
        if any(isinstance(each, ast.FunctionDef) and each.name == "main" for each in module.body):
            first = (ast.get_docstring(module) or "").partition("\n")[0]
            found[path.stem] = first.partition(" `")[0].rstrip(":.")
    return found


if __name__ == "__main__":
    main()

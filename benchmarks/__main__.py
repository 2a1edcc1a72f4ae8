"""`make bench`: every benchmark in turn, or the ones that are named: `python -m benchmarks worker filters`."""

import importlib
import pkgutil
import sys
from pathlib import Path

from benchmarks import table


def main() -> None:
    """Run them."""
    here = Path(__file__).parent
    known = sorted(module.name for module in pkgutil.iter_modules([str(here)]) if module.name != "__main__")
    chosen = sys.argv[1:] or known
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        sys.exit(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(known)}")
    print(table.conditions(), flush=True)
    for name in chosen:
        module = importlib.import_module(f"benchmarks.{name}")
        if hasattr(module, "main"):  # what has none is shared by the others
            print(f"== {name}", flush=True)
            sys.argv = [name]  # a benchmark's own options are for `python -m benchmarks.NAME`
            module.main()


if __name__ == "__main__":
    main()

"""Compare the public API with its snapshot, `docs/public-api.txt`, or write the snapshot again.

    python tools/public_api.py           # exit 1 and print the difference where the API differs from the snapshot
    python tools/public_api.py --write   # write the snapshot

The snapshot has one line for each public name and each public member of a class, with its signature. The sources are
read and not imported.
"""

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parent.parent
SNAPSHOT = ROOT / "docs" / "public-api.txt"
MODULES = (
    "rocketshim",
    "rocketshim.errors",
    "rocketshim.filters",
    "rocketshim.dropin",
    "rocketshim.aio",
    "rocketshim.codecs",
    "rocketshim.compat.rocketmq.client",
    "rocketshim.compat.rocketmq.consts",
    "rocketshim.compat.rocketmq.exceptions",
    "rocketshim.contrib.asgi",
    "rocketshim.contrib.django",
    "rocketshim.contrib.opentelemetry",
    "rocketshim.harness",
    "rocketshim.local",
    "rocketshim.testing",
    "rocketshim.timers",
    "rocketshim.transactions",
    "rocketshim_topics",
    "rocketshim_topics.provision",
)
"""Modules that users import from. What any other module holds is internal."""


def main() -> int:
    """Compare or write; return the exit code."""
    modules = _load()
    lines = [line for path in MODULES for line in _module(modules, path)]
    if "--write" in sys.argv[1:]:
        SNAPSHOT.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return 0
    before = SNAPSHOT.read_text(encoding="utf-8").splitlines()
    difference = list(difflib.unified_diff(before, lines, "docs/public-api.txt", "the sources", lineterm="", n=0))
    if difference:
        print("\n".join(difference))
        print("The public API has changed: make public-api")
        return 1
    return 0


def _load() -> griffe.ModulesCollection:
    loader = griffe.GriffeLoader(search_paths=[str(ROOT / part) for part in ("topics", "shim")], allow_inspection=False)
    for package in {*(path.partition(".")[0] for path in MODULES), "rocketshim_local"}:
        loader.load(package)
    loader.resolve_aliases(implicit=True, external=False)
    return loader.modules_collection


def _module(modules: griffe.ModulesCollection, path: str) -> Iterator[str]:
    module = modules[path]
    exports = module["_exports"] if module.exports is None and "_exports" in module.members else module
    for name in sorted(map(str, exports.exports or ())):
        member = exports.members.get(name)
        if member is None or (member.is_alias and not _is_ours(member)):
            yield f"{path}.{name}"
        else:
            yield from _lines(f"{path}.{name}", member)


def _is_ours(alias: griffe.Object | griffe.Alias) -> bool:
    """Return whether an imported name is made in our packages."""
    try:
        return bool(alias.final_target)  # type: ignore[union-attr]  # an alias has one
    except (griffe.AliasResolutionError, griffe.CyclicAliasError):
        return False


def _lines(path: str, item: griffe.Object | griffe.Alias) -> Iterator[str]:
    if item.is_alias:
        item = item.final_target  # type: ignore[union-attr]  # an alias has one
    if isinstance(item, griffe.Function):
        yield f"{path}{str(item.signature(return_type=True) or '').removeprefix(item.name)}"
    elif isinstance(item, griffe.Class):
        bases = ", ".join(map(str, item.bases))
        yield f"{path}({bases}):" if bases else f"{path}:"
        for name, member in sorted(item.members.items()):
            if name == "__init__" or not name.startswith("_"):
                yield from _lines(f"{path}.{name}", member)
    else:
        annotation = getattr(item, "annotation", None)
        yield f"{path}: {annotation}" if annotation is not None else path


if __name__ == "__main__":
    sys.exit(main())

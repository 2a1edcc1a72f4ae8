"""Measure the size and the structure of the sources, and hold each measure at its limit: `python -m tools.measures`.

`tools/measures.json` has the limits. A measure above its limit fails; one below it is named, and `--write` lowers the
limit to it. `--write` never raises a limit.
"""

import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from rocketshim._exports import HOMES
from tools.journey import files

ROOT: Final = Path(__file__).parents[1]
LIMITS: Final = ROOT / "tools" / "measures.json"
SOURCES: Final = {
    "rocketshim_topics": ROOT / "topics",
    "rocketshim": ROOT / "shim",
    "rocketshim_local": ROOT / "shim",
    "rocketshim_spark": ROOT / "spark",
}
MOST_OVERRIDDEN: Final = 10
Modules = dict[str, ast.Module]


def main(arguments: list[str]) -> int:
    """Print every measure with its limit; return 1 if one is above it."""
    limits: dict[str, int] = json.loads(LIMITS.read_text())
    found = measures()
    for name, value in found.items():
        limit = limits.get(name, value)
        note = "" if value == limit else f"  ABOVE the limit of {limit}" if value > limit else f"  (limit {limit})"
        print(f"{value:6}  {name}{note}")
    lowered = {name: min(value, limits.get(name, value)) for name, value in found.items()}
    if "--write" in arguments:
        LIMITS.write_text(json.dumps(lowered, indent=2) + "\n")
    elif lowered != limits:
        print("Lower the limits in tools/measures.json: python -m tools.measures --write")
    return int(any(value > limits.get(name, value) for name, value in found.items()))


def measures() -> dict[str, int]:
    """Return every measure by name."""
    paths = {path: path.read_text() for package, root in SOURCES.items() for path in (root / package).rglob("*.py")}
    modules = {_module_name(path): ast.parse(text) for path, text in paths.items()}
    return {
        "names that `from rocketshim import ...` offers": len(HOMES),
        "untyped names at the front door": sum(_is_untyped(*each, modules) for each in HOMES.items()),
        f"classes with more than {MOST_OVERRIDDEN} overridden members of a base class": sum(
            count > MOST_OVERRIDDEN for count in _overridden(modules)
        ),
        "import circles between files": len(_circles(_imports(modules))),
        "files that a delayed message passes from send to dead letter": len(files()),
    }


def _module_name(path: Path) -> str:
    package = next(root for name, root in SOURCES.items() if path.is_relative_to(root / name))
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_untyped(name: str, where: str, modules: Modules) -> bool:
    """Return whether a type checker takes a name for `Any`: nothing binds it, or a parameter has no annotation."""
    for node in modules[where].body if where in modules else ():
        match node:
            case ast.ImportFrom(module=str(source), names=names):
                for each in names:
                    if name == (each.asname or each.name):
                        return _is_untyped(each.name, source, modules)
            case ast.ClassDef(name=found) if found == name:
                methods = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
                return any(_lacks_annotations(each) for each in methods if each.name[0] != "_")
            case ast.FunctionDef(name=found) | ast.AsyncFunctionDef(name=found) if found == name:
                return _lacks_annotations(node)
            case ast.Assign(targets=[ast.Name(id=found)]) | ast.AnnAssign(target=ast.Name(id=found)) if found == name:
                return False
    return True


def _lacks_annotations(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    return function.returns is None or any(each.annotation is None for each in named if each.arg not in {"self", "cls"})


def _overridden(modules: Modules) -> Iterator[int]:
    """Yield for each class how many methods it overrides, of all the project classes that it inherits from."""
    classes = {
        node.name: node for module in modules.values() for node in ast.walk(module) if isinstance(node, ast.ClassDef)
    }

    def methods(node: ast.ClassDef) -> set[str]:
        functions = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
        return {each.name for each in functions if not each.name.startswith("__")}

    def inherited(node: ast.ClassDef, seen: set[str]) -> set[str]:
        found: set[str] = set()
        for base in node.bases:
            name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base).rpartition(".")[2]
            if name in classes and name not in seen:
                seen.add(name)
                found |= methods(classes[name]) | inherited(classes[name], seen)
        return found

    for node in classes.values():
        yield len(methods(node) & inherited(node, {node.name}))


def _imports(modules: Modules) -> dict[str, set[str]]:
    """Return the modules that each module imports, also inside functions, but not for type checkers only."""
    graph: dict[str, set[str]] = {}
    for name, module in modules.items():
        found = set()
        for node in _executed(module):
            if isinstance(node, ast.Import):
                found |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                full = {f"{node.module}.{each.name}" for each in node.names}
                found |= {each if each in modules else node.module for each in full}
        graph[name] = (found & modules.keys()) - {name}
    return graph


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from chain.from_iterable(_executed(each) for each in child.orelse)
            continue
        yield child
        yield from _executed(child)


def _circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules that import each other, directly or not."""
    reached: dict[str, set[str]] = defaultdict(set)
    for start, imported in graph.items():
        waiting = [*imported]
        while waiting:
            name = waiting.pop()
            if name not in reached[start]:
                reached[start].add(name)
                waiting.extend(graph[name])
    in_circles = [name for name in graph if name in reached[name]]
    circles = dict.fromkeys(
        frozenset(other for other in reached[name] if name in reached[other]) for name in in_circles
    )
    return [set(circle) for circle in circles]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

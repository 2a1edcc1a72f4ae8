"""Measure what a reader of the sources must keep in mind, and hold each measure at its limit.

    python -m tools.measures

`tools/measures.json` has the limits. A measure above its limit fails; one below it is named, and `--write` lowers the
limit to it. `--write` never raises a limit. A measure without a limit is only printed: what a hand-over enters depends
on how its threads meet.

What a new feature needs stands under `features`, by its name, and is added to the limits. So a feature has its price in
view, and the rest of the house still may only shrink.
"""

import ast
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rocketshim._exports import HOMES
from tools.journey import delayed_message, drop_in, entered, files, orderly_hand_over

ROOT: Final = Path(__file__).parents[1]
LIMITS: Final = ROOT / "tools" / "measures.json"
SOURCES: Final = {
    "rocketshim_topics": ROOT / "topics",
    "rocketshim": ROOT / "shim",
    "rocketshim_local": ROOT / "shim",
    "rocketshim_spark": ROOT / "spark",
}
MOST_OVERRIDDEN: Final = 10
FEATURES: Final = "features"
Modules = dict[str, ast.Module]


def main(arguments: list[str]) -> int:
    """Print every measure with its limit; return 1 if one is above it."""
    written: dict[str, int] = json.loads(LIMITS.read_text())
    features: Any = written.pop(FEATURES, {})
    added: Counter[str] = sum(map(Counter, features.values()), Counter())
    limits = {name: limit + added[name] for name, limit in written.items()}
    found = measures()
    for name, value in found.items():
        limit = limits.get(name, value)
        note = "" if value == limit else f"  ABOVE the limit of {limit}" if value > limit else f"  (limit {limit})"
        print(f"{value:6}  {name}{note}")
    lowered = {name: min(found[name], limit) for name, limit in limits.items() if name in found}
    if "--write" in arguments:
        house: dict[str, Any] = {name: limit - added[name] for name, limit in lowered.items()}
        LIMITS.write_text(json.dumps(house | ({FEATURES: features} if features else {}), indent=2) + "\n")
    elif lowered != limits:
        print("Lower the limits in tools/measures.json: python -m tools.measures --write")
    return int(any(value > limits.get(name, value) for name, value in found.items()))


def measures() -> dict[str, int]:
    """Return every measure by name."""
    paths = {path: path.read_text() for package, root in SOURCES.items() for path in (root / package).rglob("*.py")}
    modules = {_module_name(path): ast.parse(text) for path, text in paths.items()}
    ours = {name: module for name, module in modules.items() if name.partition(".")[0] == "rocketshim"}
    graph = _imports(modules)
    importers = Counter(name for imported in graph.values() for name in imported if name in ours)
    dies, handed_over = entered(delayed_message), entered(orderly_hand_over)
    return {
        "names that `from rocketshim import ...` offers": len(HOMES),
        "untyped names at the front door": sum(_is_untyped(*each, modules) for each in HOMES.items()),
        f"classes with more than {MOST_OVERRIDDEN} overridden members of a base class": sum(
            count > MOST_OVERRIDDEN for count in _overridden(modules)
        ),
        "import circles between files, also for type checkers": len(_circles(graph)),
        "modules with one importer": sum(count == 1 for count in importers.values()),
        "classes": len(_class_nodes(ours)),
        "lines of shim/rocketshim": sum(
            text.count("\n") for path, text in paths.items() if path.is_relative_to(ROOT / "shim" / "rocketshim")
        ),
        "attributes of the largest class": max(map(_attributes, _class_nodes(ours))),
        "arguments of the largest constructor": max(map(_arguments, _class_nodes(ours))),
        "method names in more than five classes": sum(count > 5 for count in _method_names(ours).values()),
        "chains of three dots from self in consumer/ and worker/": sum(
            map(_chains, _below(ours, "consumer", "worker"))
        ),
        "modules that `from rocketshim import Producer` loads": _loaded("from rocketshim import Producer"),
        "files that a delayed message passes from send to dead letter": len(files()),
        "files entered: delayed, fails, dies": len(dies.files),
        "classes entered: delayed, fails, dies": len(dies.classes),
        "files entered: drop-in poll and reconsume_later": len(entered(drop_in).files),
        "files entered: orderly hand-over": len(handed_over.files),
        "classes entered: orderly hand-over": len(handed_over.classes),
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
    """Return the modules that each module imports, also inside functions and for type checkers."""
    graph: dict[str, set[str]] = {}
    for name, module in modules.items():
        found = set()
        for node in ast.walk(module):
            if isinstance(node, ast.Import):
                found |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                full = {f"{node.module}.{each.name}" for each in node.names}
                found |= {each if each in modules else node.module for each in full}
        graph[name] = (found & modules.keys()) - {name}
    return graph


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


def _class_nodes(modules: Modules) -> list[ast.ClassDef]:
    return [node for module in modules.values() for node in ast.walk(module) if isinstance(node, ast.ClassDef)]


def _below(modules: Modules, *folders: str) -> list[ast.Module]:
    return [module for name, module in modules.items() if name.split(".")[1:2] and name.split(".")[1] in folders]


def _functions(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def _attributes(node: ast.ClassDef) -> int:
    """Count the attributes that a class sets on `self`."""
    return len(
        {
            each.attr
            for function in _functions(node)
            for each in ast.walk(function)
            if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self"
        }
    )


def _arguments(node: ast.ClassDef) -> int:
    """Count the arguments of a constructor that is written out, without `self`."""
    given = [function.args for function in _functions(node) if function.name == "__init__"]
    return max((len([*each.posonlyargs, *each.args, *each.kwonlyargs]) - 1 for each in given), default=0)


def _method_names(modules: Modules) -> Counter[str]:
    """Count the classes that have a method of each name, but for those that Python asks for."""
    return Counter(
        name
        for node in _class_nodes(modules)
        for name in {each.name for each in _functions(node) if not each.name.startswith("__")}
    )


def _chains(module: ast.Module) -> int:
    """Count `self.a.b.c` and longer ones."""
    inner = {node.value for node in ast.walk(module) if isinstance(node, ast.Attribute)}
    found = 0
    for node in ast.walk(module):
        depth, rest = 0, node
        while isinstance(rest, ast.Attribute):
            depth, rest = depth + 1, rest.value
        found += depth >= 3 and node not in inner and isinstance(rest, ast.Name) and rest.id == "self"
    return found


def _loaded(program: str) -> int:
    """Return how many modules of the project a program loads."""
    counting = "import sys; print(sum(name.startswith('rocketshim') for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", f"{program}\n{counting}"], capture_output=True, check=True)
    return int(done.stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

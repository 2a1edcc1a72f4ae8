"""The core is pure, and what needs no Kafka client loads none: read from the sources, and tried in a fresh process."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rocketshim
import rocketshim_topics

PACKAGE = Path(rocketshim.__file__).parent
FORBIDDEN_IN_CORE = {
    "asyncio", "concurrent", "confluent_kafka", "datetime", "io", "logging", "multiprocessing", "os", "pathlib",
    "pydantic", "queue", "random", "secrets", "select", "signal", "socket", "subprocess", "sys", "tempfile",
    "threading", "time", "uuid",
}  # fmt: skip
FORBIDDEN_CALLS_IN_CORE = {"open", "print", "input", "eval", "exec", "__import__"}
MUTABLE = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
MAY_IMPORT = {
    "rocketshim.core", "rocketshim.errors", "rocketshim.locks.fold", "rocketshim.locks.holder",
    "rocketshim.locks.lease", "rocketshim_topics",
}  # fmt: skip


def modules(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (PACKAGE / folder).rglob("*.py"))


PURE = [*modules("core"), *(PACKAGE / "locks" / f"{name}.py" for name in ("lease", "fold", "holder"))]


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module that a source names in an import, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            assert node.module is not None
            yield node.module


@pytest.mark.parametrize("path", PURE, ids=name_of)
def test_core_module_has_no_clock_thread_randomness_log_or_kafka(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not {name for name in imported(tree) if name.partition(".")[0] in FORBIDDEN_IN_CORE}
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & FORBIDDEN_CALLS_IN_CORE


def test_headers_are_read_by_the_call_that_is_checked() -> None:
    """`record.headers()` in a hot line hides the error of a name that is no UTF-8: `rocketshim_topics.wire`."""
    topics = Path(rocketshim_topics.__file__).parent
    unchecked = [
        f"{path.name}:{node.lineno}"
        for path in (*PACKAGE.rglob("*.py"), *topics.rglob("*.py"))
        if path.name != "health.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "headers"
    ]
    assert not unchecked


@pytest.mark.parametrize("path", PURE, ids=name_of)
def test_core_module_imports_no_shell(path: Path) -> None:
    ours = {name for name in imported(ast.parse(path.read_text(encoding="utf-8"))) if name.startswith("rocketshim")}
    assert not {name for name in ours if not any(name == may or name.startswith(f"{may}.") for may in MAY_IMPORT)}


@pytest.mark.parametrize("path", PURE, ids=name_of)
def test_core_module_has_no_global_state(path: Path) -> None:
    """A module-level list, dict or set would be shared by every object of the process; a `Final` one is a table."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, MUTABLE):
            continue
        if isinstance(node, ast.AnnAssign):
            assert ast.unparse(node.annotation).startswith(("Final", "ClassVar")), f"line {node.lineno}"
        else:
            assert ast.unparse(node.targets[0]) == "__all__", f"line {node.lineno}"


def test_core_is_found() -> None:
    """The tests above hold of something."""
    assert {"rocketshim.core.process_queue", "rocketshim.core.level_queue"} <= {name_of(p) for p in modules("core")}


@pytest.mark.parametrize("folder", ["core", "filters"])
def test_modules_that_need_no_kafka_client_load_none(folder: str) -> None:
    names = [name_of(path) for path in modules(folder)]
    assert names
    program = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(*(n for n in sys.modules if n.startswith('confluent_kafka')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", "")

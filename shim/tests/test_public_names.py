"""What programs import from `rocketshim` is there, stays there, and is typed."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rocketshim
from rocketshim import _exports, errors


@pytest.mark.parametrize("name", rocketshim.__all__)
def test_a_public_name_resolves(name: str) -> None:
    assert getattr(rocketshim, name) is not None
    assert name in dir(rocketshim)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        rocketshim.no_such_name  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    "module", ["rocketshim", "rocketshim.filters", "rocketshim.core.level_queue", "rocketshim_topics"]
)
def test_importing_it_loads_no_kafka_client(module: str) -> None:
    program = f"import sys, {module}; sys.exit('confluent_kafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0  # noqa: S603


def test_the_front_door_has_at_most_fifty_names() -> None:
    assert len(rocketshim.__all__) <= 50
    assert dir(rocketshim) == sorted(rocketshim.__all__)


def test_what_a_program_gets_is_what_a_type_checker_reads() -> None:
    tree = ast.parse(Path(_exports.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    assert {each.name: node.module for node in imports for each in node.names} == _exports.HOMES
    assert sorted(_exports.HOMES) == _exports.__all__


def test_a_sender_loads_no_consumer_no_worker_no_locks_and_no_allocation() -> None:
    program = "import sys; from rocketshim import Producer; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    others = ("consumer", "worker", "locks", "core.allocate", "settings.consumer", "settings.worker")
    found = [name.removeprefix("rocketshim.") for name in done.stdout.split() if name.startswith("rocketshim.")]
    assert [name for name in found if name.startswith(others)] == []


def test_the_errors_module_has_the_whole_tree() -> None:
    import rocketshim_topics.group_log  # noqa: F401 - it defines an error, too

    def tree(root: type[BaseException]) -> set[str]:
        ours = root.__module__.partition(".")[0] in {"rocketshim", "rocketshim_topics"}
        ours = ours and not root.__module__.startswith("rocketshim.compat.")  # the names of another client
        return ({root.__name__} if ours else set()).union(*map(tree, root.__subclasses__()))

    ours = {name for name in tree(errors.RocketshimError) if not name.startswith("_")}
    assert ours == set(errors.__all__)


def test_a_type_checker_knows_every_name_and_refuses_others(tmp_path: Path) -> None:
    """No public name is `Any`, and a misspelt one is an error."""
    names = ", ".join(rocketshim.__all__)
    good = f"from rocketshim import {names}\n" + "".join(f"reveal_type({name})\n" for name in rocketshim.__all__)
    (tmp_path / "good.py").write_text(good, encoding="utf-8")
    (tmp_path / "bad.py").write_text("from rocketshim import Produser\n", encoding="utf-8")
    package = Path(rocketshim.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "good.py", "bad.py"],
        cwd=tmp_path,
        env={"MYPYPATH": f"{package}:{package.parent / 'topics'}", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    revealed = [line for line in done.stdout.splitlines() if "Revealed type" in line]
    assert len(revealed) == len(rocketshim.__all__), done.stdout
    assert not [line for line in revealed if '"Any"' in line]
    assert 'has no attribute "Produser"' in done.stdout


ROOT = Path(__file__).parents[2]
DOCUMENTED = {
    "rocketshim",
    "rocketshim.aio",
    "rocketshim.codecs",
    "rocketshim.compat.rocketmq",
    "rocketshim.compat.rocketmq.client",
    "rocketshim.compat.rocketmq.exceptions",
    "rocketshim.contrib.asgi",
    "rocketshim.contrib.django",
    "rocketshim.contrib.opentelemetry",
    "rocketshim.dropin",
    "rocketshim.errors",
    "rocketshim.filters",
    "rocketshim.harness",
    "rocketshim.local",
    "rocketshim.testing",
    "rocketshim.timers",
    "rocketshim.transactions",
    "rocketshim_topics",
}


def test_examples_and_documentation_import_from_documented_modules_only() -> None:
    """Those of the Spark package are documented on its own page."""
    sources = [*ROOT.glob("examples/**/*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    found = {
        (path.name, module)
        for path in sources
        for module in re.findall(r"^\s*from (rocketshim[\w.]*) import", path.read_text(encoding="utf-8"), re.MULTILINE)
        if not module.startswith("rocketshim_spark")
    }
    assert len(found) > 10
    assert {(name, module) for name, module in found if module not in DOCUMENTED} == set()

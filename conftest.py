"""What holds for every test: the width of tables, kept bytecode, the choices of hypothesis, and the shared fixtures."""

import os
import sys

from hypothesis import HealthCheck, settings

pytest_plugins = [
    "pytester",
    "test_support.root_logger",
    "test_support.schedule",
    "test_support.spark_session",
    "test_support.temporary_folder",
    "test_support.unreadable_records",
]

# Tables are as wide as in a pipe, whatever terminal started the tests; pytest-xdist passes its width on.
os.environ.pop("COLUMNS", None)

# The tests start hundreds of processes: each would compile our sources again where the environment forbids bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The choices of hypothesis (in CI: the same examples in every run), but no test is judged by its speed.
settings.register_profile(
    "rocketshim",
    settings(),
    deadline=None,
    suppress_health_check=[*settings().suppress_health_check, HealthCheck.too_slow],
)
settings.load_profile("rocketshim")

"""`manage.py rocketshim_consume --group payments`: run the listeners of a group in one or more processes."""

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from rocketshim.cli import main
from rocketshim.contrib.django.apps import GROUP_VARIABLE

__all__ = ["Command"]

_TARGET = "rocketshim.contrib.django.apps:run_consumer"


class Command(BaseCommand):
    """Runs `rocketshim run`, which has the same options, with the consumer of the group."""

    help = "Run the listeners of a consumer group until SIGTERM; one process needs about one core."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options, those of `rocketshim run`."""
        parser.add_argument("--group", required=True, help="The consumer group.")
        parser.add_argument("--processes", type=int, default=1, help="Number of processes; each is a member.")
        parser.add_argument("--health", metavar="[HOST:]PORT", help="Serve /live, /ready, /state and /metrics here.")
        parser.add_argument("--log-format", choices=("text", "json"), default="text")
        parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")

    def handle(self, **options: Any) -> None:
        """Run until a signal."""
        os.environ[GROUP_VARIABLE] = options["group"]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # the processes import what we import
        words = ["run", _TARGET, "--processes", str(options["processes"])]
        for name in ("health", "log_format", "log_level"):
            if options[name] is not None:
                words += [f"--{name.replace('_', '-')}", options[name]]
        sys.exit(main(words))

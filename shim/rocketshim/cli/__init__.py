"""The command line `rocketshim`. `main` is its entry point; the commands stand one to a file beside this one."""

from rocketshim.cli.app import main

__all__ = ["main"]

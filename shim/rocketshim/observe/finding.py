"""One problem, and the commands that fix it."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from rocketshim.core.user_values import one_line
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames

__all__ = ["Finding", "Installation", "Severity", "has_problem"]


class Severity(StrEnum):
    """The severity of a finding. Errors and warnings give exit code 2; a note does not."""

    ERROR = "error"
    """Messages are lost, delayed or wrong now, or will be in normal operation."""
    WARNING = "warning"
    """Messages are lost, delayed or wrong after one more failure."""
    NOTE = "note"
    """Nothing is lost, or something could not be examined."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem."""

    check: str  # short, stable name of the check
    severity: Severity  # how severe it is
    subject: str  # the topic, group, setting … with the problem
    what: str  # what is wrong, with the values found and wanted
    cost: str  # its impact, now or later
    fix: str  # the command that fixes it, or what to do if no command can
    since_ms: int | None = None  # since when, epoch ms; None: not known
    stack_trace: str | None = None  # stack trace of the failure behind it; None: there is none

    @property
    def steps(self) -> list[str]:
        """Return the commands of the fix, and what it says beside them, each for a line of its own."""
        return self.fix.split("; ")

    @property
    def line(self) -> str:
        """Return what is wrong in one line."""
        return one_line(f"{self.severity:8}{self.check}  {self.subject}: {self.what}")


def has_problem(found: Iterable[Finding]) -> bool:
    """Return whether something is wrong.

    Decides: Which findings give `rocketshim status` and `doctor` exit code 2? Errors and warnings; notes alone do not.
    """
    return any(finding.severity is not Severity.NOTE for finding in found)


@dataclass(frozen=True, slots=True)
class Installation:
    """The brokers and the topics of one namespace, as commands name them."""

    bootstrap: str  # addresses of the brokers, as given
    layout: Layout  # the required topics, with their names and the level table

    @property
    def names(self) -> TopicNames:
        """Return the topic and group names of the namespace."""
        return self.layout.names

    def command(self, name: str, *words: str) -> str:
        """Return a `rocketshim` command, quoted for a shell."""
        cluster = ["--bootstrap", self.bootstrap]
        if self.names.namespace:
            cluster += ["--namespace", self.names.namespace]
        return shlex.join(["rocketshim", name, *words, *cluster])

    @property
    def levels_option(self) -> tuple[str, ...]:
        """Return the level table as an option of commands; empty: it is the default one."""
        levels = self.layout.levels
        return () if levels == DelayLevels.default() else ("--delay-levels", str(levels))

    @property
    def worker_command(self) -> str:
        """Return the command that runs a worker; `TOPIC` stands for what it may deliver to."""
        return self.command("worker", "--allow", "TOPIC", *self.levels_option)

    def init(self, *words: str) -> str:
        """Return an `init` command for the shared topics; with `--group=…` among the words, for that group's too."""
        layout, options = self.layout, list(self.levels_option)
        if layout.max_message_bytes > Layout(layout.names, layout.levels).max_message_bytes:  # others may be larger
            options += ["--max-message-bytes", str(layout.max_message_bytes)]
        return self.command("init", *options, *words)

    def keep_longer(self, topic: str) -> str:
        """Return a command that keeps a topic's records longer; `MS` stands for what is not known here."""
        return self.alter(topic, retention_ms="MS")

    def alter(self, topic: str, **settings: str) -> str:
        """Return a `kafka-configs.sh` command that sets settings of a topic (write dots as underscores)."""
        pairs = ",".join(f"{name.replace('_', '.')}={value}" for name, value in settings.items())
        return (
            f"kafka-configs.sh --bootstrap-server {shlex.quote(self.bootstrap)} --alter --entity-type topics "
            f"--entity-name {shlex.quote(topic)} --add-config {pairs}"
        )

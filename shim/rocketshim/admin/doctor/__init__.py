"""`rocketshim doctor`: check the set-up and find each problem, its impact and the command that fixes it.

`gather` reads the cluster; it is the only module here that does. It returns `Facts`. Each check is a pure function from
facts to findings: `topics`, `queues`, `groups`, `clients`, `acls`. `examine` runs all of them.

The doctor changes nothing on the cluster. Only with `probe` it writes one record to each leader; every reader of
rocketshim skips these records.
"""

from rocketshim.admin.doctor.checks import CHECKS, examine
from rocketshim.admin.doctor.facts import Facts
from rocketshim.observe.finding import Finding, Severity

__all__ = ["CHECKS", "Facts", "Finding", "Severity", "examine"]

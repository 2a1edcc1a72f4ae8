"""`rocketshim doctor`: is the set-up sound? What is wrong, what it costs, which command mends it.

`gather` looks at the cluster (the one module here that does), `facts` is what it brings back, and each check is a pure
function from facts to findings: `topics`, `queues`, `groups`, `clients`, `acls`. `examine` runs them all.

Nothing is changed on the cluster; only with `probe` one record is written that every reader of ours skips.
"""

from rocketshim.admin.doctor.checks import CHECKS, examine
from rocketshim.admin.doctor.facts import Facts
from rocketshim.admin.doctor.finding import Finding, Severity

__all__ = ["CHECKS", "Facts", "Finding", "Severity", "examine"]

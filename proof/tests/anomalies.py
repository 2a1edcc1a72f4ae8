"""Doctored histories: one anomaly each. Each function changes the lines of a sound history as a defect would have.

The functions stand in three modules by what they spoil; this one has them all.
"""

from . import lost_and_found, spoilt, voided
from .anomaly import ANOMALIES, fault

__all__ = ["ANOMALIES", "fault", "lost_and_found", "spoilt", "voided"]

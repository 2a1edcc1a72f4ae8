"""The earlier name of `rocketshim.admin.redrive`."""

from rocketshim.admin.redrive import Redriver

__all__ = ["Redriver"]

"""The public names of what `Producer.outcome` returns; the classes are in `core.timer_history`."""

from rocketshim.core.timer_history import TimerFate, TimerOutcome

__all__ = ["TimerFate", "TimerOutcome"]

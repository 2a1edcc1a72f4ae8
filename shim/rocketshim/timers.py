"""What `Producer.outcome` returns: `TimerOutcome`, whose `fate` is a `TimerFate`. A program may need their names."""

from rocketshim.core.timer_history import TimerFate, TimerOutcome

__all__ = ["TimerFate", "TimerOutcome"]

"""The settings of a poll loop and of its parts."""

from dataclasses import dataclass

from rocketshim.core.flow_control import FlowLimits

__all__ = ["LoopSettings"]


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """The settings of one poll loop; all durations in ms; `topic_*` -1 for no limit."""

    batch_count: int
    commit_interval_ms: int
    consume_timeout_ms: int
    sweep_interval_ms: int
    revoke_drain_ms: int
    limits: FlowLimits
    watch_interval_ms: int = 20_000
    topic_count: int = -1
    topic_size_bytes: int = -1
    fetch_count: int = 1_000
    pull_interval_ms: int = 0
    group: str = ""
    unsubscribes: bool = True  # whether to unsubscribe before closing; see `clients.close_consumer`

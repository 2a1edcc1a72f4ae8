"""Times as people type them."""

import pytest

from rocketshim.admin.times import past_ms, time_ms
from rocketshim.errors import ConfigError

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2h", NOW_MS - 7_200_000),
        ("0s", NOW_MS),
        ("99999d", 0),
        ("2026-11-20T18:00:00Z", 1_795_197_600_000),
        ("2026-11-20T18:00:00", 1_795_197_600_000),
        ("2026-11-20T19:00:00+01:00", 1_795_197_600_000),
        ("2026-11-20", 1_795_132_800_000),
    ],
)
def test_a_duration_or_a_time_is_a_time(text: str, at_ms: int) -> None:
    assert past_ms(text, NOW_MS, "--since") == at_ms


@pytest.mark.parametrize("text", ["", "2", "yesterday", "2026-13-01", "-2h", "1960-01-01", "9999-99-99"])
def test_another_text_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--since .*write .*30m, 2h, 3d.* or a time such as 2026"):
        past_ms(text, NOW_MS, "--since")


def test_a_point_in_time_cannot_be_a_duration() -> None:
    with pytest.raises(ConfigError, match=r"--deliver-at '2h': write a time such as"):
        time_ms("2h", "--deliver-at")

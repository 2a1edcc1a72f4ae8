"""The table of topics in docs/operations.md matches what `init` creates."""

from pathlib import Path

from rocketshim_topics import DelayLevels, Layout, TopicNames
from rocketshim_topics.layout import TopicSpec

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


def kept_for(spec: TopicSpec) -> str:
    days, hours = divmod(int(spec.config["retention.ms"]) // 3_600_000, 24)
    if days < 0:
        return "forever"
    return f"{days} d {hours} h" if hours else f"{days} d"


def test_each_topic_is_documented_with_the_settings_that_init_gives_it() -> None:
    layout = Layout(TopicNames(""), DelayLevels.default())
    specs = [*layout.shared(), *layout.timers(), layout.redrive_log(), *layout.for_group("<g>", with_log=True)]
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    rows = {cells[1].strip().strip("`"): [each.strip() for each in cells[2:-1]] for cells in map(split, lines)}
    for spec in specs:
        name = spec.name if spec.name in rows else f"{spec.name.rsplit('.', 1)[0]}.<g>"
        partitions, cleanup, kept, writers, readers = rows[name]
        assert partitions.split()[0] == str(spec.partitions)
        assert cleanup == spec.config["cleanup.policy"]
        assert ("retention.ms" not in spec.config and kept) or kept_for(spec) in kept
        assert writers
        assert readers


def split(line: str) -> list[str]:
    return line.split("|")

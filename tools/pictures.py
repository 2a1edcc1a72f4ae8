"""Draw the pictures of the documentation as SVG: docs/pictures/path.svg and commit.svg.

    python tools/pictures.py

The colours follow the reader's light or dark mode. A test compares the files with what this script draws.
"""

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"

STYLE = """
  .box { stroke-width: 1.5; }
  .yours { fill: #eef2ff; stroke: #4f46e5; }
  .topic { fill: #ecfdf5; stroke: #059669; }
  .worker { fill: #fff7ed; stroke: #ea580c; }
  .dead { fill: #fef2f2; stroke: #dc2626; }
  text { font: 15px -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; fill: #1f2328; }
  .name { font-weight: 600; }
  .note { font-size: 13px; fill: #59636e; }
  .arrow { fill: none; stroke: #59636e; stroke-width: 1.5; marker-end: url(#head); }
  #head path { fill: #59636e; }
  @media (prefers-color-scheme: dark) {
    .yours { fill: #1e1b4b; stroke: #818cf8; }
    .topic { fill: #022c22; stroke: #34d399; }
    .worker { fill: #431407; stroke: #fb923c; }
    .dead { fill: #450a0a; stroke: #f87171; }
    text { fill: #f0f6fc; }
    .note { fill: #9198a1; }
    .arrow { stroke: #9198a1; }
    #head path { fill: #9198a1; }
  }
"""


def box(kind: str, area: tuple[int, int, int, int], name: str, *notes: str) -> str:
    """Return a box (x, y, width, height) with a name and lines of notes in its middle."""
    x, y, width, height = area
    first = y + height / 2 + 5 - 9 * len(notes)
    lines = [f'<text class="name" x="{x + width / 2:g}" y="{first:g}" text-anchor="middle">{escape(name)}</text>']
    for number, note in enumerate(notes, 1):
        at = f'x="{x + width / 2:g}" y="{first + 18 * number:g}"'
        lines.append(f'<text class="note" {at} text-anchor="middle">{escape(note)}</text>')
    return f'<rect class="box {kind}" rx="8" x="{x}" y="{y}" width="{width}" height="{height}"/>\n' + "\n".join(lines)


def arrow(*points: tuple[int, int]) -> str:
    """Return an arrow through these points."""
    return '<path class="arrow" d="M' + " L".join(f"{x} {y}" for x, y in points) + '"/>'


def note(x: int, y: int, *lines: str, anchor: str = "middle") -> str:
    """Return lines of text beside an arrow."""
    texts = (
        f'<text class="note" x="{x}" y="{y + 17 * number}" text-anchor="{anchor}">{escape(line)}</text>'
        for number, line in enumerate(lines)
    )
    return "\n".join(texts)


def picture(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """Return a whole SVG."""
    marker = '<marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
    head = marker + '<path d="M0 0 L9 4 L0 8 z"/></marker>'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="title">',
        f'<title id="title">{escape(title)}</title>',
        f"<style>{STYLE}</style>",
        f"<defs>{head}</defs>",
        *parts,
        "</svg>",
        "",
    ])  # fmt: skip


def path_of_a_message() -> str:
    """Return the picture of the path of a message."""
    title = (
        "A message goes to its topic, or waits in the schedule topic first. A failed message waits there for its retry."
    )
    return picture(980, 390, title, [
        box("yours", (20, 30, 150, 60), "Producer", "your program"),
        box("topic", (370, 30, 150, 60), "orders", "your topic"),
        box("yours", (730, 30, 180, 150), "PushConsumer", "your program,", "group payments"),
        box("topic", (20, 220, 150, 64), "schedule topic", "one queue per delay"),
        box("worker", (370, 220, 150, 64), "worker", "rocketshim worker"),
        box("topic", (540, 112, 150, 60), "retry topic", "of group payments"),
        box("dead", (790, 260, 170, 60), "dead-letter topic", "of group payments"),
        arrow((170, 60), (370, 60)), note(270, 50, "no delay"),
        arrow((95, 90), (95, 220)), note(105, 150, 'delay="30m"', anchor="start"),
        arrow((170, 252), (370, 252)), note(270, 242, "due"),
        arrow((430, 220), (430, 90)), note(420, 150, "first delivery", anchor="end"),
        arrow((490, 220), (490, 142), (540, 142)), note(505, 205, "retry", anchor="start"),
        arrow((520, 60), (730, 60)),
        arrow((690, 142), (730, 142)),
        arrow((875, 180), (875, 260)), note(868, 215, "fails for the", "17th time", anchor="end"),
        arrow((750, 180), (750, 350), (95, 350), (95, 284)),
        note(420, 340, "fails: again after 10 s, 30 s, 1 min, 2 min …"),
        arrow((910, 60), (950, 60)), note(940, 50, "done", anchor="middle"),
    ])  # fmt: skip


def commit_of_a_prefix() -> str:
    """Return the picture of the committed position of a partition."""
    title = "The committed position stands before the first message that is not finished."
    messages = [(number, number not in {3, 6}) for number in range(7)]
    parts = [
        box("topic" if finished else "worker", (20 + 120 * number, 30, 108, 60), f"offset {number}", state)
        for number, finished in messages
        for state in ("finished" if finished else "in progress",)
    ]
    return picture(
        870, 150, title, [*parts, arrow((374, 125), (374, 35)), note(382, 128, "committed position: 3", anchor="start")]
    )


PICTURES = {"path.svg": path_of_a_message, "commit.svg": commit_of_a_prefix}


def main() -> None:
    """Write the pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()

"""The screen of `rocketshim top`, by Textual. It only reads.

The sampler's thread takes the snapshots. The screen looks twice a second whether there is a newer one, so it never
waits for the cluster.
"""

from typing import ClassVar, Literal

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static, TabbedContent, TabPane

from rocketshim.core.user_values import one_line
from rocketshim.observe.finding import Installation
from rocketshim.observe.sampler import Sampler
from rocketshim.observe.snapshot import Snapshot
from rocketshim.observe.tables import Cell, Table, summary, tables
from rocketshim.observe.verdict import verdict

__all__ = ["TopScreen", "formatted"]

_LOOK_S = 0.5
_TITLES = ("Waiting", "Groups", "Dead", "Workers")


def formatted(value: Cell) -> str:
    """Return a cell as text that cannot control the terminal."""
    match value:
        case None:
            return "-"
        case float():
            return f"{value:.1f}" if value >= 1 or not value else f"{round(value, 3):g}"
        case _:
            return one_line(str(value))


class TopScreen(App[None]):
    """Shows the newest snapshot in tabs."""

    TITLE = "rocketshim top"
    ENABLE_COMMAND_PALETTE = False
    CSS = "#summary { height: 1; } #findings { height: auto; max-height: 6; } DataTable { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "tab('Waiting')", "Waiting"),
        Binding("2", "tab('Groups')", "Groups"),
        Binding("3", "tab('Dead')", "Dead"),
        Binding("4", "tab('Workers')", "Workers"),
        Binding("s", "sort", "Sort by the next column"),
        Binding("space", "hold", "Hold", priority=True),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, sampler: Sampler, here: Installation) -> None:
        super().__init__()
        self._here = here
        self._sampler = sampler
        self._drawn: Snapshot | None = None
        self._is_held = False
        self._sorted: dict[str, int] = {}

    def compose(self) -> ComposeResult:
        """Yield the widgets."""
        yield Static("", id="findings", markup=False)
        yield Static("waiting for the cluster", id="summary", markup=False)
        with TabbedContent(initial=_TITLES[0]):
            for title in _TITLES:
                with TabPane(title, id=title):
                    yield DataTable(id=f"{title}-table", cursor_type="row")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look for snapshots."""
        self.look()
        self.set_interval(_LOOK_S, self.look)

    def look(self) -> None:
        """Draw the newest snapshot, if it is not drawn yet."""
        newest = self._sampler.newest()
        if self._is_held or newest is None or newest is self._drawn:
            return
        self._drawn = newest
        self._draw(newest)

    def action_tab(self, title: str) -> None:
        """Go to a tab."""
        self.query_one(TabbedContent).active = title
        self.query_one(f"#{title}-table", DataTable).focus()

    def action_hold(self) -> None:
        """Hold what is on the screen, or go on."""
        self._is_held = not self._is_held
        self._say()
        self.look()

    def action_sort(self) -> None:
        """Sort the table by its next column, largest values first; after the last column: as given."""
        title = self.query_one(TabbedContent).active
        table = next((each for each in self._tables() if each.title == title), None)
        if table is not None:
            self._sorted[title] = (self._sorted.get(title, -1) + 2) % (len(table.columns) + 1) - 1
            self._fill(table)

    def _tables(self) -> tuple[Table, ...]:
        return () if self._drawn is None else tables(self._drawn)

    def _draw(self, snapshot: Snapshot) -> None:
        self._say()
        wrong = "\n".join(each.line for each in verdict(self._here, snapshot))
        self.query_one("#findings", Static).update(wrong)
        for table in tables(snapshot):
            self._fill(table)

    def _say(self) -> None:
        text = "waiting for the cluster" if self._drawn is None else one_line(summary(self._drawn))
        self.query_one("#summary", Static).update(f"HELD   {text}" if self._is_held else text)

    def _fill(self, table: Table) -> None:
        shown: DataTable[Text] = self.query_one(f"#{table.title}-table", DataTable)
        at = shown.cursor_row
        shown.clear(columns=True)
        column = self._sorted.get(table.title, -1)
        marked = (f"{name} v" if number == column else name for number, name in enumerate(table.columns))
        shown.add_columns(*marked)
        rows = table.rows if column < 0 else sorted(table.rows, key=lambda row: _rank(row[column]), reverse=True)
        for row in rows:
            shown.add_row(*(Text(formatted(cell), justify=_justify(cell)) for cell in row))
        shown.move_cursor(row=at)


def _rank(cell: Cell) -> tuple[float, str]:
    return (-1.0, "") if cell is None else (0.0, cell) if isinstance(cell, str) else (float(cell), "")


def _justify(cell: Cell) -> Literal["left", "right"]:
    return "left" if isinstance(cell, str) else "right"

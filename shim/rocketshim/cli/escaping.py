"""Escape text that others wrote, so that it is safe to print: it may neither steer a terminal nor look like our lines.

Failure texts, header names, ids and what group members say of themselves come from records, and anybody may write
records. A line end in one of them would begin a line that looks like ours.
"""

__all__ = ["plain", "plain_lines"]


def plain(text: str) -> str:
    """Return the text as one line: line ends, tabs, control and other non-printable characters are spelled out."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def plain_lines(text: str) -> str:
    """As `plain`, line by line: only for what may have several lines where it is shown."""
    return "\n".join(map(plain, text.split("\n")))

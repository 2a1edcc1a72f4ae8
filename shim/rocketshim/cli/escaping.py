"""Escape untrusted text so that it is safe to print: it can neither control the terminal nor imitate our own lines.

Failure texts, header names, ids and the names of group members come from records, and anybody may write records. A line
end in one of them would begin a line that looks like our own.
"""

__all__ = ["plain", "plain_lines"]


def plain(text: str) -> str:
    """Return the text as one line, with line ends, tabs, control and other non-printable characters escaped."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def plain_lines(text: str) -> str:
    """Apply `plain` to each line; use it only where a text may take several lines."""
    return "\n".join(map(plain, text.split("\n")))

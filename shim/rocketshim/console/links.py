"""Paths of the console's pages."""

from urllib.parse import quote, urlencode

__all__ = ["link"]


def link(*parts: object, **query: object) -> str:
    """Return a path of these parts, each of them quoted, and a query of the values that are not empty.

    Texts of records may have bytes that are not UTF-8. These are escaped, and such a link finds nothing.
    """
    path = "/" + "/".join(quote(str(part), safe="", errors="backslashreplace") for part in parts)
    given = {name: value for name, value in query.items() if value not in {None, "", False}}
    return f"{path}?{urlencode(given, errors='backslashreplace')}" if given else path

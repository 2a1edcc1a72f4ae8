"""Paths of the console's pages."""

from urllib.parse import quote, urlencode

__all__ = ["link"]


def link(*parts: object, **query: object) -> str:
    """Return a path of these parts, each of them quoted, and a query of the values that are not empty."""
    path = "/" + "/".join(quote(str(part), safe="") for part in parts)
    given = {name: value for name, value in query.items() if value not in {None, "", False}}
    return f"{path}?{urlencode(given)}" if given else path

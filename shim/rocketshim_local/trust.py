"""Say what to do when a download fails because this machine does not trust a certificate."""

__all__ = ["advice"]


def advice(error: str) -> str:
    """Return the advice for the text of an error of requests or pip, ending in a space; empty for other errors.

    Both read `REQUESTS_CA_BUNDLE`. Companies whose proxies replace certificates have such a file.
    """
    if "CERTIFICATE_VERIFY_FAILED" not in error:
        return ""
    return (
        "This machine does not trust the server's certificate: set REQUESTS_CA_BUNDLE to a PEM file with the authority "
        "that issued it, for example your company's. "
    )

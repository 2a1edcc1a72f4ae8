"""An HTTPS server on 127.0.0.1 with a certificate that nobody trusts."""

import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler
from typing import Any

__all__ = ["https_server"]

Handler = Callable[[Any, Any, ThreadingHTTPServer], BaseRequestHandler]


@contextmanager
def https_server(folder: Path, handler: Handler) -> Iterator[tuple[str, Path]]:
    """Serve for the length of the block; yield the address and the file of the certificate."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_port}", certificate
        finally:
            server.shutdown()
            thread.join()

"""Commands that log in with OAuth (OIDC): a broker with that mechanism, and a server that issues its tokens."""

import base64
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rocketshim_local import LocalCluster

GUARD_S = 90.0
SERVER = {
    "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
    "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="admin";'
    ),
}


def _part(facts: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(facts).encode()).rstrip(b"=").decode()


class _Tokens(BaseHTTPRequestHandler):
    """Issues a token of `admin` to everybody, without a signature: the broker checks none."""

    def do_POST(self) -> None:
        now = time.time()
        claims = {"sub": "admin", "iat": now, "exp": now + 3_600}
        token = f"{_part({'alg': 'none'})}.{_part(claims)}."
        body = json.dumps({"access_token": token, "token_type": "bearer", "expires_in": 3_600}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def _served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def login() -> Iterator[list[str]]:
    """The words with which a command logs in, but for the flag."""
    with LocalCluster(users={"admin": "x"}, properties=SERVER) as cluster, _served(_Tokens) as address:
        settings = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": "s3cret-canary",
            "sasl.oauthbearer.token.endpoint.url": f"{address}/token",
        }
        words = ["--bootstrap", cluster.bootstrap]
        for name, value in settings.items():
            words += ["--client", f"{name}={value}"]
        yield words


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "rocketshim", *words], capture_output=True, text=True, timeout=GUARD_S, check=False
    )


ASKED = [
    ["init", "--fix", "--topic", "orders", "--group", "g"],
    ["send", "orders", "a"],
    ["doctor", "--topic", "orders"],
    ["group", "lag", "g"],
    ["dlq", "ls", "--group", "g"],
    ["delayed", "ls"],
]


def test_commands_log_in_with_oauth_if_the_flag_is_typed(login: list[str]) -> None:
    for words in ASKED:
        done = run(*words, *login, "--allow-code-settings")
        assert done.returncode in {0, 2}, (words, done.stdout, done.stderr)
        assert "error:" not in done.stderr
        assert "s3cret-canary" not in done.stdout + done.stderr


@pytest.mark.parametrize("words", ASKED, ids=lambda words: " ".join(words[:2]))
def test_without_the_flag_the_setting_is_refused_by_name(login: list[str], words: list[str]) -> None:
    done = run(*words, *login)
    assert done.returncode == 1
    assert done.stderr.startswith("error: the client setting 'sasl.oauthbearer.token.endpoint.url' loads or runs code")
    assert "--allow-code-settings" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_worker_logs_in_with_oauth(login: list[str]) -> None:
    run("init", "--fix", "--topic", "orders", *login, "--allow-code-settings")
    worker = subprocess.Popen(
        [sys.executable, "-m", "rocketshim", "worker", *login, "--allow-code-settings", "--allow", "orders",
         "--log-format", "json"], stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert worker.stderr is not None
        assert any('"worker.assigned"' in line for line in worker.stderr)
    finally:
        worker.terminate()
        worker.communicate(timeout=GUARD_S)
    assert worker.returncode == 0

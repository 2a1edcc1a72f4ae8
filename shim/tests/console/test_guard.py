"""What keeps others out: names, logins, origins, headers, and what the console refuses to start with."""

import gzip
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from rocketshim.console import records
from rocketshim.console.people import user_line
from rocketshim.console.server_app import CONTENT_SECURITY_POLICY, make_app
from rocketshim.errors import ConfigError
from rocketshim.kafka.clients import Clients

from .conftest import DEAD, HOST, OUR_PAGE, TOKEN, Stage

PATHS = {"topic": DEAD, "plan": "0" * 20, "partition": "0", "offset": "0", "group": "payments"}


def routes(client: TestClient) -> list[Route]:
    return [each for each in client.app.routes if isinstance(each, Route)]  # type: ignore[attr-defined]


def path_of(route: Route) -> str:
    return re.sub(r"\{(\w+)(:\w+)?\}", lambda found: PATHS[found[1]], route.path)


def test_nothing_but_the_login_page_is_there_without_a_login(stage: Stage) -> None:
    client = stage.client(operate=True)
    assert client.get("/login").status_code == 200
    for route in routes(client):
        if route.path in {"/login", "/logout"}:
            continue
        answer = client.request(next(iter(route.methods or ())), path_of(route), headers=OUR_PAGE)
        expected = {"/login"} if "POST" not in (route.methods or ()) else {None}
        assert answer.headers.get("location") in expected
        assert answer.status_code in {303, 401}


def test_the_token_becomes_a_cookie_that_scripts_and_other_sites_cannot_use(stage: Stage) -> None:
    client = stage.client()
    answer = client.get("/login", params={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert client.get("/").status_code == 200
    assert client.get("/login", params={"token": "wrong"}).status_code == 401


def test_the_cookie_is_secure_where_browsers_use_https(stage: Stage) -> None:
    client = stage.client(public_url="https://ops.example/shim")
    answer = client.get("/login", params={"token": TOKEN})
    assert "Secure" in answer.headers["set-cookie"]
    assert "Path=/shim" in answer.headers["set-cookie"]
    assert answer.headers["location"] == "/shim/"


def test_a_session_is_made_at_login_and_cannot_be_fixed(stage: Stage) -> None:
    client = stage.client()
    client.cookies.set("rocketshim_8085", "chosen-by-another")
    assert client.get("/").status_code == 303
    client.get("/login", params={"token": TOKEN})
    sessions = [cookie.value for cookie in client.cookies.jar]
    assert len({*sessions, "chosen-by-another"}) > 1
    client.cookies.clear()
    client.cookies.set("rocketshim_8085", "chosen-by-another")
    assert client.get("/").status_code == 303


def test_logging_out_ends_the_session_for_everybody_with_its_cookie(stage: Stage) -> None:
    client = stage.browser()
    cookies = dict(client.cookies)
    assert client.post("/logout").status_code == 303
    client.cookies.update(cookies)
    assert client.get("/").status_code == 303


PHRASE = "correct horse battery"


def users_file(folder: Path, *lines: str) -> Path:
    """Write a users' file; another file than before, as an editor does."""
    written, users = folder / "users.new", folder / "users"
    written.write_text("".join(f"{line}\n" for line in lines))
    written.chmod(0o600)
    return written.replace(users)


def test_a_name_is_refused_for_a_minute_after_twenty_failures_and_no_other_is(stage: Stage, tmp_path: Path) -> None:
    lines = [user_line(name, "viewer", PHRASE) for name in ("ada", "bob")]
    client = stage.client(auth=f"@{users_file(tmp_path, *lines)}")
    client.headers.update(OUR_PAGE)

    def login(name: str, secret: str) -> int:
        return client.post("/login", data={"name": name, "secret": secret}).status_code

    assert {login("ada", "x") for _ in range(20)} == {401}
    assert (login("ada", PHRASE), login("bob", PHRASE)) == (429, 303)


def test_no_page_of_another_site_keeps_anybody_out(stage: Stage, tmp_path: Path) -> None:
    image = {"sec-fetch-site": "cross-site", "sec-fetch-dest": "image"}
    client = stage.client()
    assert {client.get("/login", params={"token": "x"}, headers=image).status_code for _ in range(30)} == {401}
    assert client.post("/login", data={"secret": TOKEN}, headers=OUR_PAGE).status_code == 303
    of_users = stage.client(auth=f"@{users_file(tmp_path, user_line('ada', 'viewer', PHRASE))}")
    assert {of_users.get("/login", params={"token": "x"}, headers=image).status_code for _ in range(30)} == {200}
    answer = of_users.post("/login", data={"name": "ada", "secret": PHRASE}, headers=OUR_PAGE)
    assert answer.status_code == 303


def test_a_change_of_the_users_file_counts_and_ends_the_sessions_of_those_that_it_concerns(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ada, bob = (user_line(name, "viewer", PHRASE) for name in ("ada", "bob"))
    app = make_app(stage.settings(auth=f"@{users_file(tmp_path, ada, bob)}"), clients=stage.kafka.clients())
    stage.consoles.append(app.state.console)

    def logged_in(name: str) -> TestClient:
        client = TestClient(app, base_url=HOST, headers=OUR_PAGE, follow_redirects=False)
        client.post("/login", data={"name": name, "secret": PHRASE})
        return client

    first, second = logged_in("ada"), logged_in("bob")
    assert [client.get("/plans").status_code for client in (first, second)] == [200, 200]
    users_file(tmp_path, bob, user_line("eve", "viewer", PHRASE))
    assert [client.get("/plans").status_code for client in (first, second)] == [303, 200]
    assert [logged_in(name).get("/plans").status_code for name in ("ada", "eve")] == [303, 200]
    users_file(tmp_path, bob, "eve:root:x")
    assert second.get("/plans").status_code == 200
    assert [record.__dict__["event"] for record in caplog.records] == ["console.users-file-refused"]
    users_file(tmp_path, user_line("bob", "operator", PHRASE))
    assert second.get("/plans").status_code == 303


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", "origin": HOST},
    ],
)
def test_every_write_is_refused_unless_it_comes_from_our_own_page(stage: Stage, headers: dict[str, str]) -> None:
    client = stage.browser(operate=True)
    client.headers.pop("sec-fetch-site")
    for route in routes(client):
        if (route.methods or set()) <= {"GET", "HEAD"}:
            continue
        answer = client.post(path_of(route), headers=headers)
        assert (answer.status_code, "does not come from" in answer.text) == (403, True), route.path


def test_a_second_header_does_not_hide_where_a_form_comes_from(stage: Stage) -> None:
    client = stage.browser(operate=True)
    client.headers.pop("sec-fetch-site")
    for both in (
        [("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")],
        [("origin", HOST), ("origin", "https://evil.example")],
    ):
        assert client.post("/logout", headers=both).status_code == 403


def test_a_browser_without_fetch_metadata_is_known_by_its_origin(stage: Stage) -> None:
    client = stage.browser(operate=True)
    client.headers.pop("sec-fetch-site")
    assert client.post("/logout", headers={"origin": HOST}).status_code == 303


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_without_operate_no_route_writes(stage: Stage, method: str) -> None:
    reading = stage.browser()
    writes = {each.path for each in routes(stage.client(operate=True)) if "POST" in (each.methods or ())}
    assert {each.path for each in routes(reading) if "POST" in (each.methods or ())} == {"/login", "/logout"}
    for path in writes - {"/login", "/logout"}:
        filled = re.sub(r"\{(\w+)(:\w+)?\}", lambda found: PATHS[found[1]], path)
        assert reading.request(method, filled).status_code in {404, 405}


def test_every_write_needs_an_operator(stage: Stage, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(f"# ours\n\n{user_line('vera', 'viewer', 'correct horse battery')}\n")
    users.chmod(0o600)
    client = stage.client(operate=True, auth=f"@{users}")
    client.headers.update(OUR_PAGE)
    assert client.post("/login", data={"name": "vera", "secret": "wrong"}).status_code == 401
    assert client.post("/login", data={"name": "nobody", "secret": "correct horse battery"}).status_code == 401
    assert client.post("/login", data={"name": "vera", "secret": "correct horse battery"}).status_code == 303
    assert client.get("/").status_code == 200
    for route in routes(client):
        if "POST" in (route.methods or ()) and route.path not in {"/login", "/logout"}:
            assert client.post(path_of(route)).status_code == 403, route.path
    users.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod"):
        stage.client(auth=f"@{users}")


def test_a_host_name_that_is_not_ours_is_refused_before_anything_else(stage: Stage) -> None:
    client = stage.browser()
    for name in (
        *("evil.example", "127.0.0.1.evil.example", "evil.example:8085", "[::2]:8085", "localhost.", ""),
        *("127.0.0.1:8085@evil.example", "127.0.0.1:999999", "[::1]evil", "::1"),
    ):
        assert client.get("/login", headers={"host": name}).status_code == 421, name
    for name in ("localhost:8085", "127.0.0.1", "[::1]:8085", "LOCALHOST"):
        assert client.get("/login", headers={"host": name}).status_code == 200, name


def test_every_answer_forbids_scripts_frames_sniffing_and_storing(stage: Stage) -> None:
    client = stage.browser()
    for path in ("/", "/login", "/nowhere", f"/dead/{DEAD}", "/static/console.css", "/message?id=x"):
        headers = client.get(path).headers
        assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == ("no-cache" if "static" in path else "no-store")
    assert "unsafe" not in CONTENT_SECURITY_POLICY


def test_a_form_of_more_than_64_kib_is_refused_unread(stage: Stage) -> None:
    client = stage.browser(operate=True)
    assert client.post(f"/dead/{DEAD}/plans", data={"where": "x" * 70_000}).status_code == 413


def test_a_compressed_form_is_never_unpacked(stage: Stage) -> None:
    client = stage.browser(operate=True)
    packed = gzip.compress(b"where=" + b"x" * 10_000_000)
    headers = {"content-encoding": "gzip", "content-type": "application/x-www-form-urlencoded"}
    answer = client.post(f"/dead/{DEAD}/plans", content=packed, headers=headers)
    assert len(packed) < 65_536
    assert answer.status_code == 415


def test_a_form_whose_length_is_not_given_is_refused(stage: Stage) -> None:
    client = stage.browser(operate=True)
    assert client.post(f"/dead/{DEAD}/plans", content=iter([b"where=", b"x"])).status_code == 413


def test_a_form_in_chunks_is_refused_whatever_length_it_names(stage: Stage) -> None:
    headers = {**OUR_PAGE, "content-length": "5", "transfer-encoding": "chunked"}
    assert stage.client().post("/login", content=b"x" * 100_000, headers=headers).status_code == 413


def test_the_name_of_this_machine_is_looked_up_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look-up asks a name server, and while that is silent no other request would be answered."""
    asked: list[str] = []
    monkeypatch.setattr(socket, "getfqdn", lambda: asked.append("asked") or "ops.example")
    client = stage.client(host="10.0.0.1", tls_cert=Path("c"), tls_key=Path("k"))
    for _ in range(3):
        assert client.get("/login", headers={"host": "ops.example"}).status_code == 200
    assert asked == ["asked"]


def test_no_path_or_query_puts_a_header_into_an_answer(stage: Stage) -> None:
    client = stage.browser(operate=True)
    for path in ("/dead?topic=a%0d%0aset-cookie:%20x=1", "/dead/a%0d%0aset-cookie:%20x=1", "/login?token=%0d%0ax:%201"):
        answer = client.get(path)
        assert "set-cookie" not in answer.headers
        assert "\n" not in answer.headers.get("location", "")


def test_a_proxy_names_users_only_in_its_own_connections(stage: Stage) -> None:
    given: dict[str, Any] = {
        "operate": True,
        "auth": "proxy",
        "proxy_groups_header": "X-Forwarded-Groups",
        "operators": "ops",
        "public_url": "https://ops.example",
    }
    app = make_app(
        stage.settings(**given, trusted_proxies=("10.1.0.0/16",)), clients=stage.kafka.clients(blocking=False)
    )
    named = {"x-forwarded-user": "ada", "x-forwarded-groups": "dev, ops", **OUR_PAGE}
    from_proxy = TestClient(app, base_url="https://ops.example", client=("10.1.2.3", 1))
    from_elsewhere = TestClient(app, base_url="https://ops.example", client=("10.2.2.3", 1))
    assert from_elsewhere.get("/", headers=named).status_code == 403
    assert from_proxy.get("/").status_code == 403
    assert "ada, may change things" in from_proxy.get("/", headers=named).text
    assert "read-only" in from_proxy.get("/", headers={**named, "x-forwarded-groups": "opsx"}).text
    for repeated in named.keys() & {"x-forwarded-user", "x-forwarded-groups"}:
        assert from_proxy.get("/", headers=[(repeated, "forged"), *named.items()]).status_code == 403
    assert from_proxy.get("/login", headers=named).status_code == 404
    plan = f"/plans/{'0' * 20}/apply"
    assert from_proxy.post(plan, headers={**named, "x-forwarded-groups": ""}).status_code == 403
    assert from_proxy.post(plan, headers=named).status_code == 404


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"host": "0.0.0.0"}, "without encryption"),  # noqa: S104 - it is refused
        ({"host": "10.0.0.1", "public_url": "http://ops.example"}, "without encryption"),
        ({"host": "example.com"}, "without encryption"),
        ({"auth": "proxy"}, "trusted-proxy"),
        ({"auth": "proxy", "trusted_proxies": ("ops",)}, "not appear to be an IPv4"),
        ({"auth": "none"}, "auth"),
        ({"public_url": "ops.example"}, "public_url"),
        ({"tls_cert": Path("cert.pem")}, "tls_key"),
        ({"hide": frozenset({"everything"})}, "hide"),
        ({"worker_urls": ("file:///etc/passwd",)}, "worker URL"),
    ],
)
def test_an_unsafe_console_refuses_to_start(stage: Stage, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        stage.settings(**given)


def test_a_console_for_others_starts_with_tls_or_behind_a_proxy_with_tls(stage: Stage) -> None:
    assert stage.settings(host="10.0.0.1", public_url="https://ops.example").hosts >= {"ops.example"}
    assert stage.settings(host="Ops.Example", tls_cert=Path("c"), tls_key=Path("k")).hosts >= {"ops.example"}
    assert stage.settings(host="10.0.0.1", tls_cert=Path("c"), tls_key=Path("k")).is_https


def test_pages_work_below_a_path_whether_the_proxy_removes_it_or_not(stage: Stage) -> None:
    client = stage.client(public_url="https://127.0.0.1/shim")
    client.base_url = "https://127.0.0.1"  # type: ignore[assignment]
    client.get("/shim/login", params={"token": TOKEN})
    for path in ("/shim/plans", "/shim"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert 'href="/shim/dead"' in answer.text


def test_pages_that_read_topics_take_turns_and_the_overview_does_not_wait_for_them(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.add_dead(3)
    monkeypatch.setattr("rocketshim.console.server_app._TURN_S", 0.01)
    reading, go_on, read = threading.Semaphore(0), threading.Event(), records.read_newest

    def slow(*args: Any, **options: Any) -> Any:
        reading.release()
        assert go_on.wait(60)
        return read(*args, **options)

    monkeypatch.setattr(records, "read_newest", slow)
    with stage.browser() as browser, ThreadPoolExecutor(60) as tabs:
        page = f"/dead/{DEAD}"
        first = [tabs.submit(browser.get, page) for _ in range(2)]
        assert all(reading.acquire(timeout=60) for _ in first)
        others = [tabs.submit(browser.get, page) for _ in range(43)]
        answers = [each.result() for each in others]
        assert {answer.status_code for answer in answers} == {503}
        assert "reads topics for 2 pages at a time, and others wait" in answers[0].text
        assert (answers[0].headers["refresh"], answers[0].headers["retry-after"]) == ("3", "3")
        for quick in ("/", "/tiles", "/groups", "/static/console.css", "/login"):
            assert browser.get(quick).status_code == 200
        go_on.set()
        assert {each.result().status_code for each in first} == {200}
        assert browser.get(page).status_code == 200


def test_no_get_ever_produces(stage: Stage) -> None:
    stage.add_dead(3)

    def no_producer(_: Any) -> Any:
        raise AssertionError("a GET made a producer")

    found = stage.kafka.clients(blocking=False)
    client = stage.browser(Clients(found.consumer, no_producer), operate=True)
    before = stage.kafka.records(DEAD)
    for route in routes(client):
        if "GET" in (route.methods or ()):
            expected = {400} if route.path == "/doctor" else {200, 303, 404}
            assert client.get(path_of(route)).status_code in expected, route.path
    assert stage.kafka.records(DEAD) == before
    assert [route for route in client.app.routes if isinstance(route, Mount)]  # type: ignore[attr-defined]

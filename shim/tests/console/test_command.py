"""The command line: addresses, users, and the commands that the pages name."""

import html
import re
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest
import typer
import uvicorn

from rocketshim.cli.app import build, main
from rocketshim.cli.console import _allow_many_files, _serve, _welcome
from rocketshim.console.people import Users, user_line
from rocketshim.errors import ConfigError
from rocketshim_topics import DelayLevels

from .conftest import DEAD, NAMES, Stage


def test_the_token_is_printed_in_the_address_and_only_where_it_counts(stage: Stage) -> None:
    assert "http://127.0.0.1:8085/login?token=abc" in _welcome(stage.settings(), "abc")[0]
    public = stage.settings(public_url="https://ops.example/shim/")
    assert "https://ops.example/shim/login?token=abc" in _welcome(public, "abc")[0]
    assert "[::1]:8085" in _welcome(stage.settings(host="::1"), "abc")[0]
    proxied = stage.settings(auth="proxy", trusted_proxies=("127.0.0.1",))
    assert "abc" not in "".join(_welcome(proxied, "abc"))


@pytest.mark.parametrize(
    ("name", "role", "password"),
    [("", "viewer", "x" * 12), ("a:b", "viewer", "x" * 12), ("a", "root", "x" * 12), ("a", "viewer", "short")],
)
def test_a_user_without_a_name_a_role_or_a_long_password_is_refused(name: str, role: str, password: str) -> None:
    with pytest.raises(ConfigError):
        user_line(name, role, password)


HASHED = "A" * 24, "A" * 86 + "=="


@pytest.mark.parametrize(
    "line",
    [
        *("ada", "ada:operator", "ada:operator:plain", "ada:root:scrypt$1", ":viewer:scrypt$"),
        "ada:viewer:scrypt$-1$8$1$" + "$".join(HASHED),
        "ada:viewer:scrypt$2$1$1$" + "$".join(HASHED),
        "ada:viewer:scrypt$16384$8$100$" + "$".join(HASHED),
        "ada:viewer:scrypt$16384$99999999999999999999$1$" + "$".join(HASHED),
        "ada:viewer:scrypt$16384$8$1$$",
    ],
)
def test_a_broken_line_of_the_users_file_is_refused_without_its_content(line: str) -> None:
    with pytest.raises(ConfigError, match="line 2") as caught:
        Users(["# users", line])
    assert "plain" not in str(caught.value)


def test_the_console_needs_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["console"]) == 1
    assert "--bootstrap" in capsys.readouterr().err


def test_a_file_that_is_no_certificate_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cert.pem"
    file.write_text("no certificate")
    words = ["--tls-cert", str(file), "--tls-key", str(file), "--state-dir", str(tmp_path)]
    assert main(["console", "--bootstrap", "127.0.0.1:1", *words]) == 1
    assert f"--tls-cert {file}, --tls-key {file}: " in capsys.readouterr().err


def test_any_free_port_is_named_in_the_address_and_a_used_one_is_refused(
    stage: Stage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = []
    monkeypatch.setattr(
        uvicorn.Server, "run", lambda _, sockets: ports.extend(each.getsockname()[1] for each in sockets)
    )
    _serve(stage.settings(port=0))
    assert f"http://127.0.0.1:{ports[0]}/login?token=" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        assert main(["console", "--bootstrap", "127.0.0.1:1", "--listen", str(port)]) == 1
    shown = capsys.readouterr().err
    assert (f"--listen 127.0.0.1:{port}: cannot listen there" in shown, "token=" in shown) == (True, False)


def test_the_console_may_open_as_many_files_as_its_user_may() -> None:
    resource = pytest.importorskip("resource")
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, most), most))
        _allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))


def test_each_page_names_a_command_that_exists_with_its_options(stage: Stage) -> None:
    stage.add_dead(1)
    browser = stage.browser(operate=True)
    plan = browser.post(f"/dead/{DEAD}/plans", data={}).headers["location"]
    query = {"where": "FAIL_CLASS = 'it''s'", "tags": "a || b", "since": "9000d", "key": "k"}
    pages = [
        "/", f"/dead/{DEAD}", f"/dead/{DEAD}/letters", f"/message/{DEAD}/0/0", "/message?id=m0", "/waiting",
        "/waiting/records?target=orders", "/retrying/payments", "/parked", "/groups", "/workers", plan,
        "/topics/orders",
    ]  # fmt: skip
    for page in pages:
        shown = browser.get(page, params=query if page.startswith(("/dead", "/topics")) else None).text
        found = re.search(r"command line: <code>(.*?)</code>", shown)
        assert found is not None, page
        assert_is_a_command(shlex.split(html.unescape(found[1]))[1:])
    assert NAMES.namespace == ""


def assert_is_a_command(words: list[str]) -> None:
    command: Any = typer.main.get_command(build(words))
    rest = list(words)
    while getattr(command, "commands", None):
        command = command.commands[rest.pop(0)]
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= known, words


def test_commands_name_a_level_table_that_is_not_the_default(stage: Stage) -> None:
    for levels, expected in ((DelayLevels.default(), False), (DelayLevels.parse("1s 2h"), True)):
        browser = stage.browser(levels=levels)
        for page in ("/", "/waiting", "/waiting/records"):
            shown = re.search(r"command line: <code>(.*?)</code>", browser.get(page).text)
            assert shown is not None
            words = shlex.split(html.unescape(shown[1]))
            assert ("1s 2h" in words) == expected, words
            assert_is_a_command(words[1:])


@pytest.mark.parametrize("page", [f"/dead/{DEAD}", f"/dead/{DEAD}/letters", "/parked"])
@pytest.mark.parametrize("everything", [False, True])
def test_the_command_of_a_page_shows_as_much_as_the_page(stage: Stage, page: str, everything: bool) -> None:
    stage.add_dead(1)
    text = stage.browser().get(page, params={"all": "1"} if everything else {}).text
    words = shlex.split(html.unescape(re.findall(r"command line: <code>(.*?)</code>", text)[0]))
    assert ("--all" in words) == everything
    assert_is_a_command(words[1:])


def test_a_command_names_the_namespace_only_where_it_can(stage: Stage) -> None:
    stage.browser(namespace="pay")
    console = stage.consoles[-1]
    assert "--namespace pay" in console.command("dlq stats")
    assert "--namespace" not in console.command("dlq apply", "plan.json", namespace=None)
    assert_is_a_command(shlex.split(console.command("trace", "x"))[1:])


def test_a_line_for_a_new_user_needs_no_cluster(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.prompt", lambda *_, **__: "a long password")
    assert main(["console", "--new-user", "ada:viewer"]) == 0
    assert capsys.readouterr().out.startswith("ada:")

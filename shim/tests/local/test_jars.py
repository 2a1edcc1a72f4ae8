"""Download jars from a Maven repository that runs in this process: an artifact with its dependencies."""

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rocketshim.errors import ConfigError, LocalBrokerError
from rocketshim_local import cached_jars, fetch_jars
from rocketshim_local.cache import cache_dir
from test_support.https_server import https_server
from test_support.ports import free_ports

APP = "org.example:app:1.0"


class Repository:
    """A Maven repository over HTTP: path to content, and the paths that were requested."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.dropped: list[str] = []  # the next request for such a path gets no answer
        repository = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                repository.asked.append(self.path)
                if self.path in repository.dropped:
                    repository.dropped.remove(self.path)
                    self.close_connection = True
                    return
                content = repository.files.get(self.path)
                self.send_response(404 if content is None else 200)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def add(self, artifact: str, version: str, needs: tuple[tuple[str, str, str], ...] = ()) -> None:
        dependencies = "".join(
            f"<dependency><groupId>org.example</groupId><artifactId>{name}</artifactId><version>{wanted}</version>"
            f"<scope>{scope}</scope></dependency>"
            for name, wanted, scope in needs
        )
        pom = (
            f"<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId><artifactId>{artifact}</artifactId>"
            f"<version>{version}</version><dependencies>{dependencies}</dependencies></project>"
        )
        base = f"/org/example/{artifact}/{version}/{artifact}-{version}"
        jar = f"jar of {artifact} {version}".encode()
        self.files[f"{base}.pom"] = pom.encode()
        self.files[f"{base}.jar"] = jar
        self.files[f"{base}.jar.sha1"] = hashlib.sha1(jar, usedforsecurity=False).hexdigest().encode()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    served = Repository()
    served.add("app", "1.0", needs=(("library", "2.0", "compile"), ("checker", "3.0", "test")))
    served.add("library", "2.0", needs=(("engine", "4.0", "runtime"),))
    served.add("engine", "4.0")
    thread = threading.Thread(target=served.server.serve_forever)
    thread.start()
    monkeypatch.setenv("ROCKETSHIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ROCKETSHIM_MAVEN_REPOSITORY", served.url)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    yield served
    served.server.shutdown()
    thread.join()
    served.server.server_close()


@pytest.mark.usefixtures("repository")
def test_only_the_run_time_dependencies_are_downloaded(tmp_path: Path) -> None:
    lines: list[str] = []
    jars = fetch_jars([APP], report=lines.append)
    assert list(jars.files) == ["app-1.0.jar", "engine-4.0.jar", "library-2.0.jar"]
    assert (jars.path / "library-2.0.jar").read_bytes() == b"jar of library 2.0"
    assert any("3 to download" in line for line in lines)
    assert "MB" in lines[-1]
    assert not (tmp_path / "home").exists(), "neither ~/.m2 nor ~/.cache may be touched"


def test_a_cached_set_needs_no_request_and_reports_nothing(repository: Repository) -> None:
    first = fetch_jars([APP])
    repository.asked.clear()
    lines: list[str] = []
    assert fetch_jars([APP], report=lines.append) == first == cached_jars([APP])
    assert repository.asked == []
    assert lines == []


def test_a_set_with_a_missing_jar_is_downloaded_again(repository: Repository) -> None:
    jars = fetch_jars([APP])
    (jars.path / "engine-4.0.jar").unlink()
    assert cached_jars([APP]) is None
    assert fetch_jars([APP]).files == jars.files
    assert repository.asked.count("/org/example/engine/4.0/engine-4.0.jar") == 2


def test_a_jar_that_differs_from_its_checksum_is_rejected_and_nothing_is_kept(repository: Repository) -> None:
    repository.files["/org/example/engine/4.0/engine-4.0.jar"] = b"something else"
    with pytest.raises(LocalBrokerError, match=r"engine-4\.0\.jar has the SHA-1 \w+, but the repository publishes"):
        fetch_jars([APP])
    assert cached_jars([APP]) is None
    assert list((cache_dir() / "jars").iterdir()) == []


def test_a_repository_without_checksum_files_is_accepted(repository: Repository) -> None:
    for path in [path for path in repository.files if path.endswith(".sha1")]:
        del repository.files[path]
    assert len(fetch_jars([APP]).files) == 3


@pytest.mark.parametrize("lost", ["app/1.0/app-1.0.pom", "engine/4.0/engine-4.0.pom", "engine/4.0/engine-4.0.jar"])
def test_the_error_names_a_missing_artifact(repository: Repository, lost: str) -> None:
    del repository.files[f"/org/example/{lost}"]
    with pytest.raises(LocalBrokerError, match=lost.split("/", maxsplit=1)[0]):
        fetch_jars([APP])
    assert cached_jars([APP]) is None


@pytest.mark.parametrize("path", ["library/2.0/library-2.0.pom", "library/2.0/library-2.0.jar"])
def test_a_request_whose_connection_is_lost_is_tried_again(repository: Repository, path: str) -> None:
    repository.dropped.append(f"/org/example/{path}")
    assert list(fetch_jars([APP]).files) == ["app-1.0.jar", "engine-4.0.jar", "library-2.0.jar"]
    assert repository.asked.count(f"/org/example/{path}") == 2


def test_a_pom_that_cannot_be_downloaded_is_an_error_and_not_a_smaller_set(repository: Repository) -> None:
    repository.dropped += 3 * ["/org/example/library/2.0/library-2.0.pom"]
    with pytest.raises(LocalBrokerError, match="library"):
        fetch_jars([APP])


def test_without_a_network_the_error_names_every_solution(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = f"http://127.0.0.1:{free_ports(1)[0]}"
    monkeypatch.setenv("ROCKETSHIM_MAVEN_REPOSITORY", nowhere)
    with pytest.raises(LocalBrokerError) as raised:
        fetch_jars([APP])
    for part in (APP, nowhere, "settings.xml", "ROCKETSHIM_CACHE", "ROCKETSHIM_BOOTSTRAP"):
        assert part in str(raised.value)
    assert repository.asked == []


def test_a_certificate_that_is_not_trusted_is_an_error_that_names_the_way_out(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with https_server(tmp_path, repository.server.RequestHandlerClass) as (url, certificate):
        monkeypatch.setenv("ROCKETSHIM_MAVEN_REPOSITORY", url)
        monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
        with pytest.raises(LocalBrokerError, match=r"does not trust .* certificate: set REQUESTS_CA_BUNDLE"):
            fetch_jars([APP])
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        assert len(fetch_jars([APP]).files) == 3


FETCH = f"from rocketshim_local import fetch_jars; print(len(fetch_jars([{APP!r}]).files))"


def test_two_simultaneous_processes_download_only_one_time(repository: Repository) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", FETCH], stdout=subprocess.PIPE, text=True)  # noqa: S603
        for _ in range(2)
    ]
    assert [process.communicate(timeout=120)[0] for process in processes] == ["3\n", "3\n"]
    assert repository.asked.count("/org/example/engine/4.0/engine-4.0.jar") == 1


@pytest.mark.parametrize("text", ["kafka", "a:b", "a:b:c:d:e", "a:b:1.0;rm", "", "a:b:c@Main"])
def test_an_invalid_coordinate_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="write group:artifact:version"):
        fetch_jars([text])


def test_an_empty_list_of_coordinates_is_rejected() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        fetch_jars([])

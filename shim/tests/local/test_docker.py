import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rocketshim_local.docker import docker_obstacle, image_environment


@contextmanager
def an_engine(path: Path, answer: bytes) -> Iterator[str]:
    """Answer the first connection to a Unix socket."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"unix://{path}"
        thread.join()


def test_an_engine_that_tells_its_version_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketshim_local.docker._ANSWER_TIMEOUT_S", 60.0)
    version = b'{"ApiVersion": "1.47"}'
    with an_engine(
        tmp_path / "s", b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(version), version)
    ) as host:
        assert docker_obstacle({"DOCKER_HOST": host}) is None


def test_without_a_socket_there_is_no_engine(tmp_path: Path) -> None:
    assert docker_obstacle({"DOCKER_HOST": f"unix://{tmp_path}/absent"}) == "no Docker engine answers"
    assert docker_obstacle({"DOCKER_HOST": "tcp://127.0.0.1:1"}) == "no Docker engine answers"
    assert docker_obstacle({"DOCKER_HOST": "tcp://127.0.0.1:port"}) == "no Docker engine answers"


def test_docker_can_be_turned_off() -> None:
    assert docker_obstacle({"ROCKETSHIM_DOCKER": "off"}) == "ROCKETSHIM_DOCKER turns Docker off"


def test_properties_become_the_environment_variables_of_the_image() -> None:
    assert image_environment({"log.retention.ms": "1", "a_b.c-d": "2"}) == {
        "KAFKA_LOG_RETENTION_MS": "1",
        "KAFKA_A__B_C___D": "2",
    }

import socket

import pytest

from rocketshim.errors import LocalBrokerError
from rocketshim_local.probe import admin_client, known_brokers, reserve_port
from test_support.ports import free_ports


def a_listener(port: int) -> socket.socket:
    """Listen as Java does, with SO_REUSEADDR."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    return listener


def test_our_process_can_listen_on_a_reserved_port_and_nobody_gets_it_as_any_free_port() -> None:
    reserved = [reserve_port() for _ in range(40)]
    ports = {each.getsockname()[1] for each in reserved}
    assert len(ports) == 40
    for port in ports:
        a_listener(port).close()
        a_listener(port).close()  # as a node that starts again
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", min(ports)))
    for each in reserved:
        each.close()


def test_a_port_with_a_listener_cannot_be_reserved() -> None:
    with a_listener(0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(LocalBrokerError, match=f"port {port} is in use: stop the process that listens there"):
            reserve_port(port)
    reserve_port(port).close()


def test_a_port_without_a_listener_has_no_brokers() -> None:
    assert known_brokers(admin_client({"bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}"}), timeout_s=0.2) == set()

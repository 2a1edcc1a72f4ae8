import socket

from rocketshim_local.probe import accepts_connections, free_ports, is_free, known_brokers


def test_free_ports_are_different_unused_and_below_the_range_of_outgoing_connections() -> None:
    ports = free_ports(40)
    assert len(set(ports)) == 40
    assert all(20_000 <= port < 32_000 for port in ports)
    assert all(not accepts_connections(port) for port in ports)


def test_a_port_with_a_listener_is_neither_free_nor_returned() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not is_free(port)
        assert accepts_connections(port)
    assert is_free(port)


def test_excluded_ports_are_not_returned() -> None:
    most = set(range(20_000, 32_000)) - set(range(25_000, 25_200))
    assert all(25_000 <= port < 25_200 for port in free_ports(5, besides=most))


def test_a_port_without_a_listener_accepts_no_connections() -> None:
    assert known_brokers({"bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}"}, timeout_s=0.2) == set()

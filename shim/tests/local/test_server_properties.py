import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.errors import ConfigError
from rocketshim_local.server_properties import NodeAddress, render_properties, server_properties

ONE = (NodeAddress(1, 9092, 9192),)
THREE = tuple(NodeAddress(i, 9090 + i, 9190 + i) for i in (1, 2, 3))


def rendered(node_id: int = 1, nodes: tuple[NodeAddress, ...] = ONE, **overrides: str) -> dict[str, str]:
    return server_properties(
        node_id, nodes, data_folder="/data", overrides={k.replace("_", "."): v for k, v in overrides.items()}
    )


def test_every_listener_is_on_the_loopback() -> None:
    for node in THREE:
        properties = rendered(node.node_id, THREE)
        for key in ("listeners", "advertised.listeners"):
            addresses = [listener.split("://")[1] for listener in properties[key].split(",")]
            assert all(address.startswith("127.0.0.1:") for address in addresses)


def test_three_nodes_vote_and_have_three_replicas_of_which_two_must_be_in_sync() -> None:
    properties = rendered(2, THREE)
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:9191,2@127.0.0.1:9192,3@127.0.0.1:9193"
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9192"
    assert properties["default.replication.factor"] == "3"
    assert properties["offsets.topic.replication.factor"] == "3"
    assert properties["transaction.state.log.min.isr"] == "2"


def test_one_node_has_one_replica() -> None:
    properties = rendered()
    factors = {key: value for key, value in properties.items() if "replication.factor" in key or "min.isr" in key}
    assert set(factors.values()) == {"1"}


def test_five_nodes_have_three_replicas() -> None:
    nodes = tuple(NodeAddress(i, 9000 + i, 9100 + i) for i in range(1, 6))
    assert rendered(5, nodes)["default.replication.factor"] == "3"


def test_the_caller_s_properties_take_precedence_over_the_defaults() -> None:
    assert rendered()["auto.create.topics.enable"] == "false"
    assert rendered(auto_create_topics_enable="true")["auto.create.topics.enable"] == "true"


@pytest.mark.parametrize(
    "key", ["process.roles", "node.id", "broker.id", "listeners", "advertised.listeners", "log.dir", "log.dirs"]
)
def test_structural_properties_cannot_be_overridden(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        server_properties(1, ONE, data_folder="/data", overrides={key: "x"})


def test_users_enable_authentication_and_the_authorizer() -> None:
    properties = server_properties(1, ONE, data_folder="/d", overrides={}, users={"admin": "a-s", "worker": "w-s"})
    login = properties["listener.name.sasl_plaintext.plain.sasl.jaas.config"]
    assert login.endswith('username="admin" password="a-s" user_admin="a-s" user_worker="w-s";')
    assert properties["listeners"].startswith("SASL_PLAINTEXT://127.0.0.1:9092,")
    assert properties["super.users"] == "User:admin;User:ANONYMOUS"
    assert "authorizer.class.name" not in rendered()


def test_users_without_admin_are_rejected() -> None:
    with pytest.raises(ConfigError, match="'admin'"):
        server_properties(1, ONE, data_folder="/d", overrides={}, users={"worker": "w"})


@pytest.mark.parametrize("password", ["", 'a"b', "a;b", "a\\b", "a b", "a=b", "ä", "a\nb"])
def test_a_password_that_would_break_the_jaas_line_is_rejected(password: str) -> None:
    with pytest.raises(ConfigError, match="ASCII without space"):
        server_properties(1, ONE, data_folder="/d", overrides={}, users={"admin": password})


def java_reads(text: str) -> dict[str, str]:
    """Read a `.properties` text by those of Java's rules that matter for our text."""
    found = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        units, i = [], 0
        while i < len(value):
            if value[i] != "\\":
                units.append(value[i].encode("utf-16-be"))
                i += 1
            elif value[i + 1] == "u":
                units.append(bytes.fromhex(value[i + 2 : i + 6]))
                i += 6
            else:
                units.append(value[i + 1].encode("utf-16-be"))
                i += 2
        found[key] = b"".join(units).decode("utf-16-be")
    return found


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"])))
def test_java_reads_back_the_rendered_properties(value: str) -> None:
    text = render_properties({"log.dirs": value})
    assert text.isascii()
    assert java_reads(text) == {"log.dirs": value}


def test_a_line_break_in_a_value_starts_no_other_property() -> None:
    assert render_properties({"x": "a\nprocess.roles=broker"}) == "x=a\\nprocess.roles=broker\n"


def test_clients_are_told_the_advertised_port_and_the_node_listens_on_its_own() -> None:
    properties = server_properties(1, ONE, data_folder="/d", overrides={}, advertised_port=9)
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9"
    assert properties["listeners"].startswith(f"PLAINTEXT://127.0.0.1:{ONE[0].port},")

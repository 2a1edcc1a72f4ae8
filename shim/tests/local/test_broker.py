from rocketshim_local.broker import choose


def docker_must_not_be_asked() -> str | None:
    raise AssertionError


def test_a_named_broker_wins_and_docker_is_not_even_asked() -> None:
    kind, why = choose({"ROCKETSHIM_BOOTSTRAP": "kafka:9092"}, docker_must_not_be_asked)
    assert (kind, why) == ("named", "ROCKETSHIM_BOOTSTRAP names it")


def test_an_empty_name_names_nothing() -> None:
    assert choose({"ROCKETSHIM_BOOTSTRAP": ""}, lambda: None)[0] == "docker"


def test_docker_comes_before_the_local_jvm() -> None:
    assert choose({}, lambda: None) == ("docker", "a Docker engine answers")


def test_the_local_jvm_is_last_and_the_reason_is_said() -> None:
    assert choose({}, lambda: "no Docker engine answers") == (
        "local",
        "a JVM on this machine (no Docker engine answers)",
    )

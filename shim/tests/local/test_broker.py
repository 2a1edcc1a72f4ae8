from rocketshim_local.broker import choose


def docker_must_not_be_asked() -> str | None:
    raise AssertionError


def test_a_named_broker_has_precedence_and_docker_is_not_checked() -> None:
    kind, why = choose({"ROCKETSHIM_BOOTSTRAP": "kafka:9092"}, docker_must_not_be_asked)
    assert (kind, why) == ("named", "ROCKETSHIM_BOOTSTRAP names it")


def test_an_empty_variable_names_no_broker() -> None:
    assert choose({"ROCKETSHIM_BOOTSTRAP": ""}, lambda: None)[0] == "docker"


def test_docker_comes_before_the_local_jvm() -> None:
    assert choose({}, lambda: None) == ("docker", "a Docker engine answers")


def test_the_local_jvm_is_the_last_choice_and_the_reason_is_reported() -> None:
    assert choose({}, lambda: "no Docker engine answers") == (
        "local",
        "a JVM on this machine (no Docker engine answers)",
    )

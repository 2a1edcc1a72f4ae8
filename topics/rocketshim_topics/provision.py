"""Compare the cluster's topics with the layout, and create what is missing.

This is the only module of the contract with a Kafka client. `plan` changes nothing. `apply` applies a plan and waits
until the topics can be used. `ensure_topics` does both, for a program that starts. Existing topics are changed only if
the plan was asked to (`grow`, `fix`).

* Topics are described by name (DescribeTopics). The cluster is never listed, and no metadata request is sent that could
  create a topic.
* The error of each future is checked. "Already exists" means that another client was faster; the topic is then read
  again and compared.
* A setting that only costs speed (`Difference.is_note`) is left out if the cluster refuses it, and its change is
  waited for during a few seconds only. Some managed clusters refuse `segment.ms`, others ignore it.
* A controller refuses as a whole a request that creates more than 10,000 topics, partitions and settings together
  (measured, Kafka 4). Therefore several requests create many topics.
* After a creation every partition must have a leader, in as many answers as there are brokers. The client chooses which
  broker answers, and one broker may learn of a topic later than another.

Each call blocks, for about `timeout_s` (default 30 s) at most; call it from a thread that may wait.
"""

# ruff: noqa: SLF001  # librdkafka's own error codes begin with an underscore

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs do not re-export what it documents
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from rocketshim_topics.errors import (
    BrokerUnavailableError,
    ClusterError,
    NotAuthorizedError,
    TopicMismatchError,
    TopicMissingError,
)
from rocketshim_topics.kafka_codes import AWAY, DENIED, MISSING, NO_LOGIN
from rocketshim_topics.layout import SPEED_ONLY, Difference, Plan, TopicSpec, TopicState, compare
from rocketshim_topics.limits import in_batches

__all__ = ["apply", "create_on_use", "ensure_topics", "plan", "read_topics"]

_REFUSED: Final = frozenset({KafkaError.POLICY_VIOLATION, KafkaError.INVALID_CONFIG})
_MOVED: Final = frozenset({KafkaError.NOT_CONTROLLER, KafkaError._DESTROY_BROKER})  # ask again, elsewhere
_LOOK_AGAIN_S: Final = 0.05
_GRACE_S: Final = 5.0
_MOST_CHANGES: Final = 5_000


def plan(
    admin: AdminClient,
    specs: Iterable[TopicSpec],
    *,
    grow: bool = False,
    fix: bool = False,
    timeout_s: float = 30.0,
) -> Plan:
    """Return what exists, what is missing and what differs. Nothing is changed.

    Args:
        admin: a client; it may be shared.
        specs: the required topics (`Layout`).
        grow: the plan adds partitions where there are too few.
        fix: the plan changes settings that differ, and adds partitions without which the shim does not work.
        timeout_s: longest wait for one answer, in seconds.

    Raises:
        BrokerUnavailableError: no broker answered in time.
        NotAuthorizedError: no right to see the topics (Describe).
        ClusterError: any other answer.
    """
    specs = tuple(specs)
    found = read_topics(admin, [spec.name for spec in specs], timeout_s=timeout_s)
    return compare(specs, found, grow=grow, fix=fix)


def read_topics(admin: AdminClient, names: Iterable[str], *, timeout_s: float = 30.0) -> dict[str, TopicState]:
    """Return the state of the existing ones of these topics, by name. Errors as for `plan`."""
    described = _describe(admin, list(names), timeout_s)
    configs = _read_configs(admin, list(described), timeout_s)
    return {name: TopicState(len(topic.partitions), configs.get(name)) for name, topic in described.items()}


def apply(admin: AdminClient, planned: Plan, *, timeout_s: float = 30.0) -> tuple[str, ...]:
    """Apply a plan, and wait until every partition has a leader.

    It creates topics, then adds partitions, then changes settings. If the cluster refuses a step for one topic, the
    step is done for the others, and those after it are not done: apply a new plan when the cause is removed.

    Args:
        admin: a client.
        planned: from `plan`.
        timeout_s: longest wait for each step, in seconds.

    Returns:
        Physical names of the topics that this call created, without those that another client created meanwhile.

    Raises:
        BrokerUnavailableError: no broker answered in time. Part of the plan may be applied: plan and apply again.
        NotAuthorizedError: a right is missing (Create, Alter, AlterConfigs).
        TopicMismatchError: a topic that another client created meanwhile is not as the layout needs it.
        ClusterError: the cluster refused, for example by a policy, or for more replicas than brokers.
    """
    if planned.is_done:
        return ()
    created, raced = _create(admin, planned.missing, timeout_s)
    _change(admin, planned, timeout_s)
    _await_leaders(admin, planned, raced, timeout_s)
    _await_settings(admin, planned, timeout_s)
    if raced:
        _refuse_fatal(plan(admin, raced, timeout_s=timeout_s))
    return created


def ensure_topics(
    admin: AdminClient, specs: Iterable[TopicSpec], *, create: bool = True, timeout_s: float = 30.0
) -> Plan:
    """Ensure that the topics exist and can be used, as a program does at its start.

    Args:
        admin: a client.
        specs: the required topics.
        create: create what is missing.
        timeout_s: longest wait for each step, in seconds.

    Returns:
        The plan that was applied. Its differences, none of them fatal, are worth a warning.

    Raises:
        TopicMissingError: a topic is missing, and `create` is false or the right to create it is missing. The error
            names the command that creates it.
        TopicMismatchError: a topic exists, but the shim would lose messages with it. The error names the settings.
        BrokerUnavailableError, NotAuthorizedError, ClusterError: as for `plan` and `apply`.
    """
    planned = plan(admin, specs, timeout_s=timeout_s)
    _refuse_fatal(planned)
    if planned.missing and not create:
        raise _missing(planned)
    try:
        apply(admin, planned, timeout_s=timeout_s)
    except NotAuthorizedError as error:
        raise _missing(planned, because=f" ({error})") from error
    return planned


def create_on_use(admin: AdminClient, names: Iterable[str], *, timeout_s: float = 30.0) -> bool:
    """Create missing topics if the cluster creates topics when they are used (`auto.create.topics.enable`).

    A send creates its topic on such a cluster. With this, a consumer may also come first. The topics get the brokers'
    default number of partitions and of replicas.

    Args:
        admin: a client.
        names: physical names of the topics.
        timeout_s: longest wait for each step, in seconds.

    Returns:
        Whether the topics exist now. If not, nothing was changed: the cluster creates no topics on use, or the
        principal may not read the brokers' settings, or may not create topics.

    Raises:
        BrokerUnavailableError, ClusterError: as for `plan` and `apply`.
    """
    try:
        settings = _read_broker_settings(admin, timeout_s)
        if settings.get("auto.create.topics.enable") != "true":
            return False
        partitions = int(settings.get("num.partitions", "1"))
        specs = [TopicSpec(name, partitions, grows=False) for name in names]
        apply(admin, plan(admin, specs, timeout_s=timeout_s), timeout_s=timeout_s)
    except NotAuthorizedError:
        return False
    return True


def _missing(planned: Plan, *, because: str = "") -> TopicMissingError:
    names = ", ".join(spec.name for spec in planned.missing)
    commands = "; ".join(dict.fromkeys(spec.init_command for spec in planned.missing))
    return TopicMissingError(f"missing: {names}{because}. Run with the right to create topics: {commands}")


def _refuse_fatal(planned: Plan) -> None:
    if planned.fatal:
        found = "; ".join(map(str, planned.fatal))
        topics = {each.topic for each in planned.fatal}
        commands = dict.fromkeys(f"{spec.init_command} --fix" for spec in planned.specs if spec.name in topics)
        raise TopicMismatchError(
            f"{found}. Messages would be lost. Fix it with the right to alter topics: {'; '.join(commands)}"
        )


def _create(
    admin: AdminClient, specs: tuple[TopicSpec, ...], timeout_s: float
) -> tuple[tuple[str, ...], tuple[TopicSpec, ...]]:
    """Create topics. Return the names created, and the specs of topics that another client had created."""
    if not specs:
        return (), ()
    errors = _create_all(admin, specs, timeout_s)
    refused = {name for name, error in errors.items() if error.code() in _REFUSED}
    plain = [_without_speed_only(spec) for spec in specs if spec.name in refused and SPEED_ONLY & spec.config.keys()]
    for spec in plain:
        del errors[spec.name]
    errors |= _create_all(admin, plain, timeout_s)
    raced = tuple(
        spec for spec in specs if (error := errors.get(spec.name)) and error.code() == KafkaError.TOPIC_ALREADY_EXISTS
    )
    real = {name: error for name, error in errors.items() if error.code() != KafkaError.TOPIC_ALREADY_EXISTS}
    ways_out = {
        spec.name: "; if the cluster allows only other settings, create the topic yourself. What it should have: "
        f"{spec.init_command} --dry-run. Which differences matter: rocketshim doctor"
        for spec in specs
    }
    _raise_first(real, "create", ways_out)
    return tuple(spec.name for spec in specs if spec.name not in errors), raced


def _without_speed_only(spec: TopicSpec) -> TopicSpec:
    return replace(spec, config={name: value for name, value in spec.config.items() if name not in SPEED_ONLY})


def _create_all(admin: AdminClient, specs: Sequence[TopicSpec], timeout_s: float) -> dict[str, KafkaError]:
    """Create topics in as many requests as are needed; return the errors by topic."""
    topics = [
        NewTopic(
            spec.name,
            num_partitions=spec.partitions,
            replication_factor=-1 if spec.replication_factor is None else spec.replication_factor,
            config=dict(spec.config),
        )
        for spec in specs
    ]
    errors: dict[str, KafkaError] = {}
    changes = ((topic, 1 + topic.num_partitions + len(topic.config or {})) for topic in topics)
    for some in in_batches(changes, _MOST_CHANGES):  # as a controller counts
        errors |= _create_some(admin, some, timeout_s)
    return errors


def _create_some(admin: AdminClient, topics: list[NewTopic], timeout_s: float) -> dict[str, KafkaError]:
    """Create topics in one request, again while the controller moves; return the errors by topic."""
    until = time.monotonic() + timeout_s
    while True:
        futures = admin.create_topics(topics, operation_timeout=timeout_s, request_timeout=timeout_s)
        errors = _errors(futures, timeout_s)
        if time.monotonic() > until or not any(error.code() in _MOVED for error in errors.values()):
            return errors
        topics = [topic for topic in topics if topic.topic in errors]
        time.sleep(_LOOK_AGAIN_S)


def _change(admin: AdminClient, planned: Plan, timeout_s: float) -> None:
    changes = [each for each in planned.differences if each.will_change]
    partitions = [NewPartitions(each.topic, int(each.wanted)) for each in changes if each.setting == "partitions"]
    if partitions:
        futures = admin.create_partitions(partitions, operation_timeout=timeout_s, request_timeout=timeout_s)
        _raise_first(_errors(futures, timeout_s), "add partitions to")
    settings = [each for each in changes if each.setting != "partitions"]
    _raise_first(_alter(admin, [each for each in settings if not each.is_note], timeout_s), "change settings of")
    errors = _alter(admin, [each for each in settings if each.is_note], timeout_s)
    _raise_first({name: error for name, error in errors.items() if error.code() not in _REFUSED}, "change settings of")


def _alter(admin: AdminClient, changes: list[Difference], timeout_s: float) -> dict[str, KafkaError]:
    """Change settings; return the errors by topic. Of a topic, all are changed or none."""
    settings: dict[str, list[ConfigEntry]] = {}
    for each in changes:
        entry = ConfigEntry(each.setting, each.wanted, incremental_operation=AlterConfigOpType.SET)
        settings.setdefault(each.topic, []).append(entry)
    if not settings:
        return {}
    resources = [
        ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries) for name, entries in settings.items()
    ]
    altered = admin.incremental_alter_configs(resources, request_timeout=timeout_s)
    return _errors({resource.name: future for resource, future in altered.items()}, timeout_s)


def _await_leaders(admin: AdminClient, planned: Plan, raced: tuple[TopicSpec, ...], timeout_s: float) -> None:
    """Wait until each partition of the topics that were created or grown has a leader, in several answers.

    For topics created concurrently by another client, wait for the partitions that they have. The caller checks the
    number later.
    """
    wanted = {spec.name: 1 if spec in raced else spec.partitions for spec in planned.missing}
    for each in planned.differences:
        if each.will_change and each.setting == "partitions":
            wanted[each.topic] = int(each.wanted)
    if not wanted:
        return
    until = time.monotonic() + timeout_s
    answers = 0
    while True:
        described = _describe(admin, list(wanted), timeout_s)
        waiting = [name for name, partitions in wanted.items() if not _is_led(described.get(name), partitions)]
        answers = 0 if waiting else answers + 1
        if answers >= _broker_count(described):
            return
        if time.monotonic() > until:
            raise BrokerUnavailableError(
                f"after {timeout_s:g} s not every broker knows all leaders of {', '.join(waiting or wanted)}"
            )
        if waiting:
            time.sleep(_LOOK_AGAIN_S)


def _await_settings(admin: AdminClient, planned: Plan, timeout_s: float) -> None:
    """Wait until changed settings can be read. The controller answers before the brokers have them.

    A setting that only costs speed may have been refused or ignored, so it is waited for during `_GRACE_S` only.
    """
    wanted = {(each.topic, each.setting) for each in planned.differences if each.will_change}
    specs = [spec for spec in planned.specs if any(topic == spec.name for topic, _ in wanted)]
    began = time.monotonic()
    until = began + timeout_s
    while True:
        seen = plan(admin, specs, timeout_s=timeout_s).differences
        waiting = [each for each in seen if (each.topic, each.setting) in wanted]
        is_in_grace = time.monotonic() < began + _GRACE_S
        if not any(is_in_grace or not each.is_note for each in waiting):
            return
        if time.monotonic() > until:
            raise BrokerUnavailableError(f"after {timeout_s:g} s a change is not yet in force: {waiting[0]}")
        time.sleep(_LOOK_AGAIN_S)


def _broker_count(described: Mapping[str, Any]) -> int:
    nodes = {replica.id for topic in described.values() for each in topic.partitions for replica in each.replicas}
    return max(1, len(nodes))


def _is_led(topic: Any, partitions: int) -> bool:
    if topic is None or len(topic.partitions) < partitions:
        return False
    return all(each.leader is not None and each.leader.id >= 0 for each in topic.partitions)


def _describe(admin: AdminClient, names: list[str], timeout_s: float) -> dict[str, Any]:
    """Return the descriptions of the existing ones of these topics."""
    if not names:
        return {}
    futures = admin.describe_topics(TopicCollection(names), request_timeout=timeout_s)
    errors = _errors(futures, timeout_s)
    _raise_first({name: error for name, error in errors.items() if error.code() not in MISSING}, "look at")
    return {name: future.result() for name, future in futures.items() if name not in errors}


def _read_configs(admin: AdminClient, names: list[str], timeout_s: float) -> dict[str, dict[str, str]]:
    """Return the settings in force, without topics that were deleted or whose settings may not be read."""
    if not names:
        return {}
    asked = admin.describe_configs(
        [ConfigResource(ResourceType.TOPIC, name) for name in names], request_timeout=timeout_s
    )
    futures = {resource.name: future for resource, future in asked.items()}
    errors = _errors(futures, timeout_s)
    _raise_first(
        {name: error for name, error in errors.items() if error.code() not in DENIED | MISSING}, "read settings of"
    )
    return {
        name: {setting: entry.value for setting, entry in future.result().items() if entry.value is not None}
        for name, future in futures.items()
        if name not in errors
    }


def _read_broker_settings(admin: AdminClient, timeout_s: float) -> dict[str, str]:
    """Return the settings in force of one broker."""
    asked = {"the cluster": admin.describe_cluster(request_timeout=timeout_s)}
    _raise_first(_errors(asked, timeout_s), "look at")
    broker = ConfigResource(ResourceType.BROKER, str(asked["the cluster"].result().nodes[0].id))
    futures = {f"broker {broker.name}": admin.describe_configs([broker], request_timeout=timeout_s)[broker]}
    _raise_first(_errors(futures, timeout_s), "read settings of")
    [future] = futures.values()
    return {name: entry.value for name, entry in future.result().items() if entry.value is not None}


def _errors(futures: Mapping[str, Future[Any]], timeout_s: float) -> dict[str, KafkaError]:
    """Wait for all futures and return the error of each that failed.

    The errors are not raised. The future keeps its error, and a raised error keeps the frames that it passed, and with
    them the admin client and its threads, until the next garbage collection.
    """
    errors: dict[str, KafkaError] = {}
    for name, future in futures.items():
        try:
            error = future.exception(timeout_s + _GRACE_S)
        except TimeoutError as late:
            raise BrokerUnavailableError(f"no answer about {name} within {timeout_s:g} s") from late
        if isinstance(error, KafkaException):
            errors[name] = error.args[0]
        elif error is not None:
            raise error
    return errors


def _raise_first(errors: Mapping[str, KafkaError], doing: str, ways_out: Mapping[str, str] | None = None) -> None:
    """Raise a typed error for the first of the errors, if there is any; `ways_out` are for what the cluster refuses."""
    for name, error in errors.items():
        text = f"cannot {doing} {name}: {error.str()}"
        cause = KafkaException(error)
        if error.code() in DENIED | NO_LOGIN:
            raise NotAuthorizedError(
                f"{text}: the principal lacks the right. Rights of a role: rocketshim acls --role ROLE. The user of "
                "`rocketshim init` also needs Create, Alter and AlterConfigs"
            ) from cause
        if error.code() in AWAY:
            raise BrokerUnavailableError(f"{text}: is the bootstrap address right, and a broker up?") from cause
        if "KIP-464" in error.str():  # "requires broker version <= 2.4.0": the wrong way round
            raise ClusterError(
                f"cannot {doing} {name}: brokers before Kafka 2.4 have no default for the number of copies. Name it "
                "before anything else: rocketshim init --replication-factor N"
            ) from cause
        raise ClusterError(text + (ways_out or {}).get(name, "")) from cause

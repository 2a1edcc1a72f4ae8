"""Which groups and topics the doctor looks at."""

from collections.abc import Iterable
from contextlib import suppress

from rocketshim.errors import ConfigError
from rocketshim_topics.names import TopicNames

__all__ = ["groups_with_retries", "topics_to_read"]


def groups_with_retries(names: TopicNames, visible: Iterable[str]) -> list[str]:
    """Return the groups whose retry topic exists. Groups with an encoded topic name are not found."""
    prefix = names.retry_prefix
    found = []
    for suffix in sorted(name.removeprefix(prefix) for name in visible if name.startswith(prefix)):
        with suppress(ConfigError):  # another program's topic, whose suffix is not a group name
            if names.retry(suffix) == prefix + suffix:
                found.append(suffix)
    return found


def topics_to_read(names: TopicNames, groups: Iterable[str], user_topics: Iterable[str]) -> list[str]:
    """Return the topics to read, each once."""
    ours = [names.schedule, names.parked, names.redrive_log]
    for group in groups:
        ours += [names.retry(group), names.dead_letter(group), names.group_log(group)]
    return list(dict.fromkeys([*ours, *user_topics]))

"""With which settings the doctor connects."""

from contextlib import closing

import pytest

from rocketshim.admin.doctor.gather import _REFUSED, _ClusterReader
from rocketshim_topics import TopicNames


@pytest.mark.parametrize(
    "given",
    ["group.id=payments", "auto.offset.reset=latest", "enable.auto.commit=true", "isolation.level=read_uncommitted"],
)
def test_settings_of_the_users_consumer_are_evaluated_but_not_used(given: str) -> None:
    name, _, value = given.partition("=")
    usable = {name: value for name, value in ((name, value), ("client.id", "me")) if name not in _REFUSED}
    assert usable == {"client.id": "me"}
    with closing(_ClusterReader("127.0.0.1:1", TopicNames(), usable)):
        pass

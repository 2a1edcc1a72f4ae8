"""Every public name of confluent_kafka can be imported from the drop-in, and is the original but for two."""

import importlib

import confluent_kafka
import pytest

from rocketshim import dropin


@pytest.mark.parametrize("name", [name for name in confluent_kafka.__all__ if name not in {"Consumer", "Producer"}])
def test_a_name_is_the_originals(name: str) -> None:
    if not hasattr(confluent_kafka, name):
        importlib.import_module(f"confluent_kafka.{name}")  # a submodule is an attribute once it is imported
    assert getattr(dropin, name) is getattr(confluent_kafka, name)


def test_two_names_are_ours_and_an_unknown_name_is_an_error() -> None:
    assert issubclass(dropin.Consumer, confluent_kafka.Consumer)
    assert issubclass(dropin.Producer, confluent_kafka.Producer)
    with pytest.raises(AttributeError, match="no_such_name"):
        dropin.no_such_name  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("cls", [dropin.Consumer, dropin.Producer])
def test_a_private_name_is_not_one_that_a_subclass_of_the_program_may_have(cls: type) -> None:
    private = [name for name in vars(cls) if name.startswith("_") and not name.startswith("__")]
    assert private
    assert [name for name in private if not name.startswith(("_shim_", "_rocketshim"))] == []

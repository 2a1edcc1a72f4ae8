"""A command as rocketshim runs it: the profile of a cluster is added before typer parses.

`rocketshim.cli.app` gives this class to every command. It puts the values of the profile (`rocketshim.cli.profiles`) in
front of the command line, so that an option that the user typed wins.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from rocketshim.cli.options import CONFIG_VARIABLE, CONNECTION, PROFILE_VARIABLE, config_file
from rocketshim.errors import ConfigError, RocketshimError

if TYPE_CHECKING:
    from rocketshim.cli.profiles import Profile

__all__ = ["Command"]


def _offered(incomplete: str) -> list[str]:
    from rocketshim.cli.profiles import profile_names  # noqa: PLC0415 - it imports pydantic

    try:
        return [name for name in profile_names() if name.startswith(incomplete)]
    except RocketshimError:
        return []


@cache
def _profile_option() -> Any:
    """Return the option `--profile`, made by typer from an annotation as every other option."""
    made = typer.Typer()

    @made.command()
    def _carrier(
        profile: Annotated[
            str | None,
            typer.Option(
                "--profile",
                "-p",
                envvar=PROFILE_VARIABLE,
                metavar="NAME",
                help=f"Cluster from the configuration file (~/.config/rocketshim/config.toml, or {CONFIG_VARIABLE}).",
                expose_value=False,
                autocompletion=_offered,
                rich_help_panel=CONNECTION,
            ),
        ] = None,
    ) -> None:
        del profile

    [option] = (each for each in typer.main.get_command(made).params if each.name == "profile")
    return option


class Command(TyperCommand):
    """A command that accepts `--profile` if it connects to a cluster or opens a lake."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if any(_long(each) in {"--bootstrap", "--lake"} for each in self.params):
            self.params.append(_profile_option())

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add the values of the profile, and parse."""
        words = list(args)
        if ctx.resilient_parsing:  # the shell asks for completions: no error may disturb it
            with suppress(RocketshimError):
                words = [*self._profile_words(words), *words]
        elif _profile_option() in self.params and not {"--help", "-h"} & set(words):
            words = [*self._profile_words(words), *words]
        return super().parse_args(ctx, words)

    def _takes_value(self, option: str) -> bool:
        return any(option in each.opts and not getattr(each, "is_flag", False) for each in self.params)

    def _given(self, words: list[str], option: str) -> str | None:
        """Return the last value that the user typed for an option, in any of its spellings; None if there is none."""
        spellings = next((each.opts for each in self.params if option in each.opts), [])
        value = None
        rest = iter(words)
        for word in rest:
            if word == "--":
                break
            name, equals, text = word.partition("=")
            if word[:2] in spellings and not word.startswith("--") and len(word) > 2:
                value = word[2:]
            elif name in spellings:
                value = text if equals else next(rest, "")
            elif not equals and self._takes_value(name):
                next(rest, None)
        return value

    def _profile_words(self, words: list[str]) -> list[str]:
        asked = self._given(words, "--profile")
        if asked is None and not os.environ.get(PROFILE_VARIABLE) and not config_file().exists():
            return []
        from rocketshim.cli.profiles import chosen_profile  # noqa: PLC0415 - it imports pydantic

        profile = chosen_profile(asked)
        if profile is None:
            return []
        typed_brokers = self._given(words, "--bootstrap") is not None
        if profile.bootstrap is not None and asked is not None and typed_brokers:
            raise ConfigError(f"--profile {asked} names the brokers, and so does --bootstrap: use one of them")
        by_variable = asked is None and bool(os.environ.get("ROCKETSHIM_BOOTSTRAP"))
        if profile.bootstrap is not None and (typed_brokers or by_variable):
            return []  # its passwords are not for other brokers
        return list(self._words_of(profile, words, is_asked=asked is not None))

    def _words_of(self, profile: "Profile", words: list[str], *, is_asked: bool) -> Iterator[str]:
        for option, values in profile.options().items():
            parameter = next((each for each in self.params if option in each.opts), None)
            if parameter is None or (not parameter.multiple and self._given(words, option) is not None):
                continue
            variable = parameter.envvar
            if not is_asked and isinstance(variable, str) and os.environ.get(variable):
                continue
            for value in values:
                yield f"{option}={value}"


def _long(parameter: Any) -> str:
    return next((name for name in parameter.opts if name.startswith("--")), "")

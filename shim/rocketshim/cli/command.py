"""A command as rocketshim runs it: options before the command and the profile are added before typer parses.

`rocketshim.cli.app` gives this class to every command. It puts the values of the profile (`rocketshim.cli.profiles`)
and the options that stand before the command in front of the command's own words, so that what stands behind it wins.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from rocketshim.cli.config_file import PROFILE_VARIABLE, config_file
from rocketshim.errors import ConfigError

if TYPE_CHECKING:
    from rocketshim.cli.profiles import Profile

__all__ = ["Command"]


class Command(TyperCommand):
    """A command that also takes the shared options from before its name, and from a profile if it has `--profile`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add the options before the command and the values of the profile, and parse."""
        root = ctx.find_root()
        typed = {name: value for name, value in root.params.items() if _is_typed(root, name)}
        words = [*_words(root.command.params, typed), *args]
        if ctx.resilient_parsing:  # the shell asks for completions: no error may disturb it
            with suppress(Exception):
                words = [*self._profile_words(ctx, words), *words]
        elif not {"--help", "-h"} & set(words):
            words = [*self._profile_words(ctx, words), *words]
        return super().parse_args(ctx, words)

    def _profile_words(self, ctx: Any, words: list[str]) -> list[str]:
        if not any(each.name == "profile" for each in self.params):
            return []
        typed, _, _ = self.make_parser(ctx).parse_args(args=list(words))
        asked, typed_brokers = typed.get("profile"), "bootstrap" in typed
        if asked is None and not os.environ.get(PROFILE_VARIABLE) and not config_file().exists():
            return []
        from rocketshim.cli.profiles import chosen_profile  # noqa: PLC0415 - it imports pydantic

        profile = chosen_profile(asked)
        if profile is None:
            return []
        if profile.bootstrap is not None and asked is not None and typed_brokers:
            raise ConfigError(f"--profile {asked} names the brokers, and so does --bootstrap: use one of them")
        by_variable = asked is None and bool(os.environ.get("ROCKETSHIM_BOOTSTRAP"))
        if profile.bootstrap is not None and (typed_brokers or by_variable):
            return []  # its passwords are not for other brokers
        return [*_words(self.params, self._defaults(profile, typed, is_asked=asked is not None))]

    def _defaults(self, profile: "Profile", typed: Mapping[str, Any], *, is_asked: bool) -> dict[str, Any]:
        """Return the values of the profile that nothing else sets; those of repeatable options are added to others."""
        found = {name: value for name, value in profile.model_dump().items() if value is not None}
        for each in self.params:
            is_set = each.name in typed and not getattr(each, "multiple", False)
            if is_set or (not is_asked and isinstance(each.envvar, str) and os.environ.get(each.envvar)):
                found.pop(str(each.name), None)
        return found


def _is_typed(context: Any, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _words(parameters: list[Any], values: Mapping[str, Any]) -> Iterator[str]:
    """Yield values of options as they would be typed; leave out options that the command does not have."""
    for each in parameters:
        value = values.get(each.name)
        if value is True:
            yield each.opts[0]
        elif value is not None:
            yield from (f"{each.opts[0]}={text}" for text in ([value] if isinstance(value, str) else value))

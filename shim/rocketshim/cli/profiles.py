"""Profiles: named clusters in `~/.config/rocketshim/config.toml`, so that nobody has to type addresses and passwords.

    profile = "local"                       # used when neither --profile nor ROCKETSHIM_PROFILE names another one

    [profiles.local]
    bootstrap = "localhost:9092"

    [profiles.production]
    bootstrap = "kafka-1:9093,kafka-2:9093"
    namespace = "shop"
    client = ["@/etc/rocketshim/client.properties", "client.id=on-call"]

Each entry is the default of the option with its name. What the user types wins. A profile that was asked for with
`--profile` also wins over environment variables; one that was not asked for does not. A profile that names brokers is
used as a whole or not at all: if `--bootstrap` names other brokers, they do not get its passwords.
"""

import tomllib

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from rocketshim.cli.config_file import PROFILE_VARIABLE, config_file
from rocketshim.errors import ConfigError
from rocketshim.settings import advice

__all__ = ["Profile", "chosen_profile", "profile_names"]


class Profile(BaseModel):
    """The values of one profile; None: the profile does not set the option."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    bootstrap: str | None = Field(default=None, min_length=1)
    namespace: str | None = None
    delay_levels: str | None = None
    client: tuple[str, ...] = ()
    java_client: tuple[str, ...] = ()
    lake: str | None = None


class _ConfigFile(BaseSettings):
    """The configuration file; `ROCKETSHIM_PROFILE` wins over its `profile`."""

    model_config = SettingsConfigDict(env_prefix="ROCKETSHIM_", extra="forbid", hide_input_in_errors=True)

    profile: str | None = None
    profiles: dict[str, Profile] = {}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read the environment first, then the file."""
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, config_file())


def profile_names() -> list[str]:
    """Return the names of all profiles, sorted."""
    return sorted(_read().profiles)


def chosen_profile(asked: str | None) -> Profile | None:
    """Return the profile of this name; without a name the one that the environment or the file chooses, if any."""
    path, config = config_file(), _read()
    name = asked if asked is not None else config.profile
    if not name:
        return None
    if name in config.profiles:
        return config.profiles[name]
    named_by = "--profile" if asked is not None else f"{PROFILE_VARIABLE}, or profile in the file,"
    if not path.exists():
        raise ConfigError(f"{named_by} names {name!r}, but there is no file {path}; {_example(name)}")
    known = advice(name, config.profiles) or f"it has {', '.join(sorted(config.profiles)) or 'none'}"
    raise ConfigError(f"{named_by} names {name!r}, but {path} has no such profile: {known}; {_example(name)}")


def _example(name: str) -> str:
    return f'to add it, write [profiles.{name}] and, below it, bootstrap = "host:9092"'


def _read() -> _ConfigFile:
    path = config_file()
    try:
        if path.is_dir():  # pydantic-settings would pass over it
            raise IsADirectoryError(path)
        return _ConfigFile()
    except ValidationError as error:
        found = "; ".join(map(_text, error.errors(include_url=False, include_input=False)))
        raise ConfigError(f"{path}: {found}") from None  # pydantic's own text may have a password
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _text(item: object) -> str:
    """Describe one error of the file without its value, which may be a password."""
    facts = item if isinstance(item, dict) else {}
    name = ".".join(map(str, facts["loc"]))
    if facts["type"] != "extra_forbidden":
        return f"{name}: {facts['msg']}"
    known = Profile.model_fields if len(facts["loc"]) > 1 else _ConfigFile.model_fields
    hint = advice(str(facts["loc"][-1]), known) or f"known: {', '.join(known)}"
    return f"{name} is not a setting; {hint}"

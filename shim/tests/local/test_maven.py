import pytest

from rocketshim.errors import ConfigError
from rocketshim_local.maven import CENTRAL, central_url, mirror_of_central


def settings(*mirrors: tuple[str, str], namespace: str = "http://maven.apache.org/SETTINGS/1.2.0") -> str:
    entries = "".join(f"<mirror><id>m</id><mirrorOf>{of}</mirrorOf><url>{url}</url></mirror>" for of, url in mirrors)
    return f'<settings xmlns="{namespace}"><mirrors>{entries}</mirrors></settings>'


@pytest.mark.parametrize("mirror_of", ["central", "*", "external:*", "other, central", "*,!other"])
def test_a_mirror_that_covers_central_is_used(mirror_of: str) -> None:
    assert mirror_of_central(settings((mirror_of, "https://m.example/maven"))) == "https://m.example/maven"


@pytest.mark.parametrize("mirror_of", ["other", "*,!central", "!central", "external:http:*", ""])
def test_a_mirror_that_does_not_cover_central_is_skipped(mirror_of: str) -> None:
    assert mirror_of_central(settings((mirror_of, "https://m.example/maven"))) is None


def test_the_first_matching_mirror_is_used() -> None:
    text = settings(("other", "https://a.example"), ("*", "https://b.example"), ("central", "https://c.example"))
    assert mirror_of_central(text) == "https://b.example"


def test_settings_without_an_xml_namespace_are_read_too() -> None:
    text = "<settings><mirrors><mirror><mirrorOf>*</mirrorOf><url>https://b.example</url></mirror></mirrors></settings>"
    assert mirror_of_central(text) == "https://b.example"


@pytest.mark.parametrize("text", ["", "<settings>", "<settings/>", "no xml"])
def test_empty_or_invalid_settings_have_no_mirror(text: str) -> None:
    assert mirror_of_central(text) is None


def test_the_mirror_by_which_maven_blocks_plain_http_is_skipped() -> None:
    assert mirror_of_central(settings(("external:http:*", "http://0.0.0.0/"))) is None


def test_precedence_is_variable_user_settings_installation_settings_central(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, installation = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("maven")
    monkeypatch.setenv("HOME", str(home))
    assert central_url({}) == CENTRAL
    (installation / "conf").mkdir()
    (installation / "conf" / "settings.xml").write_text(settings(("*", "https://installation.example/")))
    environ = {"MAVEN_HOME": str(installation)}
    assert central_url(environ) == "https://installation.example"
    (home / ".m2").mkdir()
    (home / ".m2" / "settings.xml").write_text(settings(("central", "https://user.example/")))
    assert central_url(environ) == "https://user.example"
    assert central_url(environ | {"ROCKETSHIM_MAVEN_REPOSITORY": "http://127.0.0.1:1/"}) == "http://127.0.0.1:1"


def test_the_error_for_an_invalid_repository_address_has_its_value() -> None:
    with pytest.raises(ConfigError, match="'ftp://x' is not an http"):
        central_url({"ROCKETSHIM_MAVEN_REPOSITORY": "ftp://x"})

from pathlib import Path

import pytest

from rocketshim.cli.config_file import CONFIG_VARIABLE


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the configuration file, which does not exist yet: no test depends on the user's own."""
    path = tmp_path / "config.toml"
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    for name in ("PROFILE", "BOOTSTRAP", "NAMESPACE", "CLIENT", "LAKE"):
        monkeypatch.delenv(f"ROCKETSHIM_{name}", raising=False)
    return path

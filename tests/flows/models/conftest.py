"""The shared server, and a root for commands without `--root`."""

import pytest


@pytest.fixture(autouse=True)
def _root(shared_server: None, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BESSEMER_ROOT", f"{tmp_path}/root")

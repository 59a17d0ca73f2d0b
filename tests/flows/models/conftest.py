"""One Prefect server for the commands of these tests, which would each start one of their own."""

from collections.abc import Iterator

import pytest

from flows.commands.run import quieten_prefect


@pytest.fixture(scope="session", autouse=True)
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    quieten_prefect(verbose=False)
    from flows.service.local_server import prefect_server

    with prefect_server(tmp_path_factory.mktemp("server")):
        yield


@pytest.fixture(autouse=True)
def _root(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """For commands without `--root`."""
    monkeypatch.setenv("BESSEMER_ROOT", f"{tmp_path}/root")

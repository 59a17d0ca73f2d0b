"""The password of the server lies in a file of the owner's alone, and goes no further than it must."""

import base64
import http.server
import threading
import urllib.request
from pathlib import Path

import httpx
import pytest

from flows.service.api import post
from flows.service.files import (
    CLIENT_AUTH,
    SERVER_AUTH,
    Known,
    ServiceFiles,
    read_password,
    server_credentials,
    use_password,
    write_password,
)
from model.environment import reach_this_machine_directly
from model.errors import InputError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(CLIENT_AUTH, raising=False)
    monkeypatch.delenv(SERVER_AUTH, raising=False)
    path = tmp_path / "password"
    path.write_text("me:word\n")
    path.chmod(0o600)
    return path


def test_it_is_one_line_of_user_and_password(file: Path) -> None:
    assert read_password(file) == "me:word"
    for wrong in ("word", "me:", ":word", "me:word\nyou:word", ""):
        file.write_text(wrong)
        with pytest.raises(InputError, match="one line, USER:PASSWORD") as reported:
            read_password(file)
        assert "word" not in str(reported.value).replace(str(file), "").replace("password", "")


def test_a_file_that_others_may_read_is_refused(file: Path) -> None:
    file.chmod(0o640)
    with pytest.raises(InputError, match="others may read it; `chmod 600"):
        read_password(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: cannot be read"):
        read_password(tmp_path / "nowhere")


def test_requests_give_it(file: Path) -> None:
    heard: list[str | None] = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        post(url, {})
        use_password(file)
        post(url, {})
        server.shutdown()
    assert heard == [None, f"Basic {base64.b64encode(b'me:word').decode()}"]


def test_a_root_that_is_moved_keeps_its_password(tmp_path: Path) -> None:
    files = ServiceFiles(tmp_path / "root")
    assert files.password_file() is None
    files.remember(Known(port=4321, password_file=str(write_password(files.own_password))))
    (tmp_path / "root").rename(tmp_path / "moved")
    assert ServiceFiles(tmp_path / "moved").password_file() == tmp_path / "moved" / "service" / "password"


def test_only_the_server_gets_what_it_asks_for(file: Path, tmp_path: Path) -> None:
    files = ServiceFiles(tmp_path / "root")
    files.folder.mkdir(parents=True)
    files.remember(Known(port=4321, password_file=str(file)))
    use_password(files.password_file())
    assert files.environment()[CLIENT_AUTH] == "me:word"
    assert SERVER_AUTH not in files.environment()
    assert server_credentials(files.password_file()) == {SERVER_AUTH: "me:word"}
    assert not [path for path in files.folder.iterdir() if "word" in path.read_text().replace("password", "")]


@pytest.mark.parametrize("named", [None, "example.org, internal", "*"])
def test_no_proxy_is_sent_the_password_of_a_server_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        # Set first, so that what is set below is taken back too.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    if named is not None:
        monkeypatch.setenv("NO_PROXY", named)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    reach_this_machine_directly()
    for host in ("127.0.0.1:4200", "localhost:4200"):
        assert urllib.request.proxy_bypass(host)
    assert bool(urllib.request.proxy_bypass("example.org")) == (named is not None)
    assert bool(urllib.request.proxy_bypass("prefect.io")) == (named == "*")
    with httpx.Client() as client:
        direct = client._transport
        assert client._transport_for_url(httpx.URL("http://127.0.0.1:4200/api")) is direct
        assert (client._transport_for_url(httpx.URL("http://prefect.io")) is direct) == (named == "*")

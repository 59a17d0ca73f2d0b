"""Where `bessemer serve start` listens: beyond the loopback interface only with TLS, or behind a proxy."""

import datetime
import ipaddress
import os
import socket
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from flows.cli import main
from flows.service.api import OWN_AUTHORITY, is_healthy, post
from flows.service.files import Known, ServiceFiles, use_password, write_password
from flows.service.processes import started
from flows.service.server import ServiceOptions, check_free, check_open, spawn_server, start_service
from model.checksummed_json import write_sealed
from model.errors import Infra, InputError


@pytest.fixture
def tls(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that it signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bessemer")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate, own = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    own.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, own


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_a_loopback_address_needs_nothing(host: str) -> None:
    check_open(ServiceOptions(host, 4200, "quickstart"))


@pytest.mark.parametrize(
    ("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6), ("localhost", socket.AF_INET)]
)
def test_a_port_is_taken_where_another_server_holds_it_and_nowhere_else(
    host: str, family: socket.AddressFamily
) -> None:
    with socket.socket(family) as other:
        try:
            other.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            InputError, match=f"serve start --host {host} --port {port}: .*Another server holds the port"
        ):
            check_free(host, port)
    check_free(host, port)


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "nowhere.invalid"])
def test_an_address_that_is_not_this_machines_is_not_called_taken(host: str) -> None:
    with pytest.raises(InputError, match=f"serve start --host {host} --port 4200: .*Name an address of this machine"):
        check_free(host, 4200)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.2", "127.0.0.2"),
        ("0.0.0.0", "127.0.0.1"),
        ("::1", "[::1]"),
        ("::", "[::1]"),
    ],
)
def test_the_server_is_reached_from_here_at_an_address_of_its_family(host: str, address: str, tmp_path: Path) -> None:
    files = ServiceFiles(tmp_path)
    files.remember(Known(host, 4200))
    assert files.api_url == f"http://{address}:4200/api"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "machine.example.org", "127.0.0.1.example.org"])
def test_another_address_needs_tls_or_a_proxy(host: str, tls: tuple[Path, Path]) -> None:
    with pytest.raises(InputError, match=r"go over the network unencrypted.*--tls-certificate.*--behind-proxy"):
        check_open(ServiceOptions(host, 4200, "quickstart"))
    with pytest.raises(InputError, match="unencrypted"):
        check_open(ServiceOptions(host, 4200, "quickstart", addresses=("https://bessemer.example.org",)))
    check_open(ServiceOptions(host, 4200, "quickstart", behind_proxy=True))
    check_open(ServiceOptions(host, 4200, "quickstart", tls=tls, addresses=("https://bessemer.example.org",)))


def test_a_certificate_needs_its_key_and_its_address(tls: tuple[Path, Path], tmp_path: Path) -> None:
    for addresses in ((), ("http://bessemer.example.org",)):
        with pytest.raises(InputError, match="name the address that the certificate is for"):
            check_open(ServiceOptions("0.0.0.0", 4200, "quickstart", tls=tls, addresses=addresses))
    for wrong in ((tls[1], tls[0]), (tls[0], tls[0]), (tmp_path / "nowhere", tls[1])):
        with pytest.raises(InputError, match="no certificate with its key"):
            check_open(
                ServiceOptions("0.0.0.0", 4200, "quickstart", tls=wrong, addresses=("https://bessemer.example.org",))
            )


def test_options_that_a_running_service_does_not_take_are_named(tmp_path: Path) -> None:
    files = ServiceFiles(tmp_path)
    files.folder.mkdir()
    for process in (files.server, files.worker, files.keeper):
        write_sealed(process.record, {"pid": os.getpid(), "started": started(os.getpid())})
    files.remember(Known(port=4311, workplace=str(tmp_path), recipe="quickstart"))
    said: list[str] = []
    start_service(tmp_path, ServiceOptions("127.0.0.1", 4311, "quickstart"), said.append)
    assert said == ["the service is already running"]
    options = ServiceOptions("127.0.0.1", 4312, "gpt3", addresses=("https://bessemer.example.org/",))
    start_service(tmp_path, options, said.append)
    assert said[2:] == [
        "it keeps port 4311 and not 4312, recipe quickstart and not gpt3, addresses none and not"
        f" https://bessemer.example.org: `bessemer serve stop --root {tmp_path}`, then `serve start` with these options"
    ]
    address = "postgresql://me:secret@machine/runs"
    options = ServiceOptions("127.0.0.1", 4311, "quickstart", address, tmp_path / "words")
    start_service(tmp_path, options, said.append)
    assert said[4].startswith(
        f"it keeps database sqlite and not postgresql://me@machine/runs, password file {files.own_password} and not"
        f" {tmp_path}/words: "
    )
    database, words = "postgresql://me@machine/runs", str(tmp_path / "words")
    files.remember(replace(files.known, database=database, password_file=words))
    start_service(tmp_path, options, said.append)
    start_service(tmp_path, ServiceOptions("127.0.0.1", 4311, "quickstart"), said.append)
    assert said[5:] == ["the service is already running"] * 2


def test_options_that_a_running_server_does_not_take_are_named_where_the_worker_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deployments are written again with a worker, so that the recipe applies."""
    monkeypatch.setattr("flows.service.server._start", lambda files, options, notify: None)
    files = ServiceFiles(tmp_path)
    files.folder.mkdir()
    write_sealed(files.server.record, {"pid": os.getpid(), "started": started(os.getpid())})
    files.remember(Known(port=4311, workplace=str(tmp_path), recipe="quickstart"))
    said: list[str] = []
    start_service(tmp_path, ServiceOptions("127.0.0.1", 4311, "gpt3"), said.append)
    assert said == []
    start_service(tmp_path, ServiceOptions("127.0.0.1", 4312, "gpt3"), said.append)
    assert said == [
        "the server is already running",
        f"it keeps port 4311 and not 4312: `bessemer serve stop --root {tmp_path}`, then `serve start` with these"
        " options",
    ]


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--host", "0.0.0.0"], "go over the network unencrypted"),
        (["--tls-key", "key.pem"], "belong together"),
        (["--address", "bessemer.example.org"], "is no address of a server"),
    ],
)
def test_up_refuses_before_it_starts_anything(
    words: list[str], reported: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.cli.filter_environment", lambda: None)  # It changes this process.
    monkeypatch.setattr("sys.argv", ["bessemer", "serve", "start", "--root", str(tmp_path / "root"), *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == InputError.exit_code
    assert reported in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.log"))
    assert not list(tmp_path.rglob("password"))


@pytest.mark.prove
def test_a_server_with_a_certificate_is_reached_by_the_address_of_it(
    tls: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PREFECT_API_AUTH_STRING", OWN_AUTHORITY):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    files = ServiceFiles(tmp_path / "root")
    password = write_password(files.own_password)
    known = Known(port=port, tls=[str(path) for path in tls], addresses=[f"https://127.0.0.1:{port}"])
    files.remember(known)
    use_password(password)
    spawn_server(files)
    try:
        assert files.api_url == f"https://127.0.0.1:{port}/api"
        while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
            assert files.server.pid() is not None, files.server.end_of_log()
            time.sleep(0.2)
        with pytest.raises(Infra, match=f"is not trusted.*{OWN_AUTHORITY}=FILE"):
            is_healthy(files.api_url)
        monkeypatch.setenv(OWN_AUTHORITY, str(tls[0]))
        assert is_healthy(files.api_url)
        assert post(f"{files.api_url}/flow_runs/count", {}) == 0
        with pytest.raises(OSError, match=r"reset|closed|Empty|Remote"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=10)
    finally:
        files.server.stop(seconds=20)

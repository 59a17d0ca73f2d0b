"""What people are told, through a real HTTP server and a real SMTP server on the loopback."""

import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_string
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from flows.nightly.notify import tell
from flows.nightly.settings import NotifyConfig

MESSAGE = {
    "event": "blocked",
    "subject": "night 1\nof r: blocked",
    "text": "Worse on notes.\n.\nPage: p\n",
    "why": "worse",
}


@contextmanager
def served(server: socketserver.BaseServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]  # pyright: ignore[reportReturnType]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def webhook(*answers: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An address, and what was posted there; the first answers are those codes, all others 204."""
    heard: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the library's name
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.append({"path": self.path, "headers": dict(self.headers), "json": json.loads(body)})
            self.send_response([*answers, 204][min(len(heard) - 1, len(answers))])
            self.end_headers()

        def log_message(self, format: str, *words: Any) -> None:
            """Nothing on the screen of the tests."""

    with served(HTTPServer(("127.0.0.1", 0), Handler)) as port:
        yield f"http://127.0.0.1:{port}/hooks/nights", heard


@contextmanager
def mailbox() -> Iterator[tuple[str, list[str]]]:
    """HOST:PORT that speaks as much SMTP as a client needs, and the conversations that it had."""
    heard: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            said: list[str] = []
            heard.append("")

            def answer(line: str) -> None:
                self.wfile.write(f"{line}\r\n".encode())

            answer("220 here")
            within = False
            for raw in self.rfile:
                line = raw.decode().rstrip("\r\n")
                said.append(line)
                if within:
                    within = line != "."
                    if not within:
                        answer("250 taken")
                elif line.upper() == "DATA":
                    within = True
                    answer("354 go on")
                else:
                    answer("221 bye" if line.upper() == "QUIT" else "250 yes")
                heard[-1] = "\n".join(said)
                if line.upper() == "QUIT" and not within:
                    return

    with served(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)) as port:
        yield f"127.0.0.1:{port}", heard


def test_a_webhook_gets_the_message_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BESSEMER_WEBHOOK_TOKEN", "t0ken")
    with webhook() as (address, heard):
        assert tell(NotifyConfig(webhook=address), "blocked", MESSAGE) == ["webhook: sent"]
    (one,) = heard
    assert one["path"] == "/hooks/nights"
    assert one["json"] == MESSAGE
    assert one["headers"]["Authorization"] == "Bearer t0ken"
    assert one["headers"]["Content-Type"] == "application/json"


def test_only_what_was_asked_for_is_told() -> None:
    with webhook() as (address, heard):
        assert tell(NotifyConfig(webhook=address), "promoted", MESSAGE) == []
        assert tell(NotifyConfig(webhook=address, on=("promoted",)), "promoted", MESSAGE) == ["webhook: sent"]
        assert tell(NotifyConfig(), "failed", MESSAGE) == []
    assert len(heard) == 1


def test_a_mail_is_one_letter_to_all_with_its_subject_on_one_line() -> None:
    with mailbox() as (server, heard):
        config = NotifyConfig(mail_to=("a@example.org", "b@example.org"), mail_from="m@example.org", mail_server=server)
        assert tell(config, "failed", MESSAGE) == ["mail: sent"]
    (conversation,) = heard
    head, _, rest = conversation.partition("\ndata\n")
    assert "mail FROM:<m@example.org>" in head
    assert [line for line in head.splitlines() if line.startswith("rcpt")] == [
        "rcpt TO:<a@example.org>",
        "rcpt TO:<b@example.org>",
    ]
    letter = message_from_string(rest.partition("\n.\nquit")[0])
    assert letter["Subject"] == "night 1 of r: blocked"
    assert "Worse on notes." in letter.get_payload()


def test_a_server_that_is_in_trouble_is_asked_again_and_what_became_of_it_is_told_without_addresses() -> None:
    with webhook(503, 500) as (address, heard):
        assert tell(NotifyConfig(webhook=address), "failed", MESSAGE, pause=0.0) == ["webhook: sent"]
        assert len(heard) == 3
    with webhook(503, 503, 404) as (address, _):
        told = tell(NotifyConfig(webhook=address), "failed", MESSAGE, pause=0.0)
    assert told == ["webhook: failed after 3 attempts (the server answered 404)"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{probe.getsockname()[1]}"
        both = NotifyConfig(webhook=f"http://{nobody}/s3cret", mail_to=("a@example.org",), mail_server=nobody)
        told = tell(both, "failed", MESSAGE, pause=0.0)
    assert told == [
        "webhook: failed after 3 attempts (ConnectionRefusedError)",
        "mail: failed after 3 attempts (ConnectionRefusedError)",
    ]


def test_a_password_is_sent_in_tls_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BESSEMER_MAIL_USER", "u")
    monkeypatch.setenv("BESSEMER_MAIL_PASSWORD", "s3cret")
    with mailbox() as (server, heard):
        (told,) = tell(NotifyConfig(mail_to=("a@example.org",), mail_server=server), "failed", MESSAGE)
    assert "set notify.mail_starttls = true" in told
    assert heard == []

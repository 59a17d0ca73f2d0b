"""Real servers on the loopback that receive the notifications of nightly runs."""

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

Webhook = Callable[..., AbstractContextManager[tuple[str, list[dict[str, Any]]]]]
Mailbox = Callable[[], AbstractContextManager[tuple[str, list[str]]]]


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
def a_webhook(*answers: int, get: int = 501, to: str = "") -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An address, and what was posted there; the first answers are those codes, all others 204, and to GET `get`; each
    says that it is found at `to`, where that is given."""
    heard: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the library's name
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.append({"path": self.path, "headers": dict(self.headers), "json": json.loads(body)})
            self.send_response([*answers, 204][min(len(heard) - 1, len(answers))])
            if to:
                self.send_header("Location", to)
            self.end_headers()

        def do_GET(self) -> None:  # the library's name
            self.send_response(get)
            self.end_headers()

        def log_message(self, format: str, *words: Any) -> None:
            """Nothing on the screen of the tests."""

    with served(HTTPServer(("127.0.0.1", 0), Handler)) as port:
        yield f"http://127.0.0.1:{port}/hooks/nights", heard


@contextmanager
def a_mailbox() -> Iterator[tuple[str, list[str]]]:
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


@pytest.fixture
def webhook() -> Webhook:
    return a_webhook


@pytest.fixture
def mailbox() -> Mailbox:
    return a_mailbox

"""A page on this machine for a conversation with a model: one file of HTML, and answers streamed as lines of JSON.

The server listens at 127.0.0.1 alone. A random token in its address keeps other users of the machine out. A web page
elsewhere can send requests here too, under a domain that resolves to this machine (DNS rebinding), so that the `Host`
and `Origin` of every request are checked. Nothing is stored: the page sends the whole conversation with each request.
"""

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from flows.models.chat import Answer, Chat
from model.errors import BessemerError, InputError
from model.finetune.chat_template import read_messages
from model.inference.generate import Sampling

PAGE = Path(__file__).with_name("chat.html")

MAX_REQUEST_BYTES = 1 << 20

MAX_TOKENS = 4096
"""Largest number of tokens of an answer that a page may ask for."""

SECONDS = 60.0
"""Time after which a connection that sends nothing is closed."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@contextmanager
def chat_server(
    chat: Chat, title: str, sampling: Sampling, tokens: int, port: int = 0
) -> Iterator[ThreadingHTTPServer]:
    """Yield a server whose `serve_forever` answers requests; `address_of` returns where. Port 0 means any free one.

    Raises InputError where the port is taken.
    """
    try:
        server = _Server(("127.0.0.1", port), _Handler)
    except OSError as error:
        raise InputError(
            f"port {port} of this machine cannot be used ({error}); name another, or leave --port out"
        ) from error
    server.chat, server.token, server.busy = chat, secrets.token_urlsafe(24), threading.Lock()
    settings = {
        "title": title,
        "messages": chat.answers_messages,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "tokens": tokens,
    }
    # Inside a script element only `<` could end it.
    known = json.dumps(settings).replace("<", "\\u003c")
    server.page = PAGE.read_text(encoding="utf-8").replace("/*SETTINGS*/null", known).encode()
    server.top_k = sampling.top_k
    try:
        yield server
    finally:
        server.server_close()


def address_of(server: ThreadingHTTPServer) -> str:
    """Return the address of the page."""
    assert isinstance(server, _Server), "one of `chat_server`"
    return f"http://127.0.0.1:{server.server_address[1]}/{server.token}/"


class _Server(ThreadingHTTPServer):
    chat: Chat
    token: str
    page: bytes
    top_k: int | None
    busy: threading.Lock


class _Handler(BaseHTTPRequestHandler):
    """Answers the page and its requests, and refuses all others."""

    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = SECONDS
    server_version, sys_version = "bessemer", ""

    def do_GET(self) -> None:
        if self._refused(""):
            return
        self._begin(200, "text/html; charset=utf-8", len(self.server.page))
        self.wfile.write(self.server.page)

    def do_POST(self) -> None:
        """Stream an answer: a line of JSON for each token, then one that says how it ended."""
        if self._refused("answer"):
            return
        try:
            answer = self._asked()
        except BessemerError as error:
            self._refuse(400, str(error))
            return
        self._begin(200, "application/x-ndjson")
        try:
            # The network answers one request at a time.
            with self.server.busy:
                self._line({"left_out": answer.left_out})
                for token in answer.tokens:
                    likeliest = [(text, round(probability, 4)) for text, probability in token.likeliest]
                    p = round(token.probability, 4)
                    self._line({"text": token.text, "own": token.own, "p": p, "likeliest": likeliest})
                self._line({"end": True})
        except BessemerError as error:
            self._line({"error": str(error)})
        except (BrokenPipeError, ConnectionResetError):
            # The page stopped the answer or was closed.
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log: it would have the token."""

    def _asked(self) -> Answer:
        size = self.headers.get("Content-Length", "")
        if not size.isdecimal() or int(size) > MAX_REQUEST_BYTES:
            raise InputError(f"a request must give its Content-Length, of at most {MAX_REQUEST_BYTES} bytes")
        try:
            asked = json.loads(self.rfile.read(int(size)))
            json.dumps(asked, ensure_ascii=False).encode()  # Half of a surrogate pair is no character.
            temperature, top_p = float(asked["temperature"]), float(asked["top_p"])
            seed, tokens, text = int(asked["seed"]), int(asked["tokens"]), asked.get("text", "")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise InputError(f"the request is no JSON with temperature, top_p, seed and tokens: {error!r}") from error
        sampling = Sampling(temperature, top_p, self.server.top_k, seed)
        if not 1 <= tokens <= MAX_TOKENS:
            raise InputError(f"tokens is {tokens}, and must be 1 to {MAX_TOKENS}")
        if self.server.chat.answers_messages:
            messages = read_messages(asked.get("messages"), "messages", answered=False)
            return self.server.chat.answer(messages, sampling, tokens)
        if not isinstance(text, str):
            raise InputError("text must be the text to continue")
        return self.server.chat.continuation(text, sampling, tokens)

    def _refused(self, name: str) -> bool:
        """Refuse requests from elsewhere, or for anything but `name`; return whether this one was."""
        port = self.server.server_address[1]
        hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        found, origins = self.headers.get_all("Host", []), self.headers.get_all("Origin", [])
        if len(found) != 1 or found[0].lower() not in hosts:
            self._refuse(403, "its Host is no address of this server")
        elif any(origin.lower() not in {f"http://{host}" for host in hosts} for origin in origins):
            self._refuse(403, "its Origin is no address of this server")
        elif not secrets.compare_digest(self.path.encode(), f"/{self.server.token}/{name}".encode()):
            self._refuse(404, "there is no such page; the address that the command printed has it")
        elif self.command == "POST" and self.headers.get_content_type() != "application/json":
            self._refuse(415, "a request is application/json")
        else:
            return False
        return True

    def _refuse(self, status: int, why: str) -> None:
        body = json.dumps({"error": why}).encode()
        self._begin(status, "application/json", len(body))
        self.wfile.write(body)

    def _begin(self, status: int, kind: str, size: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if size is not None:
            self.send_header("Content-Length", str(size))
        self.end_headers()

    def _line(self, value: dict[str, Any]) -> None:
        self.wfile.write(json.dumps(value).encode() + b"\n")
        self.wfile.flush()

"""A proxy in front of an S3 server that fails as real ones do, at moments drawn from a seed.

    python faulty_proxy.py --port 9001 --server 127.0.0.1:9000 --share 0.15 --seed 1 --log faults.jsonl

Kinds: `error` (500 or 503, the request never reached the server), `lost` (the request was done, its answer is cut off
before the first byte), `cut` (the connection ends within the body), `short` (a body is shorter than the object, and
says so in its headers, so that a digest is needed), `flipped` (one bit of an object differs), `slow` (the answer waits
up to two seconds), `stall` (the answer waits for `--stall` seconds, past a client's deadline). Each line of the log is
one fault. `short` and `flipped` befall only reads of whole objects, since a listing holds no digest.

Requests signed with the access key `expired`, `unknown`, `forged` or `denied` are refused as S3 refuses them.
"""

import argparse
import asyncio
import contextlib
import json
import random
import re
from pathlib import Path

KINDS = ("error", "lost", "cut", "short", "flipped", "slow", "stall")
REFUSED_KEYS = {
    "expired": (b"400 Bad Request", b"ExpiredToken"),
    "unknown": (b"403 Forbidden", b"InvalidAccessKeyId"),
    "forged": (b"403 Forbidden", b"SignatureDoesNotMatch"),
    "denied": (b"403 Forbidden", b"AccessDenied"),
}
SLOW_SECONDS = 2.0
_SIGNED_BY = re.compile(rb"credential=([^/]+)/", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"
_MOST_HEAD = 1 << 16


class FaultyProxy:
    """Passes requests on, one a connection, and does to a share of them what a fault does."""

    def __init__(self, server: tuple[str, int], share: float, seed: int, stall: float, log: Path | None) -> None:
        self._server, self._share, self._stall = server, share, stall
        self._chance = random.Random(seed)
        self._log = log.open("a", buffering=1) if log else None
        self._requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a client."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            await self._serve(reader, writer)
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await _message(reader, writer)
        line = head.partition(b"\r\n")[0].decode("latin-1")
        signed = _SIGNED_BY.search(head)
        if signed is not None and (refusal := REFUSED_KEYS.get(signed[1].decode())):
            writer.write(_refused(*refusal, with_body=not line.startswith("HEAD ")))
            await writer.drain()
            return
        fault = self._draw(line)
        if fault == "error":
            status = self._chance.choice((b"500 Internal Server Error", b"503 Slow Down"))
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        if fault in ("slow", "stall"):
            await asyncio.sleep(self._stall if fault == "stall" else self._chance.random() * SLOW_SECONDS)
        answer = await self._forward(head, body)
        if fault == "lost":
            return
        writer.write(self._spoilt(fault, answer))
        await writer.drain()

    def _draw(self, line: str) -> str:
        self._requests += 1
        if self._chance.random() >= self._share:
            return ""
        method, target, _ = line.split(" ", 2)
        path, _, query = target.partition("?")
        whole_object = method == "GET" and "list-type" not in query and path.count("/") > 1
        kinds = [kind for kind in KINDS if whole_object or kind not in ("short", "flipped")]
        fault = self._chance.choice(kinds)
        if self._log:
            entry = {"request": self._requests, "fault": fault, "method": method, "path": path}
            self._log.write(json.dumps(entry) + "\n")
        return fault

    async def _forward(self, head: bytes, body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*self._server)
        lines = head.removesuffix(_HEAD_END).split(b"\r\n")
        kept = [line for line in lines if not line.lower().startswith((b"connection:", b"expect:"))]
        writer.write(b"\r\n".join([*kept, b"Connection: close"]) + _HEAD_END + body)
        await writer.drain()
        answer = await reader.read(-1)
        writer.close()
        head, _, rest = answer.partition(_HEAD_END)
        kept = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        return b"\r\n".join([*kept, b"Connection: close"]) + _HEAD_END + rest

    def _spoilt(self, fault: str, answer: bytes) -> bytes:
        head, _, body = answer.partition(_HEAD_END)
        if not body or not head.startswith(b"HTTP/1.1 2"):
            return answer if fault != "cut" else answer[: len(answer) // 2]
        at = self._chance.randrange(len(body))
        if fault == "cut":
            return head + _HEAD_END + body[:at]
        if fault == "flipped":
            body = body[:at] + bytes([body[at] ^ (1 << self._chance.randrange(8))]) + body[at + 1 :]
        if fault == "short":
            body = body[:at]
        # A server's own checksum would show it; what travels wrong inside of a store has none.
        dropped = (b"content-length:", b"x-amz-checksum-", b"etag:") if fault in ("short", "flipped") else ()
        lines = [line for line in head.split(b"\r\n") if not dropped or not line.lower().startswith(dropped)]
        if dropped:
            lines.append(b"Content-Length: " + str(len(body)).encode())
        return b"\r\n".join(lines) + _HEAD_END + body


def _refused(status: bytes, code: bytes, with_body: bool) -> bytes:
    """Return S3's answer to a refused request; that to a HEAD has no body, and so no code."""
    body = b"<Error><Code>" + code + b"</Code><Message>no</Message></Error>" if with_body else b""
    head = b"HTTP/1.1 " + status + b"\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n" % len(body)
    return head + b"Connection: close" + _HEAD_END + body


async def _message(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[bytes, bytes]:
    """Read a request; return its head, and its body as it came."""
    head = await reader.readuntil(_HEAD_END)
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
    if b"expect" in fields:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
    if b"chunked" in fields.get(b"transfer-encoding", b""):
        return head, await _chunks(reader)
    return head, await reader.readexactly(int(fields.get(b"content-length", b"0")))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    taken = b""
    while True:
        line = await reader.readline()
        taken += line
        size = int(line.partition(b";")[0], 16)
        taken += await reader.readexactly(size) if size else b""
        taken += await reader.readline()
        if size == 0:
            return taken


async def _run(arguments: argparse.Namespace) -> None:
    host, _, port = arguments.server.rpartition(":")
    proxy = FaultyProxy((host, int(port)), arguments.share, arguments.seed, arguments.stall, arguments.log)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", arguments.port, limit=_MOST_HEAD)
    async with server:
        await server.serve_forever()


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True, help="of this proxy, on 127.0.0.1")
    parser.add_argument("--server", required=True, metavar="HOST:PORT", help="where requests go")
    parser.add_argument("--share", type=float, default=0.0, help="of requests that meet a fault, 0 to 1")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument("--stall", type=float, default=30.0, help="seconds that a stalled answer waits")
    parser.add_argument("--log", type=Path, help="file that gets a line for each fault")
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()

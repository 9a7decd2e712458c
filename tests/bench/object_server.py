"""An object store on loopback: files over HTTP, listed as S3 does, late and at fault on request.

`python tests/bench/object_server.py FOLDER [SECONDS]` prints its URL and serves until it is ended.
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_LISTING = (
    '<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>{}</ListBucketResult>'
)
_WORDS = {200: "OK", 206: "Partial Content", 403: "Forbidden", 404: "Not Found"}


@dataclass
class Fault:
    """What goes wrong with requests for some paths.

    Attributes:
        pattern: Is found in the path.
        kind: A status such as `503`; `drop` closes the connection, `short` ends it half-way through
            the body, `hang` never answers.
        times: For how many requests yet.
    """

    pattern: str
    kind: str
    times: int


@dataclass
class ObjectServer:
    """Serves a folder; `/bucket/key` is a file of it, and `/bucket` can be listed.

    Attributes:
        root: The folder.
        latency: Seconds before each answer.
        key: What a request must be signed with, if with anything.
        faults: What goes wrong; the first that fits is taken.
        paths: Of all requests so far.
        url: Where it listens.
        connections: Those that are open.
    """

    root: Path
    latency: float = 0.0
    key: str | None = None
    faults: list[Fault] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    url: str = ""
    connections: set[asyncio.Transport] = field(default_factory=set)

    def fail(self, pattern: str, kind: str, times: int = 1) -> None:
        """From now on requests for these paths go wrong, so many times."""
        self.faults.append(Fault(pattern, kind, times))

    def answer(self, method: str, target: str, headers: dict[str, str]) -> tuple[str, bytes] | None:
        """What to send, or how to fail: (a fault or a status with headers, the body)."""
        parts = urlsplit(target)
        path = unquote(parts.path).lstrip("/")
        self.paths.append(path)
        for fault in self.faults:
            if fault.times > 0 and re.search(fault.pattern, path):
                fault.times -= 1
                if fault.kind == "hang":
                    return None
                if fault.kind.isdigit():
                    return _head(int(fault.kind)), b"<Error><Code>Fault</Code></Error>"
                return fault.kind, self._file(path) or b""
        if self.key is not None and f"Credential={self.key}/" not in headers.get(
            "authorization", ""
        ):
            return _head(403), b"<Error><Code>AccessDenied</Code></Error>"
        if method not in ("GET", "HEAD"):
            return _head(405), b""
        if "list-type" in parts.query:
            return _head(200), self._list(path, parse_qs(parts.query)).encode()
        content = self._file(path)
        if content is None:
            return _head(404), b"<Error><Code>NoSuchKey</Code></Error>"
        return _part(content, headers.get("range", ""))

    def _file(self, path: str) -> bytes | None:
        try:
            return (self.root / path).read_bytes()
        except OSError:
            return None

    def _list(self, bucket: str, query: dict[str, list[str]]) -> str:
        """The names just below a prefix, as ListObjectsV2 with a delimiter does."""
        prefix = query.get("prefix", [""])[0]
        folder = self.root / bucket / prefix
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        entries = []
        for entry in found:
            name = escape(prefix + entry.name)
            if entry.is_dir():
                entries.append(f"<CommonPrefixes><Prefix>{name}/</Prefix></CommonPrefixes>")
            else:
                entries.append(
                    f"<Contents><Key>{name}</Key><Size>{entry.stat().st_size}</Size>"
                    '<ETag>"x"</ETag><LastModified>2020-01-01T00:00:00.000Z</LastModified>'
                    "</Contents>"
                )
        return _LISTING.format("".join(entries))


def _head(status: int, *headers: str) -> str:
    lines = [f"HTTP/1.1 {status} {_WORDS.get(status, 'Error')}", *headers]
    return "\r\n".join(lines)


def _part(content: bytes, wanted: str) -> tuple[str, bytes]:
    """The bytes that a Range header asks for, or all."""
    dated = "Last-Modified: Wed, 01 Jan 2020 00:00:00 GMT"
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted)
    if not found:
        return _head(200, dated), content
    size = len(content)
    first = int(found[1]) if found[1] else max(size - int(found[2]), 0)
    last = min(int(found[2]), size - 1) if found[1] and found[2] else size - 1
    said = f"Content-Range: bytes {first}-{last}/{size}"
    return _head(206, dated, said), content[first : last + 1]


class _Connection(asyncio.Protocol):
    """One client's requests, each answered in its turn."""

    def __init__(self, server: ObjectServer) -> None:
        self._server = server
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            loop = asyncio.get_running_loop()
            loop.call_later(self._server.latency, self._answer, head.decode("latin-1"))

    def _answer(self, head: str) -> None:
        request, *lines = head.split("\r\n")
        method, target, _ = request.split(" ")
        pairs = (line.split(":", 1) for line in lines if ":" in line)
        headers = {name.lower(): value.strip() for name, value in pairs}
        answer = self._server.answer(method, target, headers)
        if answer is None or self._transport.is_closing():
            return
        start, body = answer
        if start == "drop":
            self._transport.abort()
            return
        cut = start == "short"
        start = _head(200) if cut else start
        self._transport.write(f"{start}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        if method != "HEAD":
            self._transport.write(body[: len(body) // 2] if cut else body)
        if cut:
            self._transport.close()


@contextmanager
def serve(root: Path, latency: float = 0.0, key: str | None = None) -> Iterator[ObjectServer]:
    """Serves a folder from a thread."""
    server = ObjectServer(root, latency, key)
    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(
        loop.create_server(lambda: _Connection(server), "127.0.0.1", 0, backlog=1024)
    )
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(_end(server, listening), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(server: ObjectServer, listening: asyncio.Server) -> None:
    """Closes all connections."""
    listening.close()
    for connection in list(server.connections):
        connection.abort()
    while server.connections:
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    with serve(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0) as running:
        print(running.url, flush=True)
        threading.Event().wait()

"""A web site of a test's own, on this machine."""

import hashlib
import json
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

INDEX = "/.well-known/agent-skills/index.json"
SCHEMA = "https://schemas.agentskills.io/discovery/0.2.0/schema.json"

Page: TypeAlias = "bytes | tuple[int, Mapping[str, str], bytes] | Callable[[BaseHTTPRequestHandler], None]"
"""What a site answers: a body, or status, headers and body, or a function that writes what it likes."""


@dataclass
class Site:
    """A site, by what it answers at each path, and the paths that it was asked for."""

    url: str
    pages: dict[str, Page] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def publish(self, files: Mapping[str, bytes], **more: object) -> None:
        """Serve an index that names each file: `NAME.md` is a `SKILL.md`, all others are archives."""
        rows = []
        for path, content in files.items():
            self.pages[f"/.well-known/agent-skills/{path}"] = content
            rows.append(entry(path, content))
        self.index(rows, **more)

    def index(self, rows: object, **more: object) -> None:
        """Serve an index of these entries."""
        self.pages[INDEX] = json.dumps({"$schema": SCHEMA, "skills": rows, **more}).encode()


def entry(path: str, content: bytes, **more: object) -> dict[str, Any]:
    """Return the entry of a file in an index."""
    name, _, suffix = path.rpartition("/")[2].partition(".")
    return {
        "name": name,
        "type": "skill-md" if suffix == "md" else "archive",
        "description": f"Does {name}.",
        "url": path,
        "digest": f"sha256:{hashlib.sha256(content).hexdigest()}",
        **more,
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_args: object) -> None:
        """A client that has seen enough is no error."""


@contextmanager
def _running(handler: type[BaseHTTPRequestHandler], address: str, certificate: Path | None) -> Iterator[int]:
    with _Server((address, 0), handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02), daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def serve(*, address: str = "127.0.0.1", certificate: Path | None = None) -> Iterator[Site]:
    """Serve pages on a free port of this machine, by https if there is a certificate."""
    site = Site("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append(self.path)
            page = site.pages.get(self.path, (404, {}, b"nothing here"))
            if callable(page):
                page(self)
                return
            status, headers, body = page if isinstance(page, tuple) else (200, {}, page)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            """Say nothing."""

    with _running(Handler, address, certificate) as port:
        site.url = f"http{'s' if certificate else ''}://{address}:{port}"
        yield site


@contextmanager
def tunnel(target: Site) -> Iterator[Site]:
    """Run a proxy that leads every name to one site, and remembers who asked for which."""
    proxy = Site("")
    inner = urlsplit(target.url)

    class Handler(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            proxy.asked.append(f"{self.path} {self.headers.get('Proxy-Authorization')}")
            with socket.create_connection((inner.hostname, inner.port)) as other:
                self.send_response(200)
                self.end_headers()
                pairs = {self.connection: other, other: self.connection}
                while True:
                    for ready in select.select(list(pairs), [], [])[0]:
                        if not (data := ready.recv(65_536)):
                            return
                        pairs[ready].sendall(data)

        def log_message(self, *_args: object) -> None:
            """Say nothing."""

    with _running(Handler, "127.0.0.1", None) as port:
        proxy.url = f"http://127.0.0.1:{port}"
        yield proxy

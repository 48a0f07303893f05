"""An MCP server without the SDK that says whatever a test wants, over stdio or streamable HTTP.

Run as a process: `crooked_server.py BOOK [PORT_FILE]`. The book is a JSON file that is read again for every request, so
that a test can change what the server says between two of them. Requests are appended to `BOOK.log`, one line each.
"""

import base64
import gzip
import hashlib
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

EXTENSION = "io.modelcontextprotocol/skills"


class RefusedError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def entry_of(uri: str, files: dict[str, str], frontmatter: dict[str, Any]) -> dict[str, Any]:
    """Return the entry that describes files truly."""
    root = uri.removesuffix("SKILL.md")
    return {
        "uri": uri,
        "frontmatter": frontmatter,
        "resources": [
            {
                "uri": root + path,
                "digest": "sha256:" + hashlib.sha256(base64.b64decode(content)).hexdigest(),
                "size": len(base64.b64decode(content)),
            }
            for path, content in files.items()
        ],
    }


def entries(book: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for uri, skill in book.get("skills", {}).items():
        if not skill.get("unlisted"):
            found.append(described(uri, skill))
    found += book.get("raw", [])
    return found


def described(uri: str, skill: dict[str, Any]) -> dict[str, Any]:
    entry = entry_of(uri, skill["files"], skill["frontmatter"])
    return {**entry, **skill.get("claims", {})}


def listed(book: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    cursor = int(params.get("cursor") or 0)
    if book.get("endless"):
        return {"skills": [], "nextCursor": str(cursor + 1)}
    if book.get("circle"):
        return {"skills": [], "nextCursor": "7"}
    if book.get("flood"):
        made = {"files": {"SKILL.md": ""}, "frontmatter": {"name": "f", "description": "d"}}
        start = cursor * 5000
        page = [described(f"skill://{n}/f/SKILL.md", made) for n in range(start, min(start + 5000, book["flood"]))]
        more = {"nextCursor": str(cursor + 1)} if start + 5000 < book["flood"] else {}
        return {"skills": page, **more}
    everything = entries(book)
    size = book.get("page") or len(everything) or 1
    page = everything[cursor : cursor + size]
    more = {"nextCursor": str(cursor + size)} if cursor + size < len(everything) else {}
    return {"skills": page, **more}


def got(book: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    uri = params.get("uri", "")
    skill = book.get("skills", {}).get(uri)
    if skill is None:
        raise RefusedError(-32602, "unknown skill")
    return {"skill": described(book.get("answers_get_with", uri), skill)}


def read(book: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    uri = params.get("uri", "")
    for own, skill in book.get("skills", {}).items():
        root = own.removesuffix("SKILL.md")
        path = uri.removeprefix(root)
        content = skill.get("sends", {}).get(path, skill["files"].get(path)) if uri.startswith(root) else None
        if content is not None:
            raw = base64.b64decode(content)
            said = {"uri": book.get("answers_read_with", uri), "mimeType": "text/plain"}
            try:
                said["text"] = raw.decode()
            except UnicodeDecodeError:
                said["blob"] = content
            return {"contents": [said]}
    raise RefusedError(-32602, "unknown resource")


def discovered(book: dict[str, Any], _params: dict[str, Any]) -> dict[str, Any]:
    if not book.get("discovers"):
        raise RefusedError(-32601, "Method not found")
    return {"supportedVersions": ["2026-07-28"], "capabilities": capabilities_of(book)}


def initialized(book: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    info = {"name": "crooked", "version": "1"}
    version = params.get("protocolVersion")
    return {"protocolVersion": version, "capabilities": capabilities_of(book), "serverInfo": info}


def capabilities_of(book: dict[str, Any]) -> dict[str, Any]:
    return {"resources": {}, **({"extensions": {EXTENSION: {}}} if book.get("declares", True) else {})}


def unknown(_book: dict[str, Any], _params: dict[str, Any]) -> dict[str, Any]:
    raise RefusedError(-32601, "Method not found")


METHODS = {
    "server/discover": discovered,
    "initialize": initialized,
    "ping": lambda _book, _params: {},
    "skills/list": listed,
    "skills/get": got,
    "resources/read": read,
}


def answer(message: dict[str, Any], path: Path) -> dict[str, Any] | None:
    """Return the response to a request, or nothing for a notification."""
    method, params = message.get("method", ""), message.get("params") or {}
    if "id" not in message:
        return None
    with Path(f"{path}.log").open("a") as log:
        log.write(json.dumps({"method": method, "uri": params.get("uri"), "cursor": params.get("cursor")}) + "\n")
    book = json.loads(path.read_text())
    if book.get("hangs_at") == method:
        time.sleep(3600)
    # By seconds, for files that are slow or never come.
    time.sleep(book.get("slow", {}).get(params.get("uri"), 0))
    if book.get("dies_at") == method:
        os._exit(1)
    cache = {"ttlMs": book.get("ttl", 0), "cacheScope": "private", "resultType": "complete"}
    try:
        result = METHODS.get(method, unknown)(book, params)
        refused = (-32603, book.get("refusal", "internal")) if method == book.get("refuses") else None
    except RefusedError as error:
        refused = (error.code, str(error))
    if refused is not None:
        return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": refused[0], "message": refused[1]}}
    said = result if method in {"initialize", "ping"} else {**cache, **result}
    return {"jsonrpc": "2.0", "id": message["id"], "result": said}


def serve_stdio(path: Path) -> None:
    for line in sys.stdin:
        response = answer(json.loads(line), path)
        if response is not None:
            sys.stdout.write(json.dumps(response) + "\n")
            sys.stdout.flush()


def serve_http(path: Path, port_file: Path) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with Path(f"{path}.http").open("a") as log:
                seen = {"path": self.path, "authorization": self.headers.get("Authorization")}
                log.write(json.dumps(seen) + "\n")
            response = answer(message, path)
            body = b"" if response is None else json.dumps(response).encode()
            book = json.loads(path.read_text())
            odd = book.get("sends_oddly") if message.get("method") == "skills/list" else None
            self.send_response(202 if response is None else 200)
            if odd == "padded":
                body += b" " * 3_000_000
            elif odd == "packed":
                body = gzip.compress(body)
                self.send_header("Content-Encoding", "gzip")
            elif odd == "events":
                body = b": still there\n\n" * 200_000 + b"event: message\ndata: " + body + b"\n\n"
            self.send_header("Content-Type", "text/event-stream" if odd == "events" else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.send_response(405)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_DELETE = do_GET  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[3]) if len(sys.argv) > 3 else 0), Handler)
    port_file.write_text(str(server.server_port))
    server.serve_forever()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        serve_http(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        serve_stdio(Path(sys.argv[1]))

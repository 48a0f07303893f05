"""Skills that a site publishes: its index below `/.well-known/agent-skills/`, and each skill as the file it names.

The site is a stranger, and so is every host that it names. What it may do to the machine that asks:

- It is asked by https, and by http only where it lies on this machine. TLS is checked as everywhere.
- No address, of the index or of a redirect, leads further in than the site itself lies: a public site cannot make this
  machine ask its own services or those of its network, whatever a name resolves to. Behind a proxy, which resolves
  names itself, this holds for addresses that are written as numbers.
- Every answer is bounded in size, so are all together, and the whole in time: the connection is cut at the deadline.
- Nothing of a skill is looked at before its digest is what the index says. What is wrong with one skill costs that
  skill alone, what is wrong with the index the whole source.
"""

import base64
import hashlib
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import IPv6Address, IPv6Network, ip_address
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from deepskills._catalog.lookup import requires_of
from deepskills._install.origin import Origin, OriginKind
from deepskills._install.paths import MAX_ENTRIES, MAX_PLACED_BYTES, MAX_SKILLS, SourceError, fold_case, quote_path
from deepskills._install.trees import Node, Tree, open_archive
from deepskills._io.drivers import in_thread
from deepskills._providers.plugins import is_loopback
from deepskills._skillmd.read import read_skill
from deepskills._types import MAX_NAME_LENGTH, MAX_SKILL_FILE_BYTES, SKILL_FILE

SCHEMA = "https://schemas.agentskills.io/discovery/0.2.0/schema.json"
"""The release of the index that is understood; the address is compared, never fetched."""

MAX_INDEX_BYTES = 8 * 1024 * 1024
"""How large an index may be."""

MAX_ARTIFACT_BYTES = 50 * 1024 * 1024
"""How large one skill may be as it is sent."""

MAX_REDIRECTS = 5
"""How often one address may lead to another."""

MAX_SILENCE = 30.0
"""How many seconds a host may send nothing."""

MAX_REASON = 300
"""How much of a failure is shown; a host can word it."""

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ARCHIVES: Mapping[bytes, OriginKind] = {b"PK": "zip", b"\x1f\x8b": "tar"}
_TRANSLATED = IPv6Network("64:ff9b::/96")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_OK = 200
_CHUNK = 1 << 16


@dataclass(frozen=True)
class _Entry:
    """A skill that the index names."""

    name: str
    is_archive: bool
    url: str
    digest: str


def open_site(origin: Origin, workspace: Path, deadline: float, names: Collection[str] = ()) -> Tree:
    """Fetch the skills that a site publishes, each below a directory of its name.

    Args:
        origin: The site; its location is the address of the index.
        workspace: Where archives are kept.
        deadline: When the fetch is given up, by `time.monotonic`.
        names: Fetch these alone, with what they require. Without any, or if the index has not all of them, fetch all.

    Raises:
        SourceError: If there is no index, or it cannot be used.
    """
    client = _Client(deadline)
    # A thread of its own: nothing else bounds how long a name takes to resolve, or headers to arrive.
    fetched = in_thread(_fetch, client, origin, workspace, names)
    wait([fetched], min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX))
    if not fetched.done():
        client.cut()
        raise _too_slow(origin.recorded)
    return fetched.result()


def _fetch(client: "_Client", origin: Origin, workspace: Path, names: Collection[str]) -> Tree:
    content, address = client.get(origin.location, MAX_INDEX_BYTES)
    entries, faults = _read_index(content, origin.recorded)
    left = {fold_case(entry.name): entry for entry in entries}
    wanted = {fold_case(name.strip().removeprefix("./").partition("/")[0]) for name in names}
    waiting = sorted(wanted if wanted and wanted <= left.keys() else left)
    nodes: dict[str, Node] = {}
    trees: dict[str, Tree] = {}
    size = count = 0
    while waiting:
        entry = left.pop(waiting.pop(0), None)
        if entry is None:
            continue
        try:
            artifact = client.get(_join(address, entry.url), MAX_ARTIFACT_BYTES)[0]
            tree = _open_artifact(entry, artifact, workspace)
            required = _find_required(tree)
        except SourceError as error:
            faults[entry.name] = str(error).rstrip(".")
            continue
        nodes |= {(path := f"{entry.name}/{inner}"): replace(node, path=path) for inner, node in tree.nodes.items()}
        size += len(artifact) + sum(node.size for node in tree.nodes.values())
        count += tree.entries
        if size > MAX_PLACED_BYTES or count > MAX_ENTRIES:
            raise SourceError(f"The skills of {origin.recorded} are too large together. Name some with --skill.")
        trees[entry.name] = tree
        waiting += required
    return Tree(nodes, partial(_read_trees, trees), faults=faults)


def _find_required(tree: Tree) -> list[str]:
    """Return what a skill requires; all of it is read, so that one that is broken inside costs itself alone."""
    required: list[str] = []
    for path, content in tree.contents(path for path, node in tree.nodes.items() if node.kind == "file"):
        if path == SKILL_FILE and len(content) <= MAX_SKILL_FILE_BYTES:
            required += [fold_case(name) for name in requires_of(read_skill(content, path=path).frontmatter)]
    return required


def _read_trees(trees: Mapping[str, Tree], paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    inner: dict[str, list[str]] = {}
    for path in paths:
        name, _, rest = path.partition("/")
        inner.setdefault(name, []).append(rest)
    for name, wanted in inner.items():
        for path, content in trees[name].contents(wanted):
            yield f"{name}/{path}", content


def _read_index(content: bytes, site: str) -> tuple[list[_Entry], dict[str, str]]:
    """Return the skills that an index names, and why others of it cannot be taken."""
    try:
        index = json.loads(content)
    except (ValueError, RecursionError):
        raise SourceError(f"The index of {site} is not readable as JSON.") from None
    schema, rows = (index.get("$schema"), index.get("skills")) if isinstance(index, dict) else (None, None)
    if schema != SCHEMA:
        raise SourceError(
            f"The index of {site} has the `$schema` {quote_path(str(schema))}, and only {SCHEMA} is understood. "
            "Nothing was taken from it."
        )
    if not isinstance(rows, list) or len(rows) > MAX_SKILLS:
        raise SourceError(f"The `skills` of the index of {site} is not a list of at most {MAX_SKILLS:,} skills.")
    entries: dict[str, _Entry] = {}
    faults: dict[str, str] = {}
    for number, row in enumerate(rows):
        kind = row.get("type") if isinstance(row, dict) else None
        # Others are of later releases.
        if kind not in {"skill-md", "archive"}:
            continue
        name, url, digest = (row.get(key) for key in ("name", "url", "digest"))
        if not isinstance(name, str) or len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
            faults[f"entry {number + 1}"] = f"its name {quote_path(str(name))} is not one that the index may have"
        elif not isinstance(url, str) or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            faults[name] = "the index gives no `url` for it, or no `digest` of `sha256:` and 64 hexadecimal digits"
        elif name in entries or name in faults:
            entries.pop(name, None)
            faults[name] = "the index names it twice"
        else:
            entries[name] = _Entry(name, kind == "archive", url, digest)
    if not entries and not faults:
        raise SourceError(f"The index of {site} names no skill that could be taken.")
    return list(entries.values()), faults


def _open_artifact(entry: _Entry, content: bytes, workspace: Path) -> Tree:
    """Return a skill as it was sent, if it is what the index promised.

    Raises:
        SourceError: If it is not, or holds what no honest archive has.
    """
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if digest != entry.digest:
        raise SourceError(f"what was sent has the digest {digest}, and the index says {entry.digest}")
    if not entry.is_archive:
        return Tree({SKILL_FILE: Node(SKILL_FILE, "file", len(content))}, lambda paths: ((p, content) for p in paths))
    # By its first bytes: its digest is right, so whatever its address and its media type say, this is it.
    kind = _ARCHIVES.get(content[:2])
    if kind is None:
        raise SourceError("what was sent is neither a .zip nor a .tar.gz file")
    packed = workspace / entry.name
    packed.write_bytes(content)
    tree = open_archive(Origin(kind, str(packed), entry.url))
    if SKILL_FILE not in tree.nodes or tree.nodes[SKILL_FILE].kind != "file":
        raise SourceError(f"its archive has no file {SKILL_FILE} at its root")
    return tree


# --------------------------------------------------------------------------------------------------------------------
# Asking a stranger's host.
# --------------------------------------------------------------------------------------------------------------------


class _Client:
    """Gets what lies at addresses, within bounds; the first host that it asks says how far in others may lie."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._depth: int | None = None
        self._socket: socket.socket | None = None

    def get(self, url: str, limit: int) -> tuple[bytes, str]:
        """Return what lies at an address, and the address that it led to.

        Raises:
            SourceError: If it may not be asked, does not answer, or sends too much.
        """
        for _ in range(MAX_REDIRECTS + 1):
            parts = _check_address(url)
            try:
                answer = self._ask(parts, url, limit)
            except TimeoutError:
                raise _too_slow(url) from None
            except (OSError, HTTPException, ValueError) as error:
                reason = str(error)[:MAX_REASON] or type(error).__name__
                raise SourceError(f"{quote_path(url)} cannot be fetched: {reason}. Check the address.") from None
            if isinstance(answer, bytes):
                return answer, url
            url = _join(url, answer)
        raise SourceError(f"{quote_path(url)} is one redirect too many. At most {MAX_REDIRECTS} are followed.")

    def _ask(self, parts: SplitResult, url: str, limit: int) -> bytes | str:
        """Return what lies at an address, or where it leads."""
        host, left = parts.hostname or "", self._deadline - time.monotonic()
        if left <= 0:
            raise _too_slow(url)
        proxy = None if is_loopback(host) or proxy_bypass(host) else getproxies().get("https")
        with closing(_connection(parts, proxy, min(left, MAX_SILENCE))) as connection:
            self._connect(connection, host, is_direct=proxy is None)
            target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", target, headers={"User-Agent": "deepskills", "Accept-Encoding": "identity"})
            with connection.getresponse() as response:
                location = response.getheader("Location")
                if response.status in _REDIRECTS and location is not None:
                    return location
                if response.status != _OK:
                    raise SourceError(f"{quote_path(url)} answered {response.status}. Check the address.")
                content = bytearray()
                while chunk := response.read1(_CHUNK):
                    content += chunk
                    if len(content) > limit:
                        raise SourceError(f"{quote_path(url)} sends more than {limit:,} bytes.")
                    if time.monotonic() > self._deadline:
                        raise _too_slow(url)
                return bytes(content)

    def _connect(self, connection: HTTPConnection, host: str, *, is_direct: bool) -> None:
        if not is_direct:
            self._hold_back(host, host)
        connection.connect()
        self._socket = connection.sock
        if is_direct:
            # What was really reached: a name may resolve to anything, and to something else each time.
            self._hold_back(host, connection.sock.getpeername()[0])

    def _hold_back(self, host: str, address: str) -> None:
        depth = _depth_of(address)
        if self._depth is None:
            self._depth = depth
        if depth > self._depth:
            raise SourceError(f"{quote_path(host)} lies in a network where the site does not. It was not asked.")

    def cut(self) -> None:
        """End the connection, so that nothing waits for it any longer."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _connection(parts: SplitResult, proxy: str | None, silence: float) -> HTTPConnection:
    host, port = parts.hostname or "", parts.port
    if parts.scheme == "http":
        return HTTPConnection(host, port, timeout=silence)
    context = ssl.create_default_context()
    if proxy is None:
        return HTTPSConnection(host, port, timeout=silence, context=context)
    by = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    connection = HTTPSConnection(by.hostname or "", by.port or 80, timeout=silence, context=context)
    connection.set_tunnel(host, port or 443, _proxy_headers(by))
    return connection


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    secret = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(secret.encode()).decode()}"}


def _depth_of(host: str) -> int:
    """Return how far in a host lies: 0 in the open, 1 in a private network, 2 on this machine or its own link."""
    try:
        address = ip_address(host)
    except ValueError:
        # A name that a proxy resolves.
        return 0
    if isinstance(address, IPv6Address):
        # Ways to write, or to reach, an address of the older kind.
        translated = ip_address(int(address) & 0xFFFFFFFF) if address in _TRANSLATED else None
        address = address.ipv4_mapped or address.sixtofour or translated or address
    if address.is_loopback or address.is_link_local or address.is_unspecified:
        return 2
    return 0 if address.is_global else 1


def _check_address(url: str) -> SplitResult:
    """Return the parts of an address that may be asked."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise SourceError(f"{quote_path(url)} is not a URL.") from None
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise SourceError(f"{quote_path(url)} is not an https address, so it is not asked.")
    if not host or parts.username is not None:
        raise SourceError(f"{quote_path(parts.hostname or url)} has no host, or credentials that are not sent.")
    return parts


def _join(base: str, url: str) -> str:
    try:
        return urljoin(base, url)
    except ValueError:
        raise SourceError(f"{quote_path(url)} is not a URL.") from None


def _too_slow(where: str) -> SourceError:
    return SourceError(f"{quote_path(where)} did not answer in time. Try again, or wait longer with --timeout SECONDS.")

"""The commands below `deepskills mcp`: serve skills over MCP."""

import logging
import sys
from pathlib import Path

import click

from deepskills._cli.files import UsageError

NEEDS_EXTRA = 'Serving skills over MCP needs mcp 2.x. Install it: pip install "deepskills[mcp]" "mcp>=2"'
"""What a user reads without the package."""

MAX_PORT = 65535


@click.group(name="mcp")
def group() -> None:
    """Skills over MCP."""


@group.command()
@click.option(
    "--source",
    "sources",
    multiple=True,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory that holds skills; repeat it for several, the later wins.",
)
@click.option("--http", "address", metavar="HOST:PORT", help="Serve over streamable HTTP at /mcp, not on stdio.")
def serve(sources: tuple[Path, ...], address: str | None) -> None:
    """Serve the skills of directories to MCP hosts, until it is interrupted."""
    try:
        from deepskills.mcp.server import SkillsExtension  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError(NEEDS_EXTRA) from error
    from deepagents.backends import FilesystemBackend  # noqa: PLC0415 - slow, and only here

    # On stdio, standard output belongs to the protocol.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    host, port = _split(address) if address is not None else ("", 0)
    paths = [path.absolute().as_posix() for path in sources]
    extension = SkillsExtension(FilesystemBackend(root_dir="/", virtual_mode=False), paths)
    server = extension.server(log_level="WARNING")
    if address is None:
        server.run("stdio")
    else:
        server.run("streamable-http", host=host, port=port)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > MAX_PORT:
        raise UsageError(f"--http takes HOST:PORT, such as 127.0.0.1:8000, not {address!r}.")
    return host.strip("[]"), int(port)

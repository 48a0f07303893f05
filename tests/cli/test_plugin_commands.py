"""Plugins on the command line: their skills, and the MCP servers that they name."""

import json
from pathlib import Path
from typing import Any

import pytest
from install_support import refuse, succeed

from support import skill_md, write_files
from support.command_line import invoke

PLUGIN = "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json"
MCP = "https://agent-plugins.org/schemas/1.0.0/mcp.schema.json"
ROOT, DATA = "${PLUGIN_ROOT}", "${PLUGIN_DATA}"


def make_plugin(mcp: object, file: str = "mcp.json", manifest: str = "plugin.json") -> None:
    """Make a plugin with one skill, and what it says of its servers."""
    files = {
        f"tools/{manifest}": json.dumps({"$schema": PLUGIN, "name": "tools"}),
        "tools/skills/pdf/SKILL.md": skill_md("pdf"),
        f"tools/{file}": mcp if isinstance(mcp, str) else json.dumps(mcp),
    }
    write_files(Path(), files)


def doctor(source: str = "tools") -> dict[str, Any]:
    report: dict[str, Any] = json.loads(invoke("doctor", "-s", source, "--json").stdout)
    return report


def test_servers_of_a_plugin_are_named_and_never_started(tmp_path: Path) -> None:
    """`info` and `doctor` say which there are and what they would start, for the plugin and for its `skills` alone."""
    started = tmp_path / "started"
    servers = {
        "local": {"type": "stdio", "command": "./bin/run", "args": ["--token", "SECRET"], "env": {"KEY": "SECRET"}},
        "remote": {"type": "streamable-http", "url": "https://x.example/mcp?key=SECRET", "headers": {"A": "SECRET"}},
    }
    make_plugin({"$schema": MCP, "mcpServers": servers})
    write_files(Path(), {"tools/bin/run": f"#!/bin/sh\ntouch {started}\n"})
    Path("tools/bin/run").chmod(0o755)
    named = [
        {"name": "local", "transport": "stdio", "target": "./bin/run", "fault": None},
        {"name": "remote", "transport": "streamable-http", "target": "https://x.example/mcp", "fault": None},
    ]
    assert json.loads(succeed("info", "tools:pdf", "-s", "tools", "--json").stdout)["mcp_servers"] == named
    assert json.loads(succeed("info", "pdf", "-s", "tools/skills", "--json").stdout)["mcp_servers"] == named
    line = "`local` (stdio: ./bin/run), `remote` (streamable-http: https://x.example/mcp)"
    assert f"MCP servers of its plugin, not started: {line}" in succeed("info", "tools:pdf", "-s", "tools").stdout
    for source in ("tools", "tools/skills"):
        assert [plugin["mcp_servers"] for plugin in doctor(source)["plugins"]] == [named]
    said = " ".join(invoke("doctor", "-s", "tools").stdout.split())
    assert f"names MCP servers, not started: {line}" in said
    assert "SECRET" not in said
    assert "SECRET" not in json.dumps(doctor())
    assert not started.exists()
    # Without servers there is nothing to say.
    make_plugin({"$schema": MCP, "mcpServers": {}})
    assert "plugins" not in doctor()
    assert "mcp_servers" not in json.loads(succeed("info", "tools:pdf", "-s", "tools", "--json").stdout)


@pytest.mark.parametrize(
    "servers", [{"mcpServers": {"db": {"command": "npx", "args": ["x"]}}}, {"db": {"command": "npx"}}]
)
def test_servers_of_claude_codes_layout_are_named(servers: object) -> None:
    """`.mcp.json` has no types, and may be the servers alone."""
    make_plugin(servers, ".mcp.json", ".claude-plugin/plugin.json")
    row = {"name": "db", "transport": "stdio", "target": "npx", "fault": None}
    assert [plugin["mcp_servers"] for plugin in doctor()["plugins"]] == [[row]]


@pytest.mark.parametrize(
    ("mcp", "said"),
    [
        ("{", "not readable as JSON"),
        ("[]", "not a JSON object"),
        ("[" * 100_000, "not readable as JSON"),
        (json.dumps({"mcpServers": {}}), "`$schema`"),
        (json.dumps({"$schema": MCP.replace("1.0.0", "1.1.0"), "mcpServers": {}}), "`$schema`"),
        (json.dumps({"$schema": MCP}), "`$schema`"),
        (json.dumps({"$schema": MCP, "mcpServers": {}, "more": 1}), "`$schema`"),
        (json.dumps({"$schema": MCP, "mcpServers": []}), "`mcpServers` is not an object"),
        (json.dumps({"$schema": MCP, "mcpServers": {}, "x": "y" * 300_000}), "bytes"),
    ],
)
def test_broken_servers_cost_nothing_else(mcp: str, said: str) -> None:
    """It is a warning of `doctor`; the plugin's skills are there as before."""
    make_plugin(mcp)
    report = doctor()
    assert report["skills"] == ["tools:pdf"]
    [found] = report["problems"]
    assert (found["code"], found["severity"]) == ("plugin-mcp-invalid", "warning")
    assert said in found["message"]
    succeed("info", "tools:pdf", "-s", "tools")


# The published schema of one server, in words of our own; then what only the text of the specification says.
TEXT = {"type": "string"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
START = r"^(?:\./|\$\{PLUGIN_ROOT\}(?:/|$)|\$\{PLUGIN_DATA\}(?:/|$))"
ENVIRONMENT = {**TEXTS, "propertyNames": {"not": {"enum": ["PLUGIN_ROOT", "PLUGIN_DATA"]}}}


def closed(kind: str, needs: str, **properties: object) -> dict[str, object]:
    own = {"type": {"const": kind}, needs: {**TEXT, "minLength": 1}, **properties}
    return {"type": "object", "properties": own, "required": ["type", needs], "additionalProperties": False}


SERVER = {
    "oneOf": [
        closed(
            "stdio", "command", args={"type": "array", "items": TEXT}, env=ENVIRONMENT, cwd={**TEXT, "pattern": START}
        ),
        closed("streamable-http", "url", headers=TEXTS),
        closed("sse", "url", headers=TEXTS),
    ]
}
ODD_VALUES: tuple[object, ...] = (
    "text",
    "",
    1,
    True,
    None,
    [],
    ["a"],
    [1],
    {},
    {"a": "b"},
    {"a": 1},
    {"PLUGIN_ROOT": "x"},
)
ODD_VALUES += ("./a", "./", ROOT, f"{ROOT}/a", f"{DATA}/a", f"{ROOT}a", "/a", "https://x.example/", "stdio", "sse")
STRICTER = (
    {"type": "stdio", "command": "../run"},
    {"type": "stdio", "command": "/bin/run"},
    {"type": "stdio", "command": "./../run"},
    {"type": "stdio", "command": "run it"},
    {"type": "stdio", "command": "bin/run"},
    {"type": "stdio", "command": "run", "cwd": "./a/../.."},
    {"type": "stdio", "command": "run", "cwd": f"{ROOT}/.."},
    {"type": "sse", "url": "http://x.example/"},
    {"type": "sse", "url": "ftp://x.example/"},
    {"type": "sse", "url": "https://user:secret@x.example/"},
    {"type": "sse", "url": "https://x.example/#a"},
    {"type": "sse", "url": "http://[::1"},
    {"type": "sse", "url": "https://x.example/", "headers": {"A": "1", "a": "2"}},
)


def test_the_published_schema_and_the_reader_agree_about_servers() -> None:
    """Some 200 entries get the same verdict, but where the specification's text is stricter than its schema."""
    jsonschema = pytest.importorskip("jsonschema_rs")
    schema = jsonschema.Draft202012Validator(SERVER)
    local = {"type": "stdio", "command": "run", "args": ["a"], "env": {"A": ROOT}, "cwd": "./a"}
    remote = {"type": "streamable-http", "url": "https://x.example/mcp", "headers": {"A": "b"}}
    loopback = [{"type": "sse", "url": f"http://{host}/"} for host in ("localhost", "127.0.0.1:1", "[::1]:1")]
    cases: list[object] = [local, remote, *loopback, [], "text", None, 1, {}]
    for whole in (local, remote):
        cases += [{k: v for k, v in whole.items() if k != key} for key in whole]
        cases += [{**whole, key: value} for key in (*local, "url", "headers", "more") for value in ODD_VALUES]
    servers = {f"s{number}": case for number, case in enumerate([*cases, *STRICTER])}
    make_plugin({"$schema": MCP, "mcpServers": servers})
    report = doctor()
    faults = {row["name"]: row["fault"] for row in report["plugins"][0]["mcp_servers"]}
    assert len(faults) == len(servers) > 200
    accepted = 0
    for number, case in enumerate([*cases, *STRICTER]):
        is_valid = schema.is_valid(case)
        # Not an address, and no name of a program: the schema calls any text one.
        by_text = case in STRICTER or (isinstance(case, dict) and not plausible(case))
        assert (faults[f"s{number}"] is None) == (is_valid and not by_text), (case, faults[f"s{number}"])
        assert is_valid or case not in STRICTER
        accepted += is_valid and not by_text
    assert accepted > 20
    assert [found["code"] for found in report["problems"]] == ["plugin-mcp-invalid"]


def plausible(case: dict[str, Any]) -> bool:
    """Whether what would be started or asked is a text that can be; only values of the tables above are known."""
    command, url = case.get("command"), case.get("url")
    if isinstance(command, str) and "/" in command and not command.startswith("./"):
        return False
    return not isinstance(url, str) or url.startswith(("https://", "http://"))


def test_many_and_odd_servers_stay_short_and_harmless() -> None:
    """For people a few are named, each briefly, and nothing that a terminal obeys; the JSON has them all."""
    odd = {f"\x1b[31m{number}\ud800": {"type": "stdio", "command": "x" * 10_000} for number in range(20)}
    bad = {f"bad-{number}": 1 for number in range(20)}
    make_plugin({"$schema": MCP, "mcpServers": {**odd, **bad}})
    for command in (("info", "tools:pdf"), ("doctor",)):
        said = invoke(*command, "-s", "tools").output
        assert "\x1b" not in said
        assert "and 30 more" in " ".join(said.split()) or command == ("doctor",)
        assert len(said) < 8_000
    report = doctor()
    assert len(report["plugins"][0]["mcp_servers"]) == 40
    assert len(report["problems"][0]["message"]) < 3_000


def test_a_plugin_that_breaks_the_format_is_a_problem_of_its_source() -> None:
    """Commands name it once, as the source that it is, and exit with 1."""
    make_plugin("{}")
    write_files(Path(), {"tools/plugin.json": json.dumps({"name": "tools"})})
    assert "plugin-invalid: The plugin is not used: its `$schema` is missing" in refuse(1, "list", "-s", "tools")
    assert doctor()["skills"] == []

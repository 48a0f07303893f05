"""Directories of the Agent Plugins format as sources."""

import json
from pathlib import Path
from typing import Any

import pytest
from deepagents.backends import FilesystemBackend
from deepagents.backends.protocol import FileDownloadResponse

from deepskills import NamespacedSource, PluginSource, SkillsManager, SkillsMiddleware
from support import MODES, Conversation, Mode, disk, load, skill_md, write_files

both_modes = pytest.mark.parametrize("mode", MODES)

SCHEMA = "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json"


def manifest(**fields: object) -> str:
    """Return a manifest with the fields of the format."""
    return json.dumps({"$schema": SCHEMA, "name": "pdf-tools", **fields})


def codes(root: Path, *sources: Any, **options: Any) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the skills of the sources, and the code and message of each problem."""
    manager = SkillsManager(backend=disk(root), sources=sources, **options)
    return manager.list_skills(), [(found["code"], found["message"]) for found in manager.list_problems()]


@both_modes
def test_an_agent_uses_the_skills_of_plugins(mode: Mode, tmp_path: Path) -> None:
    """They are called by their plugin's name, of either manifest, beside a skill of the same name."""
    write_files(
        tmp_path,
        {
            "own/forms/SKILL.md": skill_md("forms"),
            "plugins/one/plugin.json": manifest(version="1.0.0", author={"name": "A"}),
            "plugins/one/mcp.json": "not JSON",
            "plugins/one/skills/forms/SKILL.md": skill_md("forms", "Of the plugin."),
            "plugins/two/.claude-plugin/plugin.json": '{"name": "two-tools", "author": "free form"}',
            "plugins/two/skills/forms/SKILL.md": skill_md("forms"),
            "plugins/third/plugin.json": manifest(name="third", unknown=1, other=2),
            "plugins/third/skills/forms/SKILL.md": skill_md("forms"),
        },
    )
    plugins = [PluginSource(f"/plugins/{name}") for name in ("one", "two/", "third")]
    middleware = SkillsMiddleware(backend=disk(tmp_path), sources=["/own", *plugins])
    talk = Conversation(mode, middleware)
    (answer,) = talk.call(load("pdf-tools:forms"))
    assert 'name="pdf-tools:forms"' in answer.text
    talk.say("done", given={"messages": "go", "pinned_skills": ["two-tools:forms"]})
    assert talk.loaded == ["pdf-tools:forms", "two-tools:forms"]
    names = [skill["name"] for skill in talk.state["skills_metadata"]]
    assert names == ["forms", "pdf-tools:forms", "two-tools:forms", "third:forms"]
    # A key without a meaning is reported, as the format asks, and costs nothing.
    [found] = talk.state["skills_problems"]
    assert (found["code"], found["severity"], found["path"]) == (
        "plugin-key-unknown",
        "warning",
        "/plugins/third/plugin.json",
    )
    assert "`other`, `unknown`" in found["message"]
    assert "**pdf-tools:forms**: Of the plugin." in talk.model.requests[0].system


def test_only_conforming_skills_directly_below(tmp_path: Path) -> None:
    """What the reader would repair elsewhere is an error here, and nothing deeper or higher is a skill."""
    write_files(
        tmp_path,
        {
            "p/plugin.json": manifest(),
            "p/SKILL.md": skill_md("p"),
            "p/skills/SKILL.md": skill_md("skills"),
            "p/skills/good/SKILL.md": skill_md("good"),
            "p/skills/other/SKILL.md": skill_md("another", "Something."),
            "p/skills/Loud/SKILL.md": skill_md("loud").replace("name: loud", "name: Loud"),
            "p/skills/group/deep/SKILL.md": skill_md("deep"),
        },
    )
    names, problems = codes(tmp_path, PluginSource("/p"), max_depth=5)
    assert names == ["pdf-tools:good"]
    assert sorted({code for code, _ in problems}) == ["name-directory-mismatch", "name-invalid"]
    manager = SkillsManager(backend=disk(tmp_path), sources=[PluginSource("/p")])
    assert {found["severity"] for found in manager.list_problems()} == {"error"}
    # By another way into the same directory, the usual reading applies.
    assert "free:another" in codes(tmp_path, NamespacedSource("/p/skills", "free"))[0]


@both_modes
@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param(None, "there is no `plugin.json`", id="missing"),
        pytest.param("{", "not readable as JSON", id="not-json"),
        pytest.param("[" * 100_000, "not readable as JSON", id="deep"),
        pytest.param("[]", "not a JSON object", id="list"),
        pytest.param(json.dumps({"name": "a", "x": "y" * 300_000}), "bytes", id="huge"),
        pytest.param('{"name": "../etc"}', "its name is `../etc`", id="slashes"),
        pytest.param(json.dumps({"name": "n" * 10_000}), "its name is `nnn", id="long"),
        pytest.param('{"name": "a--b"}', "its name is", id="hyphens"),
        pytest.param('{"name": "A"}', "its name is", id="upper-case"),
        pytest.param('{"name": "a\\nb"}', "its name is", id="line"),
        pytest.param('{"name": "\\ud800"}', "its name is", id="surrogate"),
        pytest.param('{"name": 3}', "its name is no text", id="number"),
        pytest.param('{"name": null}', "its name is no text", id="null"),
        pytest.param("{}", "its name is no text", id="empty"),
        pytest.param('{"name": "a"}', "its `$schema` is missing", id="no-schema"),
        pytest.param('{"name": "a", "$schema": "https://x/2.0.0"}', "`$schema`", id="schema"),
        pytest.param('{"name": "a", "version": 1}', "`version` is not text", id="version"),
        pytest.param('{"name": "a", "author": {"phone": "1"}}', "`author`", id="author"),
        pytest.param('{"name": "a", "keywords": "k"}', "`keywords`", id="keywords"),
    ],
)
def test_a_broken_manifest_costs_only_its_plugin(mode: Mode, given: str | None, said: str, tmp_path: Path) -> None:
    """It is one problem that says what is wrong; the other sources load."""
    write_files(tmp_path, {"own/s/SKILL.md": skill_md("s"), "bad/skills/t/SKILL.md": skill_md("t")})
    if given is not None:
        write_files(tmp_path, {"bad/plugin.json": given})
    talk = Conversation(mode, SkillsMiddleware(backend=disk(tmp_path), sources=["/own", PluginSource("/bad")]))
    talk.call(load("s"))
    assert talk.loaded == ["s"]
    (found,) = talk.state["skills_problems"]
    assert (found["code"], found["path"], found["severity"]) == ("plugin-invalid", "/bad/plugin.json", "error")
    assert said in found["message"]
    assert len(found["message"]) < 1_500


def test_a_plugin_without_skills_is_fine(tmp_path: Path) -> None:
    """The format calls no part of a plugin necessary except its manifest."""
    write_files(tmp_path, {"p/plugin.json": manifest()})
    assert codes(tmp_path, PluginSource("/p")) == ([], [])


@both_modes
def test_a_manifest_that_cannot_be_read_now_unloads_nothing(mode: Mode, tmp_path: Path) -> None:
    """An outage is none of the plugin's faults: what the thread knows stays, and the problem is the source's."""
    write_files(tmp_path, {"p/plugin.json": manifest(), "p/skills/t/SKILL.md": skill_md("t")})

    class Flaky(FilesystemBackend):
        is_down = False

        def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
            if self.is_down and any(path.endswith("plugin.json") for path in paths):
                raise ConnectionError("the network is down")
            return super().download_files(paths)

    backend = Flaky(root_dir=tmp_path, virtual_mode=True)
    talk = Conversation(mode, SkillsMiddleware(backend=backend, sources=[PluginSource("/p")], refresh="run"))
    talk.call(load("pdf-tools:t"))
    backend.is_down = True
    talk.say("done")
    assert talk.loaded == ["pdf-tools:t"]
    assert [skill["name"] for skill in talk.state["skills_metadata"]] == ["pdf-tools:t"]
    assert [found["code"] for found in talk.state["skills_problems"]] == ["source-failed"]


def test_a_link_out_of_the_plugin_is_no_skill(tmp_path: Path) -> None:
    """Where the backend says that a listing leads elsewhere, what lies outside the plugin is an error."""
    write_files(tmp_path, {"p/plugin.json": manifest(), "p/skills/t/SKILL.md": skill_md("t")})
    write_files(tmp_path, {"out/x/SKILL.md": skill_md("x"), "p/shared/in/SKILL.md": skill_md("in")})
    for name, target in (("x", "out/x"), ("in", "p/shared/in")):
        (tmp_path / "p/skills" / name).symlink_to(tmp_path / target)
    names, [(code, _)] = codes(tmp_path, PluginSource("/p"))
    assert (sorted(names), code) == (["pdf-tools:in", "pdf-tools:t"], "plugin-leads-out")


# The published schema of 1.0.0, in words of our own: the same statements in the same language.
TEXT = {"type": "string"}
PUBLISHED = {
    "type": "object",
    "required": ["$schema", "name"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"const": SCHEMA},
        "name": {
            "type": "string",
            "minLength": 1,
            "maxLength": 64,
            "pattern": r"^(?!.*(?:--|\.\.))[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?$",
        },
        **dict.fromkeys(("version", "description", "homepage", "repository", "license"), TEXT),
        "author": {
            "type": "object",
            "properties": {"name": TEXT, "email": TEXT, "url": TEXT},
            "additionalProperties": False,
        },
        "keywords": {"type": "array", "items": TEXT},
        "extensions": {"type": "object", "additionalProperties": {"type": "object"}},
    },
}

NAMES: tuple[str, ...] = (
    "a",
    "9",
    "my-plugin",
    "acme.tools",
    "lint3r",
    "a.-b",
    "a-.b",
    "a" * 64,
    "a" * 65,
    "",
    "-a",
    "a-",
    ".a",
    "a.",
)
NAMES += ("a--b", "a..b", "My-Plugin", "a_b", "a b", "a/b", "größe", "a\n", " a", "a\x00", "٣")
ODD_VALUES: tuple[object, ...] = ("text", "", "not a version", 1, 1.5, True, None, [], ["a"], [1], {}, {"name": "a"})
ODD_VALUES += ({"name": 1}, {"email": "a", "url": "b"}, {"phone": "1"}, {"com.example": {}}, {"com.example": 1})


def variants() -> list[tuple[str, Any]]:
    """Return manifests: every key left out, each with every odd value, odd names, and what is no manifest."""
    whole = json.loads(manifest(description="d", author={"name": "A"}, keywords=["k"], extensions={"com.example": {}}))
    found: list[tuple[str, Any]] = [("whole", whole), ("list", []), ("text", "a"), ("null", None), ("empty", {})]
    found += [(f"without {key}", {k: v for k, v in whole.items() if k != key}) for key in whole]
    found += [(f"name {name!r}", {**whole, "name": name}) for name in NAMES]
    keys = [*PUBLISHED["properties"], "displayName", "icon", "skills", "mcpServers"]  # type: ignore[misc]
    found += [(f"{key}={value!r}", {**whole, key: value}) for key in keys for value in ODD_VALUES]
    versions = ("1.1.0", "1.0.1", "2.0.0")
    return found + [(version, {**whole, "$schema": SCHEMA.replace("1.0.0", version)}) for version in versions]


def test_the_published_schema_and_the_reader_agree(tmp_path: Path) -> None:
    """Over 200 manifests the verdicts are the same, but where the specification's text overrides its schema."""
    jsonschema = pytest.importorskip("jsonschema_rs")
    schema = jsonschema.Draft202012Validator(PUBLISHED)
    cases = variants()
    assert len(cases) > 200
    for number, (_, value) in enumerate(cases):
        write_files(tmp_path, {f"{number}/plugin.json": json.dumps(value)})
        write_files(tmp_path, {f"{number}/skills/t/SKILL.md": skill_md("t")})
    accepted = 0
    for number, (label, value) in enumerate(cases):
        names, problems = codes(tmp_path, PluginSource(f"/{number}"))
        is_valid = schema.is_valid(value)
        # A client goes on without a key that it does not know, and without `extensions` that are not as they should be.
        known = {k: v for k, v in value.items() if k in PUBLISHED["properties"]} if isinstance(value, dict) else value  # type: ignore[operator]
        if not is_valid and isinstance(value, dict):
            is_valid = schema.is_valid({k: v for k, v in known.items() if k != "extensions"})
        assert bool(names) == is_valid, (label, problems)
        is_known = value == known and isinstance(value.get("extensions", {}) if isinstance(value, dict) else {}, dict)
        expected = [] if is_known else ["plugin-key-unknown"]
        assert [code for code, _ in problems] == (expected if is_valid else ["plugin-invalid"]), label
        accepted += is_valid
    assert 50 < accepted < len(cases) - 50

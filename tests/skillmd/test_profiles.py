"""Profiles of validation, the table of keys, fenced files and placeholders that nobody filled in."""

from pathlib import Path

import pytest

from deepskills import read_skill, validate_skill
from deepskills._skillmd.keys import KEYS, SPECIFIED_FIELDS
from deepskills.extensions import SkillChecks, SkillForks, SkillHooks, SkillModels, ToolPolicy
from support.problems import SEVERITIES

PATH = "/skills/demo/SKILL.md"


def file(fields: str = "", body: str = "Text.\n") -> str:
    return f"---\nname: demo\ndescription: Does a thing.\n{fields}---\n{body}"


def codes(text: str, profile: str) -> list[tuple[str, str]]:
    found = validate_skill(text, path=PATH, profile=profile)  # type: ignore[arg-type]
    return [(problem["code"], problem["severity"]) for problem in found]


def test_every_key_that_the_library_acts_on_passes_its_own_profile() -> None:
    """Each passes, in flow style too; the specification's profile refuses it, as its reference validator does."""
    for name, key in KEYS.items():
        if not key.does or key.is_specified or name.startswith("metadata."):
            continue
        text = file(f"{name}: {'[{called: a}]' if name == 'checks' else '[a, b]'}\n")
        assert codes(text, "deepskills") == [], name
        assert dict(codes(text, "spec")).keys() & {"unknown-field", "client-field"}, name
        assert ("flow-style", "error") in codes(text, "spec"), name


def test_lists_below_metadata_pass_where_the_library_reads_them() -> None:
    """Each key that works below `metadata` may be a list there; a mapping, or a list of any other key, may not."""
    below = [name.removeprefix("metadata.") for name, key in KEYS.items() if key.below]
    assert {"tags", "keywords", "triggers", "include_tools", "requires"} <= set(below)
    refused = ("metadata-value-not-text", "error")
    for name in below:
        for value in (" [a, b]\n", "\n    - a\n    - b\n"):
            text = file(f"metadata:\n  {name}:{value}")
            assert codes(text, "deepskills") == [], text
            assert refused in codes(text, "spec"), text
            reading = read_skill(text, path=PATH)
            assert reading.metadata is not None
            assert reading.metadata["metadata"] == {name: "a, b"}
        assert codes(file(f"metadata:\n  {name}: {{a: b}}\n"), "deepskills") == [refused]
        assert codes(file(f"metadata:\n  {name}: [[a], b]\n"), "deepskills") == [refused]
    [found] = validate_skill(file("metadata:\n  tags: [a]\n  flavour: [b]\n"), path=PATH, profile="deepskills")
    assert ("`flavour`" in found["message"], "`tags`" in found["message"]) == (True, False)


def test_keys_of_other_clients_are_warnings_that_name_them() -> None:
    """A key that only another client reads is a warning; one that nobody reads is an error."""
    [found] = validate_skill(file("effort: high\n"), path=PATH, profile="deepskills")
    assert (found["code"], found["severity"], "Claude Code" in found["message"]) == ("foreign-field", "warning", True)
    for field in ("globs: '*.py'", "alwaysApply: true"):
        [found] = validate_skill(file(f"{field}\n"), path=PATH, profile="deepskills")
        assert (found["code"], found["severity"], "Cursor" in found["message"]) == ("foreign-field", "warning", True)
    assert codes(file("flavour: sweet\n"), "deepskills") == [("unknown-field", "error")]
    assert codes("\ufeff" + file(), "deepskills") == [("byte-order-mark", "error")]


def test_no_message_advises_to_move_a_key_to_where_it_stops_working() -> None:
    """Only keys that work below `metadata`, or that nobody reads, are advised to go there."""
    for name, key in KEYS.items():
        if key.is_specified or name.startswith("metadata."):
            continue
        for profile in ("spec", "deepskills"):
            found = validate_skill(file(f"{name}: x\n"), path=PATH, profile=profile)
            advises = any("below `metadata:`" in problem["message"] for problem in found)
            assert advises == (profile == "spec" and key.works_in_metadata), (name, profile)


def test_the_table_names_the_extension_that_a_key_needs() -> None:
    """Each extension that acts on a key of its own is named, and no other."""
    extensions = (SkillChecks, SkillModels, SkillForks, SkillHooks, ToolPolicy)
    named = {key.needs for key in KEYS.values() if key.needs}
    assert named == {extension.__name__ for extension in extensions}
    assert {"name", "description", "license", "compatibility", "metadata", "allowed-tools"} == SPECIFIED_FIELDS


def test_an_unknown_profile_is_refused() -> None:
    """The message names the profiles."""
    with pytest.raises(ValueError, match="'spec' or 'deepskills'"):
        validate_skill(file(), path=PATH, profile="strict")  # type: ignore[arg-type]


def test_a_file_inside_a_markdown_fence_is_read() -> None:
    """The whole file inside a fence is read with a warning; its own blocks of code stay as they are."""
    body = "Do:\n```sh\nls\n```\nDone.\n"
    for opening, closing, after in (
        ("```markdown", "```", ""),
        ("````", "````", "\n\n"),
        ("~~~md", "~~~~", "\n"),
        ("\n<!-- x -->\n```", "```", ""),
    ):
        reading = read_skill(f"{opening}\n{file(body=body)}{closing}{after}", path=PATH)
        assert reading.metadata is not None
        assert (reading.metadata["name"], reading.body) == ("demo", body)
        assert [problem["code"] for problem in reading.problems] == ["file-in-fence"]
    crlf = read_skill(f"```\r\n{file(body='A').replace(chr(10), chr(13) + chr(10))}\r\n```\r\n", path=PATH)
    assert (crlf.metadata is not None, crlf.body) == (True, "A\r\n")
    for text in (f"```yaml\n{file()}```\n# More\n", f"```\n{file()}", f"````\n{file()}```", "```\ntext\n```", "```"):
        assert read_skill(text, path=PATH).metadata is None, text
    assert SEVERITIES["file-in-fence"] == "warning"


def test_placeholders_are_their_text() -> None:
    """What YAML takes for nested flow mappings is the text as written, with a warning that names the key."""
    text = (
        "---\nname: {{NAME}}\ndescription: {{ a thing }}\nx: [{{b}}, c]\nm:\n  q: {{äö c}} # no\nz: {{d\n  e}}\n---\n"
    )
    reading = read_skill(text, path=PATH)
    assert reading.frontmatter == {
        "name": "{{NAME}}",
        "description": "{{ a thing }}",
        "x": ["{{b}}", "c"],
        "m": {"q": "{{äö c}}"},
        "z": "{{d e}}",
    }
    assert reading.metadata is not None
    assert (reading.metadata["name"], reading.metadata["description"]) == ("{{NAME}}", "{{ a thing }}")
    repaired = next(problem for problem in reading.problems if problem["code"] == "yaml-repaired")
    assert "`name`, `description`" in repaired["message"]
    plain = read_skill(file("m: {a: {b: c}}\n"), path=PATH)
    assert plain.frontmatter["m"] == {"a": {"b": "c"}}


def test_the_reference_page_has_the_same_table() -> None:
    """Every known key has a row in the documentation that says what it does, what it needs and who else reads it."""
    page = (Path(__file__).parents[2] / "docs/skill-files.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    told = {row[0].strip("`"): " | ".join(row[1:]) for row in rows}
    for name, key in KEYS.items():
        assert (key.does or "nothing") in told[name], name
        assert key.needs in told[name], name
        assert [client for client in key.others if client not in told[name]] == [], name

"""Reading SKILL.md: what is read without a word, what is forgiven, what is refused."""

import codecs
import json
import unicodedata
from dataclasses import dataclass, field
from typing import Any

import pytest

from deepskills import SkillFormatError, SkillMetadata, SkillProblem, parse_skill_md, read_skill, validate_skill
from support.problems import SEVERITIES

COVERED_ELSEWHERE: frozenset[str] = frozenset(
    {
        "agent-conflict",
        "agent-lacks-tools",
        "agent-unusable",
        "agent-without-skills",
        "budget-over-window",
        "cache-broken",
        "unload-cheap-in-vain",
        "catalog-replaced",
        "check-circle",
        "check-handler-unknown",
        "check-holds-own-tool",
        "check-malformed",
        "check-needs-scripts",
        "check-too-long",
        "check-unknown-kind",
        "checks-in-fork",
        "checks-not-a-list",
        "checks-open",
        "checks-too-many",
        "client-field",
        "extension-failed",
        "sent-back-too-often",
        "file-in-fence",
        "foreign-field",
        "placeholder-left",
        "frontmatter-key-too-large",
        "skill-refused",
        "middleware-order",
        "plugin-invalid",
        "plugin-key-unknown",
        "plugin-mcp-invalid",
        "plugin-leads-out",
        "provided-invalid",
        "invocation-unreadable",
        "reference-dead",
        "request-taken",
        "request-unwanted",
        "provided-location",
        "mcp-not-declared",
        "mcp-entry-invalid",
        "mcp-dynamic",
        "mcp-too-large",
        "mcp-listing-cut",
        "mcp-mismatch",
        "mcp-renamed",
        "load-unknown",
        "pin-unknown",
        "pins-not-a-list",
        "requires-missing",
        "skill-not-in-store",
        "requires-circle",
        "script-runner-missing",
        "skill-duplicate",
        "skill-file-misnamed",
        "skill-gone",
        "skill-not-a-file",
        "skill-shadowed",
        "skill-path-not-text",
        "skill-too-deep",
        "installed-differs",
        "lock-unreadable",
        "skill-unreadable",
        "skills-user-only",
        "source-cut",
        "source-empty",
        "source-failed",
        "source-incomplete",
        "source-missing",
        "sources-failed",
        "state-malformed",
        "token-counter-failed",
        "visibility-failed",
    }
)
"""Documented codes that other test files have a case for."""

PATH = "/skills/demo/SKILL.md"
REQUIRED = "name: demo\ndescription: Does it.\n"
MIB = 1024 * 1024
KIB = 1024


def framed(frontmatter: str, body: str = "Body.\n") -> str:
    return f"---\n{frontmatter}---\n{body}"


def with_fields(fields: str) -> str:
    return framed(REQUIRED + fields)


def expected(**fields: Any) -> SkillMetadata:
    """Return the metadata of a demo skill in which `fields` differ."""
    plain = SkillMetadata(
        path=PATH, name="demo", description="Does it.", license=None, compatibility=None, metadata={}, allowed_tools=[]
    )
    plain.update(fields)  # type: ignore[typeddict-item]
    return plain


def codes(problems: list[SkillProblem]) -> list[str]:
    return [problem["code"] for problem in problems]


def sized(size: int, ending: str = "---\nBody.\n") -> str:
    """Return a skill whose frontmatter is `size` characters long, with `ending` below it."""
    return "---\n" + REQUIRED + "#" * (size - len(REQUIRED) - 1) + "\n" + ending


DEMO = framed(REQUIRED)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(DEMO, id="text"),
        pytest.param(DEMO.encode(), id="utf-8"),
        pytest.param(codecs.BOM_UTF8 + DEMO.encode(), id="utf-8-with-bom"),
        pytest.param("\ufeff" + DEMO, id="text-with-bom"),
        pytest.param(DEMO.replace("\n", "\r\n").encode(), id="crlf"),
        pytest.param(DEMO.replace("---\n", "---  \n"), id="spaces-after-fences"),
        pytest.param(DEMO.replace("---\n", "---\t \n"), id="tab-after-fences"),
        pytest.param(f"---\n{REQUIRED}---", id="closing-fence-ends-file"),
        pytest.param(f"---\n{REQUIRED}---   ", id="closing-fence-and-spaces-end-file"),
        pytest.param(framed(f"# a comment\n\n{REQUIRED}\n  # another\n"), id="comments-and-blank-lines"),
        pytest.param(framed("description: 'Does it.'\n\"name\":   demo   # so\n"), id="quotes-and-order"),
        pytest.param(framed("name: demo\ndescription: >-\n  Does\n  it.\n"), id="folded-block"),
        pytest.param(framed("name: demo\ndescription: |\n\n  Does it.\n\n\n"), id="literal-block"),
        pytest.param(framed("{name: demo, description: Does it.}\n"), id="flow-mapping"),
        pytest.param(sized(64 * KIB), id="frontmatter-of-64-kib"),
        pytest.param(sized(64 * KIB - 1), id="frontmatter-of-a-byte-less"),
        pytest.param(sized(1000, "---" + " " * 80_000 + "\nBody.\n"), id="many-blanks-after-fence"),
        pytest.param(DEMO.encode().ljust(10 * MIB, b"x"), id="file-of-10-mib"),
    ],
)
def test_reads_without_a_word(content: bytes | str) -> None:
    """What authors may write is read, and nothing is said about it."""
    reading = read_skill(content, path=PATH)
    assert reading.problems == []
    assert reading.metadata == expected()


@pytest.mark.parametrize(
    ("fields", "key", "value"),
    [
        pytest.param("license: 1.10\n", "license", "1.10", id="decimal"),
        pytest.param("license: 010\n", "license", "010", id="leading-zero"),
        pytest.param("license: 0x1F\n", "license", "0x1F", id="hexadecimal"),
        pytest.param("license: 1_000\n", "license", "1_000", id="underscores"),
        pytest.param("license: 190:20:30\n", "license", "190:20:30", id="sexagesimal"),
        pytest.param("license: 2025-02-30\n", "license", "2025-02-30", id="no-such-date"),
        pytest.param(
            "license: 2025-01-01 10:00:00 +25:00\n", "license", "2025-01-01 10:00:00 +25:00", id="no-such-time"
        ),
        pytest.param("license: yes\n", "license", "yes", id="yes"),
        pytest.param("license: TRUE\n", "license", "TRUE", id="true"),
        pytest.param("license: .NaN\n", "license", ".NaN", id="not-a-number"),
        pytest.param(f"license: {'9' * 5000}\n", "license", "9" * 5000, id="5000-digits"),
        pytest.param("license: None\n", "license", "None", id="the-word-none"),
        pytest.param("license: null\n", "license", None, id="null"),
        pytest.param("license: NULL\n", "license", None, id="null-in-capitals"),
        pytest.param("license: ~\n", "license", None, id="tilde"),
        pytest.param("license:\n", "license", None, id="nothing"),
        pytest.param("license: # nothing\n", "license", None, id="nothing-but-a-comment"),
        pytest.param('license: ""\n', "license", None, id="empty-text"),
        pytest.param('license: "null"\n', "license", "null", id="quoted-null"),
        pytest.param("license: '~'\n", "license", "~", id="quoted-tilde"),
        pytest.param("license:\tMIT\n", "license", "MIT", id="tab-after-colon"),
        pytest.param("compatibility: ~\n", "compatibility", None, id="no-compatibility"),
        pytest.param(f"compatibility: {'c' * 500}\n", "compatibility", "c" * 500, id="compatibility-of-500"),
        pytest.param("metadata:\n", "metadata", {}, id="no-metadata"),
        pytest.param(
            "metadata:\n  version: 1.10\n  released: 2025-02-30\n  stable: yes\n  3: 0o7\n",
            "metadata",
            {"version": "1.10", "released": "2025-02-30", "stable": "yes", "3": "0o7"},
            id="numbers-dates-and-booleans-in-metadata",
        ),
        pytest.param(
            "metadata:\n  a: ~\n  b: null\n  c:\n  d: 'null'\n", "metadata", {"d": "null"}, id="nulls-in-metadata"
        ),
        pytest.param("metadata: {a: 1, b: yes}\n", "metadata", {"a": "1", "b": "yes"}, id="flow-metadata"),
        pytest.param("allowed-tools:\n", "allowed_tools", [], id="no-tools"),
        pytest.param("allowed-tools: Read Write\n", "allowed_tools", ["Read", "Write"], id="tools-and-spaces"),
        pytest.param("allowed-tools: Read,Write , Edit,\n", "allowed_tools", ["Read", "Write", "Edit"], id="commas"),
        pytest.param(
            "allowed-tools: Bash(git add:*), Read\n", "allowed_tools", ["Bash(git add:*)", "Read"], id="space-inside"
        ),
        pytest.param(
            "allowed-tools: Bash(a,b (c, d)) Read\n", "allowed_tools", ["Bash(a,b (c, d))", "Read"], id="comma-inside"
        ),
        pytest.param(
            "allowed-tools:\n  - Bash(git add:*)\n  - Read\n  - ~\n  - 7\n",
            "allowed_tools",
            ["Bash(git add:*)", "Read", "7"],
            id="tools-as-list",
        ),
        pytest.param("allowed-tools: [Read, Write]\n", "allowed_tools", ["Read", "Write"], id="tools-as-flow-list"),
        pytest.param("x-other:\n  - a: b\n", "license", None, id="further-keys"),
    ],
)
def test_fields_are_the_text_as_written(fields: str, key: str, value: object) -> None:
    """A scalar is its text as written, and a plain null is missing; neither is worth a word."""
    reading = read_skill(with_fields(fields), path=PATH)
    assert reading.problems == []
    assert reading.metadata == expected(**{key: value})


@pytest.mark.parametrize(
    ("text", "tools"),
    [
        pytest.param("", [], id="nothing"),
        pytest.param(" ,\t\n, ", [], id="separators-alone"),
        pytest.param("Read", ["Read"], id="one"),
        pytest.param("Bash(git:*) Bash(ls -l)", ["Bash(git:*)", "Bash(ls -l)"], id="parentheses"),
        pytest.param("A) B", ["A)", "B"], id="stray-closing"),
        pytest.param("A(b, c", ["A(b, c"], id="never-closed"),
        pytest.param("A(b)c,d", ["A(b)c", "d"], id="text-after-parentheses"),
    ],
)
def test_tools_split_outside_parentheses(text: str, tools: list[str]) -> None:
    """Tool names end at spaces and commas, except inside parentheses."""
    reading = read_skill(with_fields(f"allowed-tools: {json.dumps(text)}\n"), path=PATH)
    assert reading.metadata is not None
    assert reading.metadata["allowed_tools"] == tools


@dataclass(frozen=True)
class Case:
    """A file, the one problem it has, and what its message must say."""

    code: str
    content: bytes | str
    words: tuple[str, ...]
    fields: dict[str, Any] = field(default_factory=dict)
    path: str = PATH
    also: tuple[str, ...] = ()


REFUSALS = {
    "bytes-over-10-mib": Case(
        "file-too-large", DEMO.encode().ljust(10 * MIB + 1, b"\xff"), ("10485761", "10485760", "references/")
    ),
    "text-over-10-mib": Case("file-too-large", DEMO.ljust(10 * MIB + 1), ("10485761", "references/")),
    "text-over-10-mib-in-bytes": Case("file-too-large", DEMO + "é" * (5 * MIB), ("references/",)),
    "binary": Case("not-text", b"\x89PNG\r\n\x1a\n\x00", ("byte 0", "UTF-8")),
    "latin-1": Case("not-text", DEMO.replace("Does", "Café").encode("latin-1"), ("Save it as UTF-8",)),
    "cut-utf-16": Case("not-text", DEMO.encode("utf-16") + b"\x00", ("UTF-16", "Save it as UTF-8")),
    "utf-32": Case("not-text", DEMO.encode("utf-32"), ("Save it as UTF-8",)),
    "empty-file": Case("no-frontmatter", "", ("Start the file with a line `---`", "name:", "description:")),
    "no-fence": Case("no-frontmatter", "# Title\n\nText.\n", ("no frontmatter",)),
    "text-before-fence": Case("no-frontmatter", f"Hello\n{DEMO}", ("no frontmatter",)),
    "four-dashes": Case("no-frontmatter", f"-{DEMO}", ("no frontmatter",)),
    "text-behind-fence": Case("no-frontmatter", DEMO.replace("---\n", "--- yaml\n", 1), ("no frontmatter",)),
    "comment-never-closed": Case("no-frontmatter", f"<!-- {DEMO}", ("no frontmatter",)),
    "fence-alone": Case("frontmatter-unclosed", "---", ("not closed", "End it with a line that holds only `---`")),
    "no-second-fence": Case("frontmatter-unclosed", f"---\n{REQUIRED}", ("not closed",)),
    "indented-second-fence": Case("frontmatter-unclosed", f"---\n{REQUIRED} ---\n", ("not closed",)),
    "second-fence-with-text": Case("frontmatter-unclosed", f"---\n{REQUIRED}--- x\n", ("not closed",)),
    "frontmatter-over-64-kib": Case("frontmatter-too-large", sized(64 * KIB + 1), ("65536", "Close it", "below it")),
    "frontmatter-over-64-kib-in-bytes": Case(
        "frontmatter-too-large", framed(f"{REQUIRED}license: {'é' * 33_000}\n"), ("65536",)
    ),
    "fence-out-of-reach": Case("frontmatter-too-large", f"---\n{'x' * MIB}\n---\n", ("Close it with a line `---`",)),
    "blanks-and-text-behind-far-fence": Case(
        "frontmatter-too-large", sized(1000, "---" + " " * 80_000 + "x\n"), ("Close it with a line `---`",)
    ),
    "no-key-at-all": Case("yaml-unreadable", framed("[a, b\n"), ("line", "`key: value`", "quote")),
    "no-token": Case("yaml-unreadable", framed("\n@@@\n"), ("cannot start any token", "line 3", "quote")),
    "list": Case("frontmatter-not-mapping", framed("- name: demo\n"), ("a list", "`key: value`")),
    "prose": Case("frontmatter-not-mapping", framed("Just a title\n"), ("plain text", "`key: value`")),
    "no-description": Case("description-missing", framed("name: demo\n"), ("Add `description:`",)),
    "null-description": Case("description-missing", framed("name: demo\ndescription: ~\n"), ("Add `description:`",)),
    "blank-description": Case("description-missing", framed('name: demo\ndescription: " "\n'), ("description",)),
    "invisible-description": Case(
        "description-missing",
        framed("name: demo\ndescription: \u202e\n"),
        ("description",),
        also=("control-characters",),
    ),
    "empty-list-for-description": Case(
        "description-missing", framed("name: demo\ndescription: []\n"), ("description",), also=("field-not-text",)
    ),
    "empty-frontmatter": Case("description-missing", "---\n---\n", ("Add `description:`",), also=("name-missing",)),
}
"""Each an error: the file is not used."""

LONG_NAME = "n" * 65

SLIPS = {
    "utf-16-le": Case("encoding-utf16", codecs.BOM_UTF16_LE + DEMO.encode("utf-16-le"), ("Save it as UTF-8",)),
    "utf-16-be": Case("encoding-utf16", codecs.BOM_UTF16_BE + DEMO.encode("utf-16-be"), ("Save it as UTF-8",)),
    "cr": Case("line-ends-cr", DEMO.replace("\n", "\r"), ("carriage return", "LF line ends")),
    "cr-in-one-line": Case("line-ends-cr", DEMO.replace("demo\n", "demo\r"), ("LF line ends",)),
    "blank-lines-first": Case("text-before-frontmatter", f"\n \t\r\n{DEMO}", ("Make it the first line",)),
    "comments-first": Case(
        "text-before-frontmatter", f"<!-- a\n---\n-->\n\n<!-- b -->\n{DEMO}", ("comments", "first line of the file")
    ),
    "heading-glued-to-the-fence": Case(
        "fence-glued", DEMO.replace("\n---\n", "\n---# Title\n"), ("on the same line", "line of its own")
    ),
    "heading-glued-with-a-later-rule": Case(
        "fence-glued", DEMO.replace("\n---\n", "\n---## Title\n\nText.\n\n---\n"), ("line of its own",)
    ),
    "heading-glued-with-crlf": Case(
        "fence-glued", DEMO.replace("\n---\n", "\n---# Title\n").replace("\n", "\r\n"), ("line of its own",)
    ),
    "nul-first": Case("text-before-frontmatter", f"\0{DEMO}", ("first line of the file",)),
    "nul": Case("control-characters", with_fields("license: M\0IT\n"), ("removed", "Delete them"), {"license": "MIT"}),
    **{
        f"{name}-behind-the-{which}-fence": Case("control-characters", content, ("removed", "Delete them"))
        for name, stray in {
            "nul": "\0",
            "form-feed": "\x0c",
            "no-break-space": "\xa0",
            "zero-width-space": "\u200b",
            "byte-order-mark": "\ufeff",
            "several": " \t\u200b\0 \u202e",
        }.items()
        for which, content in {
            "opening": DEMO.replace("---\n", f"---{stray}\n", 1),
            "closing": DEMO.replace("\n---\n", f"\n---{stray}\n"),
            "other": DEMO.replace("---\n", f"---{stray}\r\n"),
        }.items()
    },
    "tab-before-a-key": Case(
        "yaml-repaired",
        "---\nname: demo\n\tdescription: Does it.\n \tlicense: MIT\n---\nBody.\n",
        ("`description`", "`license`"),
        {"license": "MIT"},
    ),
    "escape-sequence": Case(
        "control-characters", with_fields("license: M\x1b[1mIT\n"), ("Delete them",), {"license": "MIT"}
    ),
    "next-line": Case("control-characters", with_fields("license: M\x85IT\n"), ("removed",), {"license": "MIT"}),
    "bidi-override": Case(
        "control-characters", with_fields("license: M\u202eIT\u2066\n"), ("bidirectional",), {"license": "MIT"}
    ),
    "tag-characters": Case(
        "control-characters", with_fields("license: MIT\U000e0041\U000e007f\n"), ("invisible",), {"license": "MIT"}
    ),
    "surrogate": Case("control-characters", with_fields("license: M\ud800IT\n"), ("removed",), {"license": "MIT"}),
    "written-as-escape": Case(
        "control-characters", with_fields('license: "M\\x07\\u202EIT"\n'), ("removed",), {"license": "MIT"}
    ),
    "escape-in-a-key": Case(
        "control-characters", with_fields('metadata:\n  "a\\eb": c\n'), ("removed",), {"metadata": {"ab": "c"}}
    ),
    "colon-in-value": Case(
        "yaml-repaired",
        with_fields("license: MIT: the licence\n"),
        ("`license`", "Put the value in quotes", "indent it"),
        {"license": "MIT: the licence"},
    ),
    "nested-too-deep": Case(
        "yaml-too-deep",
        with_fields(f"license: {'[' * 40}{']' * 40}\n"),
        ("`license`", "Keep frontmatter flat"),
        {"license": "[" * 40 + "]" * 40},
    ),
    "line-of-no-key": Case(
        "yaml-line-lost",
        framed(f"**Skill** of: mine\n{REQUIRED}"),
        ("`**Skill** of: mine`", "Remove them, or write `key: value`"),
    ),
    "key-twice": Case(
        "yaml-duplicate-key",
        with_fields("license: MIT\nlicense: Zlib\n"),
        ("`license`", "the last one is used", "Remove the others"),
        {"license": "Zlib"},
    ),
    "key-twice-in-metadata": Case(
        "yaml-duplicate-key", with_fields("metadata:\n  a: 1\n  a: 2\n"), ("`a`",), {"metadata": {"a": "2"}}
    ),
    "key-twice-in-broken-yaml": Case(
        "yaml-duplicate-key",
        with_fields("license: MIT\nlicense: @a\n"),
        ("`license`",),
        {"license": "@a"},
        also=("yaml-repaired",),
    ),
    "anchor": Case(
        "yaml-alias", with_fields("license: &a MIT\n"), ("anchors", "Write the value out"), {"license": "MIT"}
    ),
    "alias": Case(
        "yaml-alias",
        with_fields("metadata: \n  a: &x MIT\n  b: *x\n"),
        ("not expanded", "or quote it"),
        {"metadata": {"a": "MIT", "b": "*x"}},
    ),
    "merge-key": Case(
        "yaml-alias",
        with_fields("metadata:\n  <<: *x\n  b: c\n"),
        ("merge keys", "not expanded"),
        {"metadata": {"<<": "*x", "b": "c"}},
    ),
    "tag": Case("yaml-tag", with_fields("license: !!int 7\n"), ("ignored", "plain value"), {"license": "7"}),
    "tag-of-an-object": Case(
        "yaml-tag", with_fields("license: !!python/name:os.system x\n"), ("ignored",), {"license": "x"}
    ),
    "tag-on-null": Case("yaml-tag", with_fields("license: !!str null\n"), ("ignored",), {"license": "null"}),
    "no-name": Case("name-missing", framed("description: Does it.\n"), ("`demo` is used", "Add `name:`")),
    "null-name": Case("name-missing", framed("name: ~\ndescription: Does it.\n"), ("Add `name:`",)),
    "uppercase-name": Case(
        "name-invalid",
        DEMO.replace("demo", "Demo"),
        ("`Demo`", "Use lower-case letters, digits and single hyphens"),
        {"name": "Demo", "path": "/skills/Demo/SKILL.md"},
        "/skills/Demo/SKILL.md",
    ),
    "long-name": Case(
        "name-too-long",
        DEMO.replace("demo", LONG_NAME),
        ("65", "64", "Shorten it"),
        {"name": LONG_NAME, "path": f"/skills/{LONG_NAME}/SKILL.md"},
        f"/skills/{LONG_NAME}/SKILL.md",
    ),
    "other-directory": Case(
        "name-directory-mismatch",
        DEMO,
        ("`demo`", "`other`", "Rename one of them"),
        {"path": "/skills/other/SKILL.md"},
        "/skills/other/SKILL.md",
    ),
    "long-description": Case(
        "description-too-long",
        DEMO.replace("Does it.", "é" * 1025),
        ("1025", "cut at 1024", "Shorten it"),
        {"description": "é" * 1024},
    ),
    "long-compatibility": Case(
        "compatibility-too-long",
        with_fields(f"compatibility: {'é' * 501}\n"),
        ("501", "cut at 500", "Shorten it"),
        {"compatibility": "é" * 500},
    ),
    "compatibility-mapping": Case(
        "field-not-text",
        with_fields("compatibility:\n  python: '>=3.11'\n  network: yes\n  system:\n    - Linux\n    - macOS\n"),
        ("`compatibility`", "Write it as one text"),
        {"compatibility": "python: >=3.11, network: yes, system: Linux, macOS"},
    ),
    "license-list": Case(
        "field-not-text", with_fields("license:\n- MIT\n- Zlib\n"), ("`license`",), {"license": "MIT, Zlib"}
    ),
    "description-list": Case(
        "field-not-text",
        framed("name: demo\ndescription: [One, two: three]\n"),
        ("`description`",),
        {"description": "One, (two: three)"},
    ),
    "name-list": Case("field-not-text", framed("name: [demo]\ndescription: Does it.\n"), ("`name`",)),
    "tools-in-a-list-in-a-list": Case(
        "field-not-text",
        with_fields("allowed-tools:\n  - Read\n  - [Bash, Edit]\n"),
        ("`allowed-tools`",),
        {"allowed_tools": ["Read", "Bash, Edit"]},
    ),
    "metadata-text": Case(
        "metadata-not-mapping", with_fields("metadata: 1.0\n"), ("ignored", "one `key: value` per line below")
    ),
    "metadata-list": Case("metadata-not-mapping", with_fields("metadata:\n  - a: b\n"), ("was ignored",)),
    "metadata-nested": Case(
        "metadata-value-not-text",
        with_fields("metadata:\n  author:\n    name: Ada\n    mail: a@b.c\n  tags: [a, b]\n  plain: x\n"),
        ("`author`, `tags`", "Write each as one text"),
        {"metadata": {"author": "name: Ada, mail: a@b.c", "tags": "a, b", "plain": "x"}},
    ),
    "tools-mapping": Case(
        "allowed-tools-invalid",
        with_fields("allowed-tools:\n  a: b\n"),
        ("ignored", "Write tool names with spaces between them"),
    ),
}
"""Each a warning: the skill is used all the same."""

STRICT = {
    "byte-order-mark": Case("byte-order-mark", "\ufeff" + DEMO, ("Save it as UTF-8 without BOM",)),
    "byte-order-mark-in-bytes": Case("byte-order-mark", codecs.BOM_UTF8 + DEMO.encode(), ("without BOM",)),
    "tab-behind-opening-fence": Case("tab-in-frontmatter", DEMO.replace("---\n", "---\t\n", 1), ("Use spaces",)),
    "tab-behind-closing-fence": Case("tab-in-frontmatter", f"---\n{REQUIRED}---\t", ("after a `---`",)),
    "tab-behind-colon": Case("tab-in-frontmatter", DEMO.replace("name: ", "name:\t"), ("Use spaces",)),
    "flow-list": Case("flow-style", with_fields("allowed-tools: [Read]\n"), ("`[...]`", "`{...}`", "quote the value")),
    "flow-mapping": Case(
        "flow-style", with_fields("metadata: {a: b}\n"), ("one item per line",), {"metadata": {"a": "b"}}
    ),
    "dashes-in-value": Case("dashes-in-frontmatter", DEMO.replace("Does it.", "a --- b"), ("`---`", "Remove it")),
    "dashes-in-comment": Case("dashes-in-frontmatter", framed(f"# ----\n{REQUIRED}"), ("take for its end",)),
    "further-key": Case(
        "unknown-field", with_fields("version: 1\ntags: x\n"), ("`version`, `tags`", "below `metadata:`")
    ),
    "comment-behind-key": Case(
        "comment-misplaced", with_fields("license: # c\n  MIT\n"), ("above the key",), {"license": "MIT"}
    ),
    "comment-touches-block": Case("comment-misplaced", with_fields("license: |# c\n  MIT\n"), ("touches `|`",)),
    "line-separator": Case("line-separator", with_fields('license: "a\u2028b"\n'), ("Remove it",)),
    "paragraph-separator": Case("line-separator", framed(f"# a\u2029# b\n{REQUIRED}"), ("paragraph separator",)),
    "long-description-by-blanks": Case(
        "description-too-long", framed(f'name: demo\ndescription: "Does it.{" " * 1024}"\n'), ("1032", "Shorten it")
    ),
    "long-compatibility-by-blanks": Case(
        "compatibility-too-long", with_fields(f'compatibility: "x{" " * 500}"\n'), ("501", "Shorten it")
    ),
}
"""Each read without a word, and an error to the strict reading."""


def cases(table: dict[str, Case]) -> pytest.MarkDecorator:
    """Run a test for every case of a table, by the case's name."""
    return pytest.mark.parametrize("case", table.values(), ids=table)


def check_once(problems: list[SkillProblem], case: Case, severity: str) -> None:
    found = [problem for problem in problems if problem["code"] == case.code]
    assert len(found) == 1
    assert found[0]["path"] == case.path
    assert found[0]["severity"] == severity
    for word in case.words:
        assert word in found[0]["message"]


@cases(REFUSALS)
def test_refusals_are_one_error_and_no_metadata(case: Case) -> None:
    """What protects the agent is refused: one error that says what to do, and no metadata."""
    reading = read_skill(case.content, path=case.path)
    assert reading.metadata is None
    assert codes(reading.problems) == [*case.also, case.code]
    check_once(reading.problems, case, "error")


@cases(SLIPS)
def test_slips_are_one_warning_and_the_skill_is_used(case: Case) -> None:
    """An author's slip is one warning that says what to do, and the skill is read as it was meant."""
    reading = read_skill(case.content, path=case.path)
    assert reading.metadata == expected(**case.fields)
    assert sorted(codes(reading.problems)) == sorted([*case.also, case.code])
    check_once(reading.problems, case, "warning")


@cases(STRICT)
def test_strict_reading_alone_refuses(case: Case) -> None:
    """What only other readers refuse is read without a word, and is one error to `validate_skill`."""
    reading = read_skill(case.content, path=case.path)
    assert reading.metadata is not None
    assert reading.problems == []
    found = validate_skill(case.content, path=case.path)
    assert codes(found) == [case.code]
    check_once(found, case, "error")


@cases(REFUSALS | SLIPS)
def test_validation_reports_every_problem_as_an_error(case: Case) -> None:
    """What tolerance let pass is an error to `validate_skill`, in the same words, once."""
    found = validate_skill(case.content, path=case.path)
    check_once(found, case, "error")
    tolerated = read_skill(case.content, path=case.path).problems
    assert [problem["message"] for problem in tolerated] == [problem["message"] for problem in found][: len(tolerated)]
    assert {problem["severity"] for problem in found} == {"error"}


def test_a_heading_glued_to_the_fence_starts_a_whole_body() -> None:
    """The body starts with the heading, and a later rule in it is not taken for the fence."""
    body = "# Title\n\nText.\n\n---\n\nMore: text.\n"
    for fields in ("", "license: a: b\n", 'compatibility: "unclosed\n', "metadata:\n  a: b\n"):
        for glue in ("---", "--- ", "---\t"):
            text = f"---\nname: demo\ndescription: Does it.\n{fields}{glue}{body}"
            reading = read_skill(text, path=PATH)
            assert reading.metadata is not None
            assert reading.metadata["description"] == "Does it."
            assert reading.body == body
            assert "fence-glued" in codes(reading.problems)
            assert not {"More", "Text."} & reading.frontmatter.keys()


def test_dashes_inside_a_value_are_not_a_fence() -> None:
    """A line that looks like a fence with a heading, inside a value in quotes or indented, is part of the value."""
    for value in ('"a\n---# b\nc"', "'a\n---# b\n\nc'", "|\n  a\n  ---# b\n  c", ">-\n  a\n  ---# b"):
        text = f"---\nname: demo\ndescription: {value}\nlicense: MIT\n---\nBody.\n"
        reading = read_skill(text, path=PATH)
        assert reading.metadata is not None
        assert "---# b" in reading.metadata["description"]
        assert reading.metadata["license"] == "MIT"
        assert reading.body == "Body.\n"
        assert codes(reading.problems) == []


def test_a_quote_that_is_never_closed_goes() -> None:
    """The stray quote at the start of a value is not part of it; quotes that are closed stay."""
    table = {
        '"Does it.': "Does it.",
        "'Does it.": "Does it.",
        "'It's what people's tools do.": "It's what people's tools do.",
        '"Say "hi" to them.': 'Say "hi" to them.',
        '"Do" and: "say": so': '"Do" and: "say": so',
        '"': '"',
        '"Does it: here"': "Does it: here",
    }
    found = {}
    for value in table:
        reading = read_skill(f"---\nname: demo\ndescription: {value}\nlicense: MIT\n---\n", path=PATH)
        assert reading.metadata is not None
        assert reading.metadata["license"] == "MIT"
        found[value] = reading.metadata["description"]
    assert found == table


def test_every_problem_code_has_a_case() -> None:
    """No code is documented without a file that provokes it, and none is provoked that is not documented."""
    covered = {case.code for table in (REFUSALS, SLIPS, STRICT) for case in table.values()}
    assert covered | COVERED_ELSEWHERE == SEVERITIES.keys()


def test_severity_follows_from_use() -> None:
    """Each severity is the documented one: refusals are errors, slips warnings, others strict."""
    slips = {case.code for case in SLIPS.values()}
    assert {SEVERITIES[code] for code in slips} == {"warning"}
    assert {SEVERITIES[case.code] for case in REFUSALS.values()} == {"error"}
    assert {SEVERITIES[code] for code in {case.code for case in STRICT.values()} - slips} == {"strict"}


NFC = unicodedata.normalize("NFC", "café")
NFD = unicodedata.normalize("NFD", "café")


@pytest.mark.parametrize(
    ("given", "directory", "name", "found"),
    [
        pytest.param("demo", "demo", "demo", [], id="plain"),
        pytest.param("a1-b2-3", "a1-b2-3", "a1-b2-3", [], id="digits-and-hyphens"),
        pytest.param("周报", "周报", "周报", [], id="chinese"),
        pytest.param("отчёт-٣", "отчёт-٣", "отчёт-٣", [], id="cyrillic-and-arabic-digit"),
        pytest.param(NFC, NFC, NFC, [], id="accent"),
        pytest.param(NFC, NFD, NFC, [], id="directory-composes-accents-differently"),
        pytest.param("n" * 64, "n" * 64, "n" * 64, [], id="64-characters"),
        pytest.param("demo", "", "demo", [], id="no-directory"),
        pytest.param("010", "010", "010", [], id="a-number"),
        pytest.param("Demo", "demo", "Demo", ["name-invalid", "name-directory-mismatch"], id="uppercase"),
        pytest.param("ÉTUDE", "ÉTUDE", "ÉTUDE", ["name-invalid"], id="uppercase-accent"),
        pytest.param("𝐀bc", "𝐀bc", "𝐀bc", ["name-invalid"], id="uppercase-in-disguise"),
        pytest.param("my skill", "my skill", "my skill", ["name-invalid"], id="space"),
        pytest.param("my_skill", "my_skill", "my_skill", ["name-invalid"], id="underscore"),
        pytest.param("a--b", "a--b", "a--b", ["name-invalid"], id="double-hyphen"),
        pytest.param("-a", "-a", "-a", ["name-invalid"], id="leading-hyphen"),
        pytest.param("a-", "a-", "a-", ["name-invalid"], id="trailing-hyphen"),
        pytest.param("½", "½", "½", ["name-invalid"], id="a-number-that-is-no-digit"),
        pytest.param("a/b", "b", "a/b", ["name-invalid", "name-directory-mismatch"], id="slash"),
        pytest.param("demo", "other", "demo", ["name-directory-mismatch"], id="other-directory"),
        pytest.param('" demo "', "demo", "demo", [], id="blanks-around"),
        pytest.param('"a\\n  b"', "a b", "a b", ["name-invalid"], id="two-lines"),
        pytest.param('"a\\u2028b"', "a b", "a b", ["name-invalid"], id="line-separator"),
        pytest.param("n" * 65, "n" * 65, "n" * 65, ["name-too-long"], id="65-characters"),
        pytest.param("ﬃ" * 22, "ﬃ" * 22, "ﬃ" * 22, ["name-too-long"], id="66-characters-once-normalized"),
        pytest.param("n" * 128, "n" * 128, "n" * 128, ["name-too-long"], id="128-characters"),
        pytest.param("n" * 129, "n" * 129, "n" * 128, ["name-too-long"], id="129-characters-are-cut"),
        pytest.param("~", "demo", "demo", ["name-missing"], id="null"),
        pytest.param("", "my skill", "my skill", ["name-missing"], id="missing"),
        pytest.param("", "d" * 200, "d" * 128, ["name-missing"], id="missing-in-long-directory"),
        pytest.param("", "a\x1b\u202eb\n c", "ab c", ["name-missing"], id="missing-in-hostile-directory"),
        pytest.param("", "", "unnamed-skill", ["name-missing"], id="missing-without-directory"),
    ],
)
def test_names(given: str, directory: str, name: str, found: list[str]) -> None:
    """A skill is loaded under the name given, each broken rule a warning of its own."""
    path = f"/skills/{directory}/SKILL.md" if directory else "SKILL.md"
    reading = read_skill(framed(f"name: {given}\ndescription: Does it.\n"), path=path)
    assert reading.metadata is not None
    assert reading.metadata["name"] == name
    assert codes(reading.problems) == found


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        pytest.param("license: a: b: c\n", {"license": "a: b: c"}, id="colon"),
        pytest.param("license: @me\n", {"license": "@me"}, id="at-sign"),
        pytest.param("license: `MIT` or so\n", {"license": "`MIT` or so"}, id="backtick"),
        pytest.param("license: **MIT** or so\n", {"license": "**MIT** or so"}, id="bold"),
        pytest.param("license: %MIT\n", {"license": "%MIT"}, id="percent"),
        pytest.param("license: [a] b\n", {"license": "[a] b"}, id="text-behind-flow-list"),
        pytest.param("license: {a} b\n", {"license": "{a} b"}, id="text-behind-flow-mapping"),
        pytest.param("license: [a, b\n", {"license": "[a, b"}, id="unclosed-flow-list"),
        pytest.param('license: "a" b\n', {"license": '"a" b'}, id="text-behind-quotes"),
        pytest.param('license: "a\n', {"license": "a"}, id="unclosed-double-quote"),
        pytest.param("license: 'a\n", {"license": "a"}, id="unclosed-single-quote"),
        pytest.param("license: 'it's'\n", {"license": "it's"}, id="quote-inside-quotes"),
        pytest.param("license: - a\n", {"license": "- a"}, id="list-behind-key"),
        pytest.param('license: "C:\\Users"\n', {"license": "C:\\Users"}, id="backslash"),
        pytest.param("license: one\ntwo\n\nthree\n", {"license": "one two  three"}, id="lines-not-indented"),
        pytest.param("license: one\n\ttwo\n", {"license": "one two"}, id="tab-indented-text"),
        pytest.param(
            "license: one\n\tx: 1.10\ny: z\n", {"license": "one", "x": "1.10", "y": "z"}, id="tab-before-a-key"
        ),
        pytest.param("license: 'one'\n\tx: [a, b]\n", {"license": "one", "x": ["a", "b"]}, id="tab-behind-quotes"),
        pytest.param("license: [a]\n\tx: |\n\t  b\n", {"license": ["a"], "x": "b"}, id="tab-behind-flow"),
        pytest.param('license: "one\n\tx: b"\ny: c: d\n', {"license": "one x: b", "y": "c: d"}, id="tab-inside-quotes"),
        pytest.param("license: |\n\tx: b\n", {"license": "x: b"}, id="tab-and-key-inside-a-block"),
        pytest.param(
            "metadata:\n  a: b\n  \tc: d\n\te: f\n", {"metadata": {"a": "b", "c": "d", "e": "f"}}, id="tab-in-metadata"
        ),
        pytest.param("license: |\n\tone\n\ttwo\n", {"license": "one\ntwo"}, id="tab-indented-literal-block"),
        pytest.param("license: >-\none\ntwo\n", {"license": "one two"}, id="folded-block-not-indented"),
        pytest.param("metadata:\n\ta: b\n\tc: d\n", {"metadata": {"a": "b", "c": "d"}}, id="tab-indented-mapping"),
        pytest.param("allowed-tools:\n\t- A\n\t- B\n", {"allowed-tools": ["A", "B"]}, id="tab-indented-list"),
        pytest.param(
            "metadata:\n  a: b: c\n  d: 1.0\n  e: @f\n  g:\n    - h\n",
            {"metadata": {"a": "b: c", "d": "1.0", "e": "@f", "g": ["h"]}},
            id="values-in-metadata",
        ),
        pytest.param(
            "license: a: b\nallowed-tools:\n- A\n- B\nx: {y: z}\n",
            {"license": "a: b", "allowed-tools": ["A", "B"], "x": {"y": "z"}},
            id="values-below-stay-what-they-are",
        ),
        pytest.param(
            "license: a: b\nx: ~\ny:\nz: null\n", {"license": "a: b", "x": None, "y": None, "z": None}, id="nulls"
        ),
        pytest.param("许可: a: b\n'x y': c\n", {"许可": "a: b", "x y": "c"}, id="keys-of-any-script"),
        pytest.param("x/y: 1\nlicense: a: b\n", {"x/y": "1", "license": "a: b"}, id="key-with-slash"),
        pytest.param("$schema: u\nlicense: a: b\n", {"$schema": "u", "license": "a: b"}, id="key-with-dollar"),
        pytest.param(
            "one two three four: 5\nlicense: a: b\n",
            {"one two three four": "5", "license": "a: b"},
            id="key-of-four-words",
        ),
        pytest.param("'a: b': c\nlicense: a: b\n", {"a: b": "c", "license": "a: b"}, id="key-with-colon"),
        pytest.param("? x\n: y\nlicense: a: b\n", {"x": "y", "license": "a: b"}, id="explicit-key"),
    ],
)
def test_a_broken_value_costs_only_itself(fields: str, read: dict[str, object]) -> None:
    """A value that YAML refuses becomes the text that stands there; every other key is read as ever."""
    reading = read_skill(with_fields(fields), path=PATH)
    assert reading.frontmatter == {"name": "demo", "description": "Does it.", **read}
    assert codes(reading.problems)[0] == "yaml-repaired"
    assert {problem["severity"] for problem in reading.problems} == {"warning"}


def test_many_broken_values_cost_only_themselves() -> None:
    """However many values are broken, a null among them is still missing and the rest is still read."""
    broken = "".join(f"k{i}: a: b\n" for i in range(300))
    fields = "license: ~\ncompatibility:\nmetadata:\n  a: ~\n  b: c\nallowed-tools: 'Read'\n"
    reading = read_skill(with_fields(broken + fields), path=PATH)
    assert reading.metadata == expected(metadata={"b": "c"}, allowed_tools=["Read"])
    assert codes(reading.problems) == ["yaml-repaired"]
    assert reading.frontmatter["k299"] == "a: b"


def test_repairs_are_named_by_key() -> None:
    """The message names the keys that were repaired, the first few and how many more."""
    (problem,) = read_skill(with_fields("".join(f"k{i}: a: b\n" for i in range(7))), path=PATH).problems
    assert "`k0`, `k1`, `k2`, `k3`, `k4` and 2 more" in problem["message"]


@pytest.mark.parametrize(
    ("content", "body"),
    [
        pytest.param(framed(REQUIRED, ""), "", id="nothing"),
        pytest.param(f"---\n{REQUIRED}---", "", id="closing-fence-ends-file"),
        pytest.param(framed(REQUIRED, "\n\n  text  "), "\n\n  text  ", id="blanks-and-no-last-newline"),
        pytest.param(framed(REQUIRED, "a\n---\nb: c\n---\n"), "a\n---\nb: c\n---\n", id="fences"),
        pytest.param(framed(REQUIRED, "---\n"), "---\n", id="fence-at-once"),
        pytest.param(framed(REQUIRED, "a\r\nb\rc\n").encode(), "a\r\nb\rc\n", id="mixed-line-ends"),
        pytest.param(framed(REQUIRED).replace("\n", "\r\n"), "Body.\r\n", id="crlf"),
        pytest.param(framed(REQUIRED).replace("\n", "\r"), "Body.\r", id="cr"),
        pytest.param(f"---\n{REQUIRED}--- \t\r\n\r\nb", "\r\nb", id="one-line-end-after-the-fence"),
        pytest.param(framed(REQUIRED, "\0\u202e\ufeff\x1b"), "\0\u202e\ufeff\x1b", id="control-characters"),
        pytest.param(f"---\n{REQUIRED}---\0\n\0b", "\0b", id="stray-character-behind-the-fence"),
        pytest.param(framed(REQUIRED, "周报\n").encode("utf-16"), "周报\n", id="utf-16"),
        pytest.param(sized(1000, "---" + " " * 80_000 + "\n b"), " b", id="many-blanks-after-fence"),
        pytest.param(framed("- a\n", "b"), "b", id="frontmatter-refused"),
        pytest.param(framed("name: demo\n", "b"), "b", id="no-description"),
    ],
)
def test_body_is_unchanged(content: bytes | str, body: str) -> None:
    """The body is all after the closing fence's line, to the letter."""
    assert read_skill(content, path=PATH).body == body


@pytest.mark.parametrize("size", range(64 * KIB - 6, 64 * KIB + 3))
def test_a_line_that_starts_with_dashes_is_no_fence(size: int) -> None:
    """A line `---x` never closes the frontmatter, wherever it stands."""
    reading = read_skill(sized(size, "---x\nmore: y\n---\nBody.\n"), path=PATH)
    assert codes(reading.problems) == ["frontmatter-too-large"]
    assert reading.metadata is None


def test_frontmatter_holds_every_key_as_read() -> None:
    """Every key is kept, known or not: text as text, nothing as `None`, lists and mappings as such."""
    fields = "license: ~\nx-list: [1, ~, 'a']\nx-map:\n  a:\n    b: 2025-01-01\n7: yes\nallowed-tools: A, B\n"
    assert read_skill(with_fields(fields), path=PATH).frontmatter == {
        "name": "demo",
        "description": "Does it.",
        "license": None,
        "x-list": ["1", None, "a"],
        "x-map": {"a": {"b": "2025-01-01"}},
        "7": "yes",
        "allowed-tools": "A, B",
    }


def test_frontmatter_is_kept_when_the_description_is_missing() -> None:
    """A skill without a description has no metadata; its frontmatter and body are there all the same."""
    reading = read_skill(framed("name: demo\nlicense: MIT\n"), path=PATH)
    assert reading.frontmatter == {"name": "demo", "license": "MIT"}
    assert reading.body == "Body.\n"


def test_long_values_are_kept_in_frontmatter() -> None:
    """Cuts are made in the metadata; the frontmatter holds what was written."""
    reading = read_skill(DEMO.replace("Does it.", "d" * 2000), path=PATH)
    assert reading.frontmatter["description"] == "d" * 2000


@cases({name: case for name, case in REFUSALS.items() if isinstance(case.content, str)})
def test_parse_raises_on_each_refusal_but_a_missing_description(case: Case) -> None:
    """`parse_skill_md` raises where no frontmatter can be read, and not where only the description is missing."""
    assert isinstance(case.content, str)
    if case.code == "description-missing":
        reading = read_skill(case.content, path=PATH)
        assert parse_skill_md(case.content) == (reading.frontmatter, reading.body)
        return
    with pytest.raises(SkillFormatError) as raised:
        parse_skill_md(case.content)
    for word in case.words:
        assert word in str(raised.value)


@cases({name: case for name, case in (SLIPS | STRICT).items() if isinstance(case.content, str)})
def test_parse_is_as_tolerant_as_reading(case: Case) -> None:
    """`parse_skill_md` gives the frontmatter and body that `read_skill` gives, slips and all."""
    assert isinstance(case.content, str)
    reading = read_skill(case.content, path=case.path)
    assert parse_skill_md(case.content) == (reading.frontmatter, reading.body)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(DEMO, id="required-fields"),
        pytest.param(DEMO.replace("\n", "\r\n").encode(), id="crlf"),
        pytest.param(f"---  \n{REQUIRED}--- ", id="spaces-after-fences"),
        pytest.param(
            with_fields(
                "license: MIT\ncompatibility: Needs network.\nmetadata:\n  version: 1.10\n  author: 'A: B'\n"
                "allowed-tools: Bash(git add:*) Read\n"
            ),
            id="every-field",
        ),
        pytest.param(DEMO.replace("Does it.", "d" * 1024), id="description-of-1024"),
        pytest.param(framed(REQUIRED, "[a]\t---\n\u2028\ufeff"), id="anything-in-the-body"),
    ],
)
def test_a_clean_file_passes_validation(content: bytes | str) -> None:
    """A file that keeps the specification has no problem."""
    assert validate_skill(content, path=PATH) == []


def test_several_problems_are_all_reported() -> None:
    """One slip does not hide another, and validation adds its own findings to those of reading."""
    content = "\ufeff\n" + framed("name: My Skill\ndescription: a: b\nextra:\t[1] x\nlicense: M\0IT\n")
    assert codes(validate_skill(content, path=PATH)) == [
        "text-before-frontmatter",
        "yaml-repaired",
        "control-characters",
        "name-invalid",
        "name-directory-mismatch",
        "byte-order-mark",
        "tab-in-frontmatter",
        "unknown-field",
    ]

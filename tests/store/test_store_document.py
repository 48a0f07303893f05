"""A skill in and out: the same bytes, and text for people."""

from typing import Any

import pytest
from store_support import BINARY, Sessions, draft, draft_with_files, on_postgres, on_sqlite, service_on

from deepskills import SkillFileNotFoundError, SkillFormatError, SkillNotFoundError, read_skill, validate_skill
from deepskills.store import Skill, SkillCreate, SkillFile, SkillFileCreate, SkillFormatter, SkillUpdate
from deepskills.store.document import Document

pytestmark = pytest.mark.anyio

PLAIN = "---\nname: report\ndescription: Writes reports.\n---\n# Report\n\nDo it.\n"
WRITTEN = (
    "---\n"
    "# a comment\n"
    "name:   report\n"
    "description: 'Writes: reports'\n"
    "license: MIT\n"
    "metadata:\n  version: 1.10\n  tags: sales, Weekly numbers\n"
    "custom: [a,  b]\n"
    "---  \n"
    "\n# Report\r\nwith CRLF\n"
)
FILES: dict[str, bytes | str] = {
    "scripts/run.py": "print('hi')\n",
    "references/deep/guide.md": "# Guide\r\n```\ncode\n```\n",
    "assets/logo.png": BINARY,
    "assets/empty": b"",
    "assets/nul.txt": b"text with \x00 in it",
    "assets/bom.txt": b"\xef\xbb\xbfx",
    "assets/模板.md": "模板\n",
    "LICENSE": "MIT",
}
IN_BYTES = {path: data.encode() if isinstance(data, str) else data for path, data in FILES.items()}


WAYS_TO_WRITE = {
    "plain": PLAIN.encode(),
    "written": WRITTEN.encode(),
    "bom": b"\xef\xbb\xbf" + PLAIN.encode(),
    "crlf": PLAIN.replace("\n", "\r\n").encode(),
    "comment": b"\n<!-- made by hand -->\n" + PLAIN.encode(),
    "utf-16-le": PLAIN.encode("utf-16"),
    "utf-16-be": b"\xfe\xff" + PLAIN.encode("utf-16-be"),
    "fence": f"```markdown\n{PLAIN}```\n".encode(),
    "odd-fence": f"\ufeff\n~~~~ md\r\n{PLAIN}~~~~~ \n\n".encode(),
    "fence-no-body": b"```\n---\nname: report\ndescription: x\n---\n```",
    "no-body": b"---\nname: report\ndescription: x\n---",
    "chinese": "---\nname: 周报\ndescription: 写周报。\n---\n# 周报\n🎉\n".encode(),
}


async def test_the_same_bytes(sessions: Sessions) -> None:
    """A `SKILL.md` as its author wrote it, and files of every kind, come out byte for byte."""
    async with service_on(sessions) as service:
        for way, content in WAYS_TO_WRITE.items():
            made = await service.create_skill(SkillCreate.from_skill_md(content, FILES), way)
            assert await service.export_skill(made.id, way) == {"SKILL.md": content, **IN_BYTES}, way
            got = await service.get_skill(made.id, way)
            assert got.content == read_skill(content, path="SKILL.md").body, way
            assert {file.path: isinstance(file.content, str) for file in got.files} == {
                path: path not in {"assets/logo.png", "assets/nul.txt"} for path in FILES
            }, way


async def test_a_file_in_a_fence_is_changed(sessions: Sessions) -> None:
    """Whoever changes the text or a value of a file inside a Markdown fence gets one without the fence."""
    async with service_on(sessions) as service:
        for number, change in enumerate((SkillUpdate(content="new"), SkillUpdate(description="Other."))):
            made = await service.create_skill(SkillCreate.from_skill_md(WAYS_TO_WRITE["fence"]), str(number))
            assert made.content == "# Report\n\nDo it.\n"
            changed = await service.update_skill(made.id, change, str(number))
            text = (await service.export_skill(made.id, str(number)))["SKILL.md"]
            reading = read_skill(text, path="report/SKILL.md")
            assert (reading.body, reading.problems) == (changed.content, [])
            assert b"`" not in text
            former = await service.get_version(made.id, made.revision, str(number))
            assert former.content == made.content
            back = await service.restore_version(made.id, made.revision, str(number))
            assert (await service.export_skill(back.id, str(number)))["SKILL.md"] == WAYS_TO_WRITE["fence"]


async def test_text_of_a_skill_md(sessions: Sessions) -> None:
    """Text does as well as bytes; values and tags are read from it."""
    data = SkillCreate.from_skill_md(WRITTEN)
    assert (data.name, data.description, data.tags) == ("report", "Writes: reports", ["sales", "Weekly numbers"])
    async with service_on(sessions) as service:
        made = await service.create_skill(data, "alice")
        assert (await service.export_skill(made.id, "alice"))["SKILL.md"] == WRITTEN.encode()
        assert [s.name for s in await service.list_skills("alice", tags=["weekly NUMBERS"])] == ["report"]


@pytest.mark.parametrize(
    "tags", ["tags: [a, b]", "tags: a b", "tags:\n  - a\n  - b", "tags: a, b", "metadata:\n  tags: a,b"]
)
async def test_tags_of_a_file(tags: str) -> None:
    """Tags are found at the top level and below metadata, as text and as a list."""
    assert SkillCreate.from_skill_md(f"---\nname: x\ndescription: y\n{tags}\n---\n").tags == ["a", "b"]


async def test_tags_of_a_list_are_kept_as_written(sessions: Sessions) -> None:
    """Spaces and commas are part of a tag in a list, in the store, in its versions and in the file that it writes."""
    text = "---\nname: x\ndescription: y\ntags: [a b, 'c,d', e]\n---\n"
    tags = ["a b", "c,d", "e"]
    assert SkillCreate.from_skill_md(text).tags == tags
    async with service_on(sessions) as service:
        made = await service.create_skill(SkillCreate.from_skill_md(text), "alice")
        for given in (["one two"], ["x"], ["one, two"]):
            other = await service.create_skill(draft(f"n{len(given[0])}", tags=given), "alice")
            exported = (await service.export_skill(other.id, "alice"))["SKILL.md"]
            assert SkillCreate.from_skill_md(exported).tags == given, exported
        await service.update_skill(made.id, SkillUpdate(tags=["z"]), "alice")
        assert (await service.get_version(made.id, made.revision, "alice")).tags == tags
        restored = await service.restore_version(made.id, made.revision, "alice")
        assert (restored.tags, restored.frontmatter) == (tags, text)
        assert [skill.name for skill in await service.list_skills("alice", tags=["C,D"])] == ["x"]


async def test_no_tag_is_left_out_without_a_word() -> None:
    """A tag of a file that cannot be kept is an error that names it, in a list and in one text."""
    long = "t" * 65
    for tags, told in (
        (f"[ok, {long}]", "cannot be kept"), (f"ok, {long}", "cannot be kept"), (f"ok {long}", "cannot be kept"),
        (str(list(range(51))), "51 tags; at most 50"), ('["a\\nb"]', "on one line"),
    ):  # fmt: skip
        with pytest.raises(SkillFormatError, match=told):
            SkillCreate.from_skill_md(f"---\nname: x\ndescription: y\ntags: {tags}\n---\n")
    # What an earlier release stored stays usable: its other values can be changed.
    stored = Document("x", "y", "", ["ok"], f"---\nname: x\ndescription: y\ntags: [ok, {long}]\n---\n")
    changed = SkillUpdate(description="z").apply(stored).check()
    assert changed.frontmatter == f"---\nname: x\ndescription: z\ntags: [ok, {long}]\n---\n"
    empty = "---\nname: x\ndescription: y\ntags: ['', a, a, ' ']\n---\n"
    assert SkillCreate.from_skill_md(empty).tags == ["a"]


@on_postgres
async def test_generated_file(sessions: Sessions) -> None:
    """A skill that was given by its values becomes a valid file, its tags below metadata."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft("report", tags=["sales", "weekly"], content="# Body\n"), "alice")
        content = (await service.export_skill(made.id, "alice"))["SKILL.md"]
    assert validate_skill(content, path="report/SKILL.md") == []
    reading = read_skill(content, path="report/SKILL.md")
    assert reading.metadata is not None
    assert reading.metadata["metadata"] == {"tags": "sales, weekly"}
    assert reading.body == "# Body\n"
    assert SkillCreate.from_skill_md(content).tags == ["sales", "weekly"]


async def test_read_one_file(sessions: Sessions) -> None:
    """One file is read by its path, by those who may see the skill."""
    async with service_on(sessions) as service:
        made = await service.create_skill(SkillCreate.from_skill_md(PLAIN, FILES), "alice")
        for path, content in IN_BYTES.items():
            assert await service.read_file(made.id, path, "alice") == content
        for path in ("SKILL.md", "assets", "nothing", "a\x00"):
            with pytest.raises(SkillFileNotFoundError):
                await service.read_file(made.id, path, "alice")
        with pytest.raises(SkillNotFoundError):
            await service.read_file(made.id, "LICENSE", "bob")


@on_sqlite
async def test_a_generated_file_is_utf_8(sessions: Sessions) -> None:
    """Without frontmatter as written there is nothing whose encoding had to be kept."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft("report", encoding="utf-16-le"), "alice")
        assert read_skill((await service.export_skill(made.id, "alice"))["SKILL.md"], path="report/SKILL.md").metadata
        with pytest.raises(SkillFormatError):
            await service.create_skill(draft("x", encoding="utf-16-le", frontmatter=PLAIN[:46]), "alice")


@on_sqlite
async def test_an_update_of_the_body_keeps_the_frontmatter(sessions: Sessions) -> None:
    """New instructions leave the frontmatter as its author wrote it."""
    async with service_on(sessions) as service:
        made = await service.create_skill(SkillCreate.from_skill_md(WRITTEN), "alice")
        await service.update_skill(made.id, SkillUpdate(content="New.\n", is_public=True), "alice")
        exported = (await service.export_skill(made.id))["SKILL.md"].decode()
    assert exported == WRITTEN[: WRITTEN.index("\n# Report")] + "New.\n"


@on_sqlite
async def test_an_update_of_values_changes_their_lines_alone(sessions: Sessions) -> None:
    """A new name, description or new tags change the lines of those keys; the rest stays as its author wrote it."""
    async with service_on(sessions) as service:
        made = await service.create_skill(SkillCreate.from_skill_md(WRITTEN), "alice")
        await service.update_skill(made.id, SkillUpdate(name="summary", tags=["x"]), "alice")
        content = (await service.export_skill(made.id, "alice"))["SKILL.md"].decode()
    assert content == WRITTEN.replace("name:   report", "name: summary").replace("sales, Weekly numbers", "x")


@pytest.mark.parametrize(
    ("keys", "changes", "expected"),
    [
        ("on: true\n# why\nv: 1.0", {"description": "N: #1"}, 'description: "N: #1"\non: true\n# why\nv: 1.0'),
        ("on: true", {"tags": ["a", "b"]}, "description: old\non: true\nmetadata:\n  tags: a, b"),
        ("tags:\n- a\n- b\non: yes", {"tags": ["c d"]}, "description: old\ntags:\n  - c d\non: yes"),
        ("tags: [a]\non: yes", {"tags": ["c, d", "e"]}, "description: old\ntags:\n  - c, d\n  - e\non: yes"),
        ("metadata:\n    n: 3\n    tags: a", {"tags": []}, "description: old\nmetadata:\n    n: 3"),
        ("metadata:\n  tags:\n    - a\n\non: 1", {"tags": []}, "description: old\n\non: 1"),
        ("metadata:\n  n: 0x1F", {"tags": ["a"]}, "description: old\nmetadata:\n  n: 0x1F\n  tags: a"),
        ("on: true", {"name": "z"}, "description: old\non: true"),
        ("tags: >-\n  a,\n\n  # b\n# why\non: 1", {"tags": ["c"]}, "description: old\ntags: c\n# why\non: 1"),
    ],
)
async def test_what_is_not_changed_stays_as_written(keys: str, changes: dict[str, Any], expected: str) -> None:
    """Flags, numbers, comments and order beside a changed key keep their spelling, and so do line ends and fences."""
    for text in (
        f"---\nname: y\ndescription: old\n{keys}\n---\nBody\n",
        f"\ufeff---\nname: y\ndescription: old\n{keys}\n---",
    ):
        for line_end in ("\n", "\r\n"):
            document = Document.read(text.replace("\n", line_end))
            changed = SkillUpdate(**changes).apply(document).check()
            wanted = text.replace("name: y", f"name: {changes.get('name', 'y')}")
            wanted = wanted.replace(f"description: old\n{keys}", expected).replace("\n", line_end)
            assert changed.render().decode() == wanted


async def test_frontmatter_in_braces_is_written_again() -> None:
    """Where a key has no lines of its own, the frontmatter is written from its values, and says the same."""
    document = Document.read("---\n{name: y, description: old, on: true, metadata: {tags: a, n: 3}}\n---\nBody\n")
    changed = SkillUpdate(description="new", tags=["a,b"]).apply(document).check()
    reading = read_skill(changed.render(), path="y/SKILL.md")
    expected = {"name": "y", "description": "new", "on": "true", "tags": ["a,b"], "metadata": {"n": "3"}}
    assert (reading.frontmatter, reading.body) == (expected, "Body\n")


@on_sqlite
async def test_an_update_of_the_frontmatter(sessions: Sessions) -> None:
    """New frontmatter brings its values along; `None` leaves it as it is, beside other changes too."""
    async with service_on(sessions) as service:
        made = await service.create_skill(SkillCreate.from_skill_md(PLAIN.encode("utf-16")), "alice")
        head = "---\nname: summary\ndescription: Sums up.\nmetadata:\n  tags: a\n---\n"
        changed = await service.update_skill(made.id, SkillUpdate(frontmatter=head), "alice")
        assert (changed.name, changed.description, changed.tags) == ("summary", "Sums up.", ["a"])
        assert (await service.export_skill(made.id, "alice"))["SKILL.md"] == (head + "# Report\n\nDo it.\n").encode()
        same = await service.update_skill(made.id, SkillUpdate(frontmatter=None, content="# New\n"), "alice")
        assert same.frontmatter == head
        assert (await service.export_skill(made.id, "alice"))["SKILL.md"] == (head + "# New\n").encode()


@pytest.mark.parametrize(
    "content", [b"no frontmatter", b"---\nname: x\n---\n", b"\xff\xfe\x00", b"---\n- a\n---\n", b""]
)
async def test_a_file_that_cannot_be_read(content: bytes) -> None:
    """A `SKILL.md` that the reader refuses is refused with its reason."""
    with pytest.raises(SkillFormatError):
        SkillCreate.from_skill_md(content)


def example() -> Skill:
    return Skill(
        name="report",
        description="Writes\nreports.",
        content="# Report\n\nDo it.\n",
        tags=["sales"],
        owner_id="alice",
        files=[
            SkillFile(path="scripts/run.py", content="print(1)\n"),
            SkillFile(path="references/guide.md", content="````\ncode\n````\n"),
            SkillFile(path="references/deep/more.md", content="more"),
            SkillFile(path="assets/logo.png", content=BINARY),
        ],
    )


def test_format_content() -> None:
    """A skill is formatted with its files; text cannot end its fence, and binary files show their size."""
    text = SkillFormatter().format_skill_content(example())
    assert text == (
        "# report\n\nWrites reports.\n\nTags: sales\n\n# Report\n\nDo it.\n\n## Files\n\n"
        "### `assets/logo.png`\n\n(binary, 256 bytes)\n\n"
        "### `references/deep/more.md`\n\n```\nmore\n```\n\n"
        "### `references/guide.md`\n\n`````\n````\ncode\n````\n`````\n\n"
        "### `scripts/run.py`\n\n```\nprint(1)\n```\n"
    )
    short = SkillFormatter().format_skill_content(example(), include_file_contents=False)
    assert short.endswith(
        "## Files\n\n- `assets/logo.png` (binary, 256 bytes)\n- `references/deep/more.md` (4 bytes)\n"
        "- `references/guide.md` (15 bytes)\n- `scripts/run.py` (9 bytes)\n"
    )


def test_format_list() -> None:
    """A list has one line a skill, whatever its description holds."""
    public = Skill(name="b", description="y", content="", is_public=True, owner_id="bob")
    system = Skill(name="c", description="z", content="")
    assert SkillFormatter().format_skill_list([example(), public, system]) == (
        "- **report** (private): Writes reports. [sales]\n- **b** (public): y\n- **c** (system): z\n"
    )
    assert SkillFormatter().format_skill_list([]) == "No skills.\n"


def test_format_structure() -> None:
    """The structure is a tree, the `SKILL.md` in it."""
    assert SkillFormatter().format_skill_structure(example()) == (
        "report/\n"
        "├── SKILL.md\n"
        "├── assets/\n"
        "│   └── logo.png\n"
        "├── references/\n"
        "│   ├── deep/\n"
        "│   │   └── more.md\n"
        "│   └── guide.md\n"
        "└── scripts/\n"
        "    └── run.py\n"
    )


@on_sqlite
async def test_the_service_formats(sessions: Sessions) -> None:
    """The service formats as the formatter does, also what a listing gave."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft_with_files("report", {"scripts/a.py": "a", "b": "b"}), "alice")
        got = await service.get_skill(made.id, "alice")
        whole = await service.format_skill_content(made.id, "alice")
        assert whole == SkillFormatter().format_skill_content(got)
        assert "```\na\n```" in whole
        assert "```" not in await service.format_skill_content(made.id, "alice", include_file_contents=False)
        assert await service.format_skill_content(got) == SkillFormatter.format_skill_content(got) == whole
        (of_a_listing,) = await service.list_skills("alice")
        assert await service.format_skill_content(of_a_listing, "alice") == whole
        light = await service.get_skill(made.id, "alice", contents=False)
        (listed,) = await service.list_skills("alice")
    assert "### `scripts/a.py`\n\n(1 bytes)" in SkillFormatter().format_skill_content(light)
    assert SkillFormatter.format_skill_content(listed) == "# report\n\nDoes report.\n"
    assert SkillFormatter.format_skill_list([listed]) == SkillFormatter().format_skill_list([listed])
    assert SkillFormatter.format_skill_structure(light) == "report/\n├── SKILL.md\n├── b\n└── scripts/\n    └── a.py\n"


def test_base64() -> None:
    """Bytes travel as base64, and what is no base64 is refused."""
    assert SkillFileCreate(path="a", content="AP8=", encoding="base64").content == b"\x00\xff"
    assert SkillFileCreate(path="a", content="AP8=").content == "AP8="
    assert SkillFileCreate(path="a", content=b"\x00").content == b"\x00"
    data = SkillCreate.from_skill_md(PLAIN, FILES)
    again = SkillCreate.model_validate_json(data.model_dump_json())
    assert {file.path: _bytes(file.content) for file in again.files} == IN_BYTES
    assert SkillCreate.model_validate(data.model_dump()) == data
    for bad in ("*", "A", "é"):
        with pytest.raises(ValueError, match="base64"):
            SkillFileCreate(path="a", content=bad, encoding="base64")


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content

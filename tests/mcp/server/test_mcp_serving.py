"""What a server shows: what its middleware shows, and nothing that it does not list."""

import asyncio
import sys
from pathlib import Path

from test_mcp_server import ROOT, SERVING, ask, client, refused

from deepskills.mcp.entries import json_frontmatter
from support import skill_md, write_files


def test_a_middleware_is_served_as_it_shows_its_skills(tmp_path: Path) -> None:
    """Hidden skills, those for users alone, and files that differ from the lock are neither listed nor read."""
    write_files(
        tmp_path,
        {
            "shown/SKILL.md": skill_md("shown"),
            "hidden/SKILL.md": skill_md("hidden"),
            "users/SKILL.md": skill_md("users", **{"disable-model-invocation": "true"}),
            "refused/SKILL.md": skill_md("refused"),
            "refused/a.md": "A",
        },
    )

    async def main() -> None:
        async with client([sys.executable, SERVING, "middleware", str(tmp_path), "stdio"], newer=True) as session:
            listed = (await ask(session, "skills/list"))["skills"]
            assert [entry["uri"] for entry in listed] == [f"{ROOT}/shown/SKILL.md"]
            resources = (await ask(session, "resources/list"))["resources"]
            assert [(item["uri"], item["name"]) for item in resources] == [(f"{ROOT}/shown/SKILL.md", "shown")]
            for name in ("hidden", "users", "refused"):
                for method in ("skills/get", "resources/read"):
                    assert await refused(session, method, uri=f"{ROOT}/{name}/SKILL.md") == -32602
            assert await refused(session, "resources/read", uri=f"{ROOT}/refused/a.md") == -32602

    asyncio.run(main())


def test_what_is_not_listed_is_not_readable(tmp_path: Path) -> None:
    """Files that need a repair, have another name, or are too many for an entry: nothing of their skills is read."""
    many = {f"many/f{n}.md": "x" for n in range(520)}
    write_files(
        tmp_path,
        {
            "good/SKILL.md": skill_md("good"),
            "repaired/SKILL.md": "---\nname: repaired\ndescription: Use when: always\n---\nB\n",
            "misnamed/SKILL.md": skill_md("other"),
            "many/SKILL.md": skill_md("many"),
            **many,
        },
    )

    async def main() -> None:
        command = [sys.executable, "-m", "deepskills", "mcp", "serve", "--source", str(tmp_path)]
        async with client(command, newer=True) as session:
            listed = (await ask(session, "skills/list"))["skills"]
            assert [entry["uri"] for entry in listed] == [f"{ROOT}/good/SKILL.md"]
            for path in ("repaired/SKILL.md", "other/SKILL.md", "many/SKILL.md", "many/f1.md"):
                assert await refused(session, "resources/read", uri=f"{ROOT}/{path}") == -32602, path
            children = (await ask(session, "resources/directory/read", uri=ROOT))["resources"]
            assert [child["name"] for child in children] == ["good"]

    asyncio.run(main())


def test_frontmatter_is_what_a_yaml_parser_gives() -> None:
    """Final newlines, marks in plain text, line separators and numbers; what parsers differ about has no value."""
    good = {
        "a: |\n  x\n": {"a": "x\n"},
        "a: >\n  x\n  y\n": {"a": "x y\n"},
        "a: x & y * z ! q << w\n": {"a": "x & y * z ! q << w"},
        'a: "x\u2028y"\nb: p\u0085q\n': {"a": "x\u2028y", "b": "p\u0085q"},
        "a: 0x1F\nb: 0o17\nc: 12345678901234567890\nd: 1e3\ne: .5\n": {
            "a": 31,
            "b": 15,
            "c": 12345678901234567890,
            "d": 1000.0,
            "e": 0.5,
        },
        "a: [1, true, null, {b: ~}]\n": {"a": [1, True, None, {"b": None}]},
        "a: 2026-09-01\nb: yes\nc: '1'\n": {"a": "2026-09-01", "b": "yes", "c": "1"},
    }
    for text, value in good.items():
        assert json_frontmatter(f"---\n{text}---\nBody.\n".encode()) == value, text
    for text in ("a: &x 1\nb: *x\n", "a: !t 1\n", "a: .inf\n", "a: .nan\n", "a: 1e999\n", "a: 1\na: 2\n", "a: b: c\n"):
        assert json_frontmatter(f"---\n{text}---\nBody.\n".encode()) is None, text

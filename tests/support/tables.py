"""Tables that several tests share: paths that strangers may send, and a library of skills."""

import asyncio
from typing import Any

from deepskills import SkillsManager
from support.agents import skill_md
from support.modes import Mode

HOSTILE = {
    # Steps to the parent.
    "parent": "../secret.txt",
    "parents": "../../secret.txt",
    "parents beyond the root": "../" * 40 + "etc/passwd",
    "parent inside": "references/../../secret.txt",
    "parent to the skill's own file": "references/../SKILL.md",
    "parent and back": "references/../references/guide.md",
    "parent to another directory of the skill": "references/../private/secret.txt",
    "parent to another skill": "references/../../other/references/secret.md",
    "parent last": "references/..",
    "parents last": "references/a/../..",
    "parent after a dot": "scripts/./../x",
    "parent after two dots": "references/././../../secret.txt",
    "parent after nested": "references/a/b/../../../../secret.txt",
    "parent between doubled slashes": "references//..//..//secret.txt",
    "dot and parent first": "./../secret.txt",
    "parent with a parameter": "references/..;/secret.txt",
    "three dots": "references/.../secret.txt",
    "four dots": "references/....//secret.txt",
    "dots and letters": "references/..a/secret.txt",
    "dots inside a name": "references/v1..v2.md",
    "dots inside a directory": "references/a..b/guide.md",
    # Absolute paths, drives, shares, addresses.
    "absolute": "/etc/passwd",
    "absolute secret": "{secret}",
    "absolute with two slashes": "//etc/passwd",
    "absolute with a dot": "/./etc/passwd",
    "absolute inside": "/references/guide.md",
    "root": "/",
    "drive": "C:/secret.txt",
    "drive without slash": "c:secret.txt",
    "drive with backslash": "C:\\secret.txt",
    "drive inside": "references/C:/secret.txt",
    "drive inside without slash": "references/d:secret.txt",
    "share": "\\\\server\\share\\secret.txt",
    "share with slashes": "//server/share/secret.txt",
    "device path": "\\\\?\\C:\\secret.txt",
    "device path with slashes": "//?/C:/secret.txt",
    "file address": "file:///etc/passwd",
    "file address of the secret": "file://{secret}",
    # Backslashes.
    "backslash": "references\\guide.md",
    "backslash first": "\\secret.txt",
    "backslash parent": "..\\secret.txt",
    "backslash parents": "references\\..\\..\\secret.txt",
    "backslash parents inside": "references/..\\..\\secret.txt",
    "backslash in a name": "references/a\\b.md",
    # Characters that cannot be seen.
    "nul": "\x00",
    "nul first": "\x00references/guide.md",
    "nul last": "references/guide.md\x00",
    "nul before an ending": "references/guide.md\x00.txt",
    "nul as a directory": "references/\x00/guide.md",
    "newline last": "references/guide.md\n",
    "newline inside": "references/gui\nde.md",
    "carriage return": "references/gui\rde.md",
    "tab": "references/gui\tde.md",
    "escape": "references/\x1b[31mguide.md",
    "delete": "references/guide\x7f.md",
    "zero width space between dots": "references/.\u200b./secret.txt",
    "bidirectional override": "references/\u202edm.ediug",
    "byte order mark": "\ufeffreferences/guide.md",
    "line separator": "references/gui\u2028de.md",
    "surrogate": "references/\ud800.md",
    # Percent-encoding, once and more.
    "encoded dots": "references/%2e%2e/secret.txt",
    "encoded dots in capitals": "references/%2E%2E/secret.txt",
    "half encoded dots": "references/.%2e/secret.txt",
    "encoded dots and slash": "%2e%2e%2fsecret.txt",
    "encoded slash": "references%2fguide.md",
    "encoded slashes after dots": "references/..%2F..%2Fsecret.txt",
    "encoded backslash": "references/%5c%5Csecret.txt",
    "encoded nul": "references/guide.md%00",
    "doubly encoded dots": "references/%252e%252e/secret.txt",
    "doubly encoded slash": "references/%252e%252e%252fsecret.txt",
    "triply encoded dots": "references/%25252e%25252e/secret.txt",
    "encoded in parts": "references/%%32%65%%32%65/secret.txt",
    "encoded as code points": "references/%u002e%u002e/secret.txt",
    "encoded at needless length": "references/%c0%ae%c0%ae/secret.txt",
    "slash encoded at needless length": "references/guide%C0%AFsecret.txt",
    "encoded with three bytes": "references/%e0%80%ae%e0%80%ae/secret.txt",
    "full-width percent sign": "references/％2e％2e/secret.txt",
    # Characters that look like, or normalize to, dots and separators.
    "one dot leaders": "references/\u2024\u2024/secret.txt",
    "two dot leader": "references/\u2025/secret.txt",
    "ellipsis": "references/\u2026/secret.txt",
    "full-width dots": "references/．．/secret.txt",
    "small dots": "references/﹒﹒/secret.txt",
    "full-width slash": "references／guide.md",
    "full-width slash after a parent": "references/．．／secret.txt",
    "division slash": "references∕guide.md",
    "fraction slash": "references⁄guide.md",
    "big slash": "references⧸guide.md",
    "full-width backslash": "references＼guide.md",
    "small backslash": "references﹨guide.md",
    "set minus": "references∖guide.md",
    "reverse operator": "references⧵guide.md",
    "letters that become a slash": "references/℀.md",
    # Spaces and dots at the ends of names.
    "space last": "references/guide.md ",
    "space first": " references/guide.md",
    "space after the directory": "references /guide.md",
    "dot last": "references/guide.md.",
    "dot after the directory": "references./guide.md",
    "dot and space last": "references/guide.md. ",
    "parent and a space": "references/.. /secret.txt",
    "space and a parent": "references/ ../secret.txt",
    "no-break space last": "references/guide.md\u00a0",
    "wide space first": "references/\u3000guide.md",
    # Too long.
    "long name": f"references/{'a' * 256}",
    "long name in bytes": f"references/{'周' * 200}.md",
    "deep": f"references/{'a/' * 600}x",
    "very long": "references/" + "a" * 100_000,
    # Nothing, or a directory.
    "empty": "",
    "space": " ",
    "whitespace": "\t\n",
    "dot": ".",
    "dot with slash": "./",
    "directory with slash": "references/",
    "nested directory with slash": "references/a/",
}
"""Paths that are refused whatever lies there; `{secret}` stands for the absolute path of a file outside."""

OUTSIDE = {
    "instructions": "SKILL.md",
    "scripts directory": "scripts",
    "references directory": "references",
    "assets directory": "assets",
    "root file": "notes.md",
    "another directory": "private/secret.txt",
    "directory in another case": "References/guide.md",
    "directory without its last letter": "reference/guide.md",
    "version control": ".git/config",
    "hidden": "references/.hidden",
    "hidden directory": "assets/.config/settings.toml",
    "home": "~",
    "file at home": "~/secret.txt",
    "file at another's home": "~root/secret.txt",
    "variable": "$HOME/secret.txt",
    "short file address": "file:secret.txt",
    "web address": "https:secret.txt",
}
"""Well-formed paths that lie in none of a skill's three directories."""

HONEST = {
    "script": "scripts/run.py",
    "reference": "references/guide.md",
    "asset": "assets/logo.svg",
    "nested": "references/a/b/c.md",
    "deeply nested": f"assets/{'d/' * 24}x.txt",
    "no ending": "scripts/run",
    "several dots": "references/a.b.c.tar.gz",
    "spaces inside": "references/two words/and more.md",
    "Chinese": "references/周报.md",
    "Japanese": "references/日本語/ガイド.md",
    "Arabic": "references/دليل.md",
    "composed accent": "references/na\u00efve.md",
    "decomposed accent": "references/nai\u0308ve.md",
    "emoji": "assets/🎉.txt",
    "percent": "references/100%.md",
    "encoded space": "references/my%20file.md",
    "punctuation": "references/it's [a] (name), #1; ok!.md",
    "tilde": "references/~backup.md",
    "dollar": "references/$HOME.md",
    "leading hyphen": "scripts/-rf",
    "longest name": f"references/{'a' * 255}",
    "directory's name again": "scripts/scripts/run.py",
}
"""Paths of files that people have."""


NORMALISED = {
    "dot first": ("./references/guide.md", "references/guide.md"),
    "dots first": ("././references/guide.md", "references/guide.md"),
    "dot inside": ("references/./guide.md", "references/guide.md"),
    "dots inside": ("references/././a/./b/c.md", "references/a/b/c.md"),
    "doubled slash": ("references//guide.md", "references/guide.md"),
    "many slashes": ("references////guide.md", "references/guide.md"),
    "dots and slashes": (".//references/.//./guide.md", "references/guide.md"),
    "absolute behind a directory": ("references//etc/passwd", "references/etc/passwd"),
}
"""Paths with steps that lead nowhere, and the paths they mean."""


def spelled(path: str, secret: str = "/somewhere/secret.txt") -> str:
    """Return a path of the table, the absolute path of a secret filled in."""
    return path.replace("{secret}", secret)


# Skills on a backend, and a manager of them.

REPORT = skill_md("csv-report", "Summarises a CSV file.", "# Report\n\nRead `references/guide.md`.\n")

LIBRARY: dict[str, str | bytes] = {
    "csv-report/SKILL.md": REPORT,
    "csv-report/references/guide.md": "How to report.",
    "csv-report/references/a/b/c.md": "Far below.",
    "csv-report/scripts/run.py": "print('ran')\n",
    "csv-report/assets/logo.png": b"\x89PNG\r\n\x1a\n\x00\x00\xff\xfe",
    "release-notes/SKILL.md": skill_md("release-notes", "Writes notes for a release."),
    "周报/SKILL.md": skill_md("周报", "把零散的记录整理成周报。"),
    "broken/SKILL.md": "---\nname: broken\n---\nNo description.\n",
    "broken/references/guide.md": "Of a broken skill.",
}
"""A directory of skills, one of them broken."""


def ask(mode: Mode, manager: SkillsManager, method: str, *arguments: Any, **options: Any) -> Any:
    """Call a method of a manager, or its async twin."""
    if mode == "sync":
        return getattr(manager, method)(*arguments, **options)
    return asyncio.run(getattr(manager, f"a{method}")(*arguments, **options))

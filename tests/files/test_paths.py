"""Paths into a skill: every hostile spelling is refused with its reason, and honest names are let through."""

import contextlib
import posixpath
import unicodedata
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepskills import SkillFileNotFoundError, SkillPathError, SkillsError
from deepskills._files.inventory import RESOURCE_DIRECTORIES
from deepskills._files.paths import MAX_PART_LENGTH, MAX_PATH_LENGTH, check_relative, script_to_relative

repeatable = settings(deadline=None, derandomize=True, max_examples=200, suppress_health_check=[HealthCheck.too_slow])

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
    "absolute behind a directory": "references/{secret}",
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
    "dot first": "./references/guide.md",
    "dot inside": "references/./guide.md",
    "doubled slash": "references//guide.md",
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
    "hidden": "references/.hidden",
    "hidden directory": "assets/.config/settings.toml",
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
    "longest name": f"references/{'a' * MAX_PART_LENGTH}",
    "directory's name again": "scripts/scripts/run.py",
}
"""Paths of files that people have."""


def spelled(path: str, secret: str = "/somewhere/secret.txt") -> str:
    """Return a path of the table, the absolute path of a secret filled in."""
    return path.replace("{secret}", secret)


hostile_paths = pytest.mark.parametrize("path", [spelled(path) for path in HOSTILE.values()], ids=HOSTILE)


@pytest.mark.parametrize("path", [spelled(path) for path in (HOSTILE | OUTSIDE).values()], ids=HOSTILE | OUTSIDE)
def test_hostile_paths_are_refused(path: str) -> None:
    """A path that could lead elsewhere is refused, and the message says so and shows how a path looks."""
    with pytest.raises(SkillPathError) as caught:
        check_relative(path)
    assert not isinstance(caught.value, SkillFileNotFoundError)
    assert isinstance(caught.value, SkillsError)
    assert "refused" in str(caught.value)
    assert "references/guide.md" in str(caught.value)


@hostile_paths
def test_refusals_can_be_shown(path: str) -> None:
    """The message of a refusal is one bounded line without control characters, and can be encoded."""
    with pytest.raises(SkillPathError) as caught:
        check_relative(path)
    message = str(caught.value)
    assert len(message) < 500
    assert not any(unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} for character in message)
    assert message.encode()


@hostile_paths
def test_hostile_script_names_are_refused(path: str) -> None:
    """Being taken as relative to `scripts/` makes no hostile path a good one."""
    with pytest.raises(SkillPathError):
        check_relative(script_to_relative(path))


@pytest.mark.parametrize("path", HONEST.values(), ids=HONEST)
def test_honest_paths_pass(path: str) -> None:
    """A path inside one of the three directories comes back as it is."""
    assert check_relative(path) == path


def test_table_is_large() -> None:
    """The table of hostile paths has no doubles and stays a table worth the name."""
    assert len(set(HOSTILE.values())) == len(HOSTILE) >= 60


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        pytest.param("", "empty", id="empty"),
        pytest.param("references/" + "a" * 300, "too long", id="long"),
        pytest.param("references/a\x00", "cannot be seen", id="nul"),
        pytest.param("references\\a", "backslash", id="backslash"),
        pytest.param("/a", "not relative", id="absolute"),
        pytest.param("~/a", "not relative", id="home"),
        pytest.param("C:/a", "drive", id="drive"),
        pytest.param("references/%2e", "percent-encoded", id="encoded"),
        pytest.param("references／a", "look like", id="lookalike"),
        pytest.param("references/../a", r"holds `\.\.`", id="parent"),
        pytest.param("references/v1..v2.md", r"holds `\.\.`", id="dots inside"),
        pytest.param("references//a", "empty step", id="doubled slash"),
        pytest.param("references/a ", "ends with a space or a dot", id="space"),
        pytest.param("SKILL.md", "none of the skill's directories", id="outside"),
    ],
)
def test_refusals_give_their_reason(path: str, reason: str) -> None:
    """A refusal names what is wrong with the path, so that the model can give a better one."""
    with pytest.raises(SkillPathError, match=reason):
        check_relative(path)


def test_longest_path_passes() -> None:
    """The limit itself is allowed, one character more is not."""
    longest = ("references/" + "a/" * MAX_PATH_LENGTH)[: MAX_PATH_LENGTH - 1] + "x"
    assert check_relative(longest) == longest
    with pytest.raises(SkillPathError, match="too long"):
        check_relative(f"{longest}x")


@pytest.mark.parametrize(
    ("name", "relative"),
    [
        pytest.param("run.py", "scripts/run.py", id="bare"),
        pytest.param("scripts/run.py", "scripts/run.py", id="with directory"),
        pytest.param("sub/run.py", "scripts/sub/run.py", id="nested"),
        pytest.param("scripts/sub/run.py", "scripts/sub/run.py", id="nested with directory"),
        pytest.param("scripts", "scripts/scripts", id="a script of that name"),
        pytest.param("references/run.py", "scripts/references/run.py", id="another directory's name"),
    ],
)
def test_script_names_are_relative_to_scripts(name: str, relative: str) -> None:
    """A script is named below `scripts/`; saying so is fine."""
    assert script_to_relative(name) == relative


FRAGMENTS = (
    *(
        "..",
        ".",
        "/",
        "//",
        "\\",
        "%32",
        "%65",
        "%2e",
        "%2f",
        "%25",
        "%",
        "2e",
        "2F",
        "%5c",
        "%00",
        "％",
        "．",
        "／",
        "\u2024",
    ),
    *("\u2025", "\u200b", "\x00", " ", "~", "C:", "references", "scripts", "assets", "a", "周", "é", ".md", "℀"),
)


@repeatable
@given(st.sampled_from(list(RESOURCE_DIRECTORIES)), st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join))
def test_what_passes_stays_inside(directory: str, rest: str) -> None:
    """However a path that passed is decoded or normalized later, it names a file in the same directory."""
    try:
        path = check_relative(f"{directory}/{rest}")
    except SkillPathError:
        return
    for decode in (str, unquote, lambda text: unquote(unquote(text))):
        for form in ("NFC", "NFKC"):
            seen = unicodedata.normalize(form, decode(path)).replace("\\", "/")
            assert posixpath.normpath(seen) == seen
            assert seen.startswith(f"{directory}/")


@repeatable
@given(st.text())
def test_any_text_passes_or_is_refused(text: str) -> None:
    """Whatever the path, the answer is the path itself or a refusal."""
    with contextlib.suppress(SkillPathError):
        assert check_relative(text) == text

"""Which files of a skill are its resources: nothing hidden, and whatever its instructions name."""

import base64
from pathlib import Path
from typing import Any, cast

import pytest
from deepagents.backends import FilesystemBackend

from deepskills import SkillFormatError, SkillPathError, SkillsManager, SkillsMiddleware
from deepskills.extensions import SkillScripts
from support import MODES, Conversation, Mode, disk, load, skill_md, write_files

both_modes = pytest.mark.parametrize("mode", MODES)

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\xff\xfe"
HIDDEN = ("scripts/.secret.py", "references/.env", "assets/.config/key.txt", ".deepskills-marker", "templates/.keep")
TOOLS = ("list_skill_assets", "load_skill_asset", "get_skill_script_path")


def make(root: Path, **options: Any) -> SkillsMiddleware:
    return SkillsMiddleware(backend=disk(root), sources=["/skills"], extra_tools=TOOLS, **options)


def asset(path: str) -> tuple[str, dict[str, Any]]:
    return "load_skill_asset", {"skill_name": "demo", "relative_path": path}


@both_modes
def test_hidden_files_are_nobodys_resources(mode: Mode, tmp_path: Path) -> None:
    """A file below a name with a dot is not listed at a load, counted in the prompt, listed, read or run."""
    files = dict.fromkeys(HIDDEN, "nobody-may-read-this")
    write_files(tmp_path / "skills/demo", {"SKILL.md": skill_md("demo"), "scripts/run.py": "print()", **files})
    (tmp_path / "skills/demo/references").mkdir(exist_ok=True)
    (tmp_path / "skills/demo/references/link.md").symlink_to(tmp_path / "skills/demo/references/.env")
    named = ("scripts", "references", "assets", "templates")
    for directories in ("all", named):
        talk = Conversation(mode, make(tmp_path, asset_directories=directories))
        (loaded,) = talk.call(load("demo"))
        assert "[script] `/skills/demo/scripts/run.py`" in loaded.text
        assert "/." not in loaded.text
        assert [item["path"] for item in talk.state["skill_resources"]["demo"]] == ["/skills/demo/scripts/run.py"]
        (listed,) = talk.call(("list_skill_assets", {"skill_name": "demo"}))
        assert listed.text.splitlines() == ["- scripts/run.py"]
        refused = [path for path in HIDDEN if "/" in path or directories == "all"]
        answers = talk.call(*(asset(path) for path in refused), asset("references/link.md"))
        assert [(answer.status, "nobody-may" in answer.text) for answer in answers] == [("error", False)] * len(answers)
        (script,) = talk.call(("get_skill_script_path", {"skill_name": "demo", "script_name": ".secret.py"}))
        assert (script.status, "hidden" in script.text) == ("error", True)
        manager = SkillsManager(backend=disk(tmp_path), sources=["/skills"], asset_directories=directories)
        assert manager.list_skill_assets("demo") == ["scripts/run.py"]
        for path in ("references/.env", "references/link.md", "assets/.config/key.txt"):
            with pytest.raises(SkillPathError):
                manager.get_skill_asset("demo", path)
        with pytest.raises(SkillPathError):
            manager.get_skill_script_path("demo", ".secret.py")


def test_a_hidden_script_does_not_run(tmp_path: Path) -> None:
    """`run_skill_script` refuses a script whose name starts with a dot."""
    write_files(tmp_path / "skills/demo", {"SKILL.md": skill_md("demo"), "scripts/.secret.py": "print('ran-it')"})
    backend = FilesystemBackend(root_dir=tmp_path, virtual_mode=True)
    scripts = SkillScripts(runner=lambda *_given, **_options: pytest.fail("a hidden script was run"))
    talk = Conversation("sync", SkillsMiddleware(backend=backend, sources=["/skills"], extensions=[scripts]))
    talk.call(load("demo"))
    (answer,) = talk.call(("run_skill_script", {"skill_name": "demo", "script_name": ".secret.py"}))
    assert (answer.status, "ran-it" in answer.text, "hidden" in answer.text) == ("error", False, True)


@both_modes
def test_media_come_as_content_blocks(mode: Mode, tmp_path: Path) -> None:
    """Images, audio and PDF files are shown as such, whatever their names; other binary is told by type and size."""
    media = {
        "assets/a.png": ("image", "image/png", PNG),
        "assets/b.bin": ("image", "image/jpeg", b"\xff\xd8\xff\xe0\x00"),
        "assets/c.webp": ("image", "image/webp", b"RIFF\x00\x00\x00\x00WEBPVP8 \xff"),
        "assets/d.mp3": ("audio", "audio/mpeg", b"ID3\x04\xff\xff"),
        "assets/e.wav": ("audio", "audio/wav", b"RIFF\x00\x00\x00\x00WAVEfmt \xff"),
        "assets/f.pdf": ("file", "application/pdf", b"%PDF-1.4\nplain ASCII"),
    }
    others = {
        "assets/g.zip": b"PK\x03\x04\xff\xff",
        "assets/h.png": b"\xff\xfe\x00\x01",
        "assets/i.png": PNG + b"\xff" * (5 * 1024 * 1024),
    }
    files = {path: content for path, (_, _, content) in media.items()} | others
    write_files(tmp_path / "skills/demo", {"SKILL.md": skill_md("demo"), "assets/svg.svg": "<svg/>", **files})
    talk = Conversation(mode, make(tmp_path))
    shown = talk.call(*(asset(path) for path in media), asset("assets/svg.svg"))
    for answer, (kind, mime_type, content) in zip(shown, media.values(), strict=False):
        [block] = cast("list[dict[str, str]]", answer.content_blocks)
        assert (answer.status, block["type"], block["mime_type"]) == ("success", kind, mime_type)
        assert base64.b64decode(block["base64"]) == content
    assert shown[-1].text == "<svg/>"
    zipped, odd, large = talk.call(*(asset(path) for path in others))
    assert "application/zip" in zipped.text
    assert "6 bytes" in zipped.text
    assert "application/octet-stream" in odd.text
    assert "image/png" in large.text
    assert f"{5 * 1024 * 1024 + len(PNG):,} bytes" in large.text
    manager = SkillsManager(backend=disk(tmp_path), sources=["/skills"])
    for path in files:
        with pytest.raises(SkillFormatError):
            manager.get_skill_asset("demo", path)


BODY = """
See `templates/letter.md`, [the form](forms/deep/tax%20form.md#top), ./examples/one.txt, ${CLAUDE_SKILL_DIR}/data/x.csv.
Then reference/api.md, script/go.sh, asset/logo.svg. Also {baseDir}/data/y.csv; see references/a/b/deep.md.
Not: https://example.com/templates/web.md, ../other/x.md, /etc/passwd, missing/file.md, templates/gone.md, data/.env.
"""


@both_modes
def test_files_that_instructions_name_are_listed(mode: Mode, tmp_path: Path) -> None:
    """A load lists what the instructions name by a relative path, wherever it lies, in one more round of calls."""
    named = ("templates/letter.md", "forms/deep/tax form.md", "examples/one.txt", "data/x.csv", "data/y.csv")
    typed = {"reference/api.md": "reference", "script/go.sh": "script", "asset/logo.svg": "asset"}
    others = ("templates/web.md", "data/z.csv", "data/.env", "references/a/b/deep.md", "forms/other.md")
    files = dict.fromkeys((*named, *typed, *others), "text")
    write_files(tmp_path / "skills/demo", {"SKILL.md": skill_md("demo", body=BODY), **files})
    talk = Conversation(mode, make(tmp_path))
    (loaded,) = talk.call(load("demo"))
    listed = {
        item["path"].removeprefix("/skills/demo/"): item["type"] for item in talk.state["skill_resources"]["demo"]
    }
    assert listed == {**dict.fromkeys(named, "other"), **typed, "references/a/b/deep.md": "reference"}
    assert "- [other] `/skills/demo/forms/deep/tax form.md`" in loaded.text
    assert "- [reference] `/skills/demo/reference/api.md`" in loaded.text
    (script,) = talk.call(("get_skill_script_path", {"skill_name": "demo", "script_name": "go.sh"}))
    assert script.text == str(tmp_path / "skills/demo/script/go.sh")

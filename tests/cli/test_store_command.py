"""`deepskills store`: skills on disk into a database and back, and what is said where there is no database."""

from pathlib import Path

from install_support import refuse, succeed

from support import skill_md, write_files


def test_there_and_back(tmp_path: Path) -> None:
    """What was imported is exported again, and a second time nothing changes."""
    write_files(tmp_path, {"skills/tea/SKILL.md": skill_md("tea"), "skills/tea/references/a.md": "a"})
    given = ("--user", "ann", "--database", f"sqlite:///{tmp_path}/skills.db")
    assert succeed("store", "import", f"{tmp_path}/skills", *given).stdout == "created: tea\n"
    assert succeed("store", "export", f"{tmp_path}/out", *given).stdout == "created: tea\n"
    assert (tmp_path / "out/tea/references/a.md").read_text() == "a"
    assert succeed("store", "export", f"{tmp_path}/out", *given).stdout == "unchanged: tea\n"


def test_a_database_that_cannot_be_used(tmp_path: Path) -> None:
    """The message names the option, and no secret of the address."""
    for url, said in (
        ("nonsense", "Could not parse"),
        (f"sqlite:///{tmp_path}/none/skills.db", "There is no directory for the database"),
        ("postgresql://ann:secret@127.0.0.1:1/skills", "The database cannot be used: "),
    ):
        shown = refuse(2, "store", "import", str(tmp_path), "--user", "ann", "--database", url)
        assert said in shown
        assert "secret" not in shown
    assert "Say whose the skills are" in refuse(2, "store", "import", str(tmp_path), "--database", "sqlite:///a.db")

"""Importing costs what is used: the frameworks are imported by the names that need them, and nobody notices."""

import ast
import concurrent.futures
import inspect
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import deepskills
from support import skill_md, write_files

FRAMEWORKS = ("deepagents", "langchain", "langchain_core", "langgraph", "pydantic")


def run(program: str, *args: str) -> str:
    """Run a program in a fresh interpreter and return what it printed."""
    done = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


LOADED = f"print(sorted({{name.partition('.')[0] for name in sys.modules}} & set({FRAMEWORKS!r})))"


def test_the_package_and_its_light_names_import_no_framework() -> None:
    """Reading, checking and writing skill files takes none of the second that the frameworks take."""
    program = (
        "import sys, deepskills; text = deepskills.generate_skill_md('a', 'Does.'); "
        "assert deepskills.validate_skill(text, path='/a/SKILL.md') == []; "
        f"deepskills.SkillsError, deepskills.SkillProblem, deepskills.SKILLS_SYSTEM_PROMPT; {LOADED}"
    )
    assert run(program) == "[]\n"


def test_no_command_imports_a_framework(tmp_path: Path) -> None:
    """Every command, its help and a shell's completion do their work without LangChain, deepagents or Pydantic."""
    write_files(tmp_path, {"s/a/SKILL.md": skill_md("a"), "s/a/scripts/x.py": ""})
    source = str(tmp_path / "s")
    program = f"""
import io, json, os, sys
from contextlib import redirect_stdout
from deepskills.__main__ import main
done = {{}}
for args in json.loads(sys.argv[1]):
    sys.argv = ["deepskills", *args]
    try:
        with redirect_stdout(io.StringIO()) as shown:
            main()
    except SystemExit as end:
        done[" ".join(args[:2])] = end.code or 0
    loaded = sorted({{name.partition('.')[0] for name in sys.modules}} & set({FRAMEWORKS!r}))
    assert not loaded, (args, loaded)
print(json.dumps(done))
"""
    commands = [
        ["--help"],
        ["list", "--source", source],
        ["list", "--json", "--source", source],
        ["info", "a", "--source", source],
        ["search", "a", "--source", source],
        ["validate", source],
        ["doctor", "--source", source],
        ["create", "b", "--source", source, "--description", "Does."],
    ]
    codes = json.loads(run(program, json.dumps(commands)))
    assert set(codes.values()) == {0}
    assert len(codes) == len(commands)


def test_the_table_of_names_is_what_type_checkers_see() -> None:
    """Each public name is imported for type checkers from the module that it comes from at run time."""
    tree = ast.parse(Path(deepskills.__file__).read_text(encoding="utf-8"))
    seen = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("deepskills.")
        for alias in node.names
    }
    assert seen == deepskills._MODULES  # noqa: SLF001 - the table under test
    assert sorted(seen) == sorted(deepskills.__all__)


def test_a_star_import_brings_every_name() -> None:
    """`from deepskills import *` gives all public names and nothing else of ours."""
    program = "from deepskills import *; print(sorted(name for name in dir() if not name.startswith('__')))"
    assert ast.literal_eval(run(program)) == sorted(deepskills.__all__)


def test_the_package_looks_as_if_everything_were_imported() -> None:
    """`dir`, `inspect`, `hasattr` and pickles see whole classes, first use or not."""
    program = (
        "import deepskills, inspect, pickle; missing = set(deepskills.__all__) - set(dir(deepskills)); "
        "members = dict(inspect.getmembers(deepskills)); "
        "print(sorted(missing), sorted(set(deepskills.__all__) - set(members)), hasattr(deepskills, 'nothing'), "
        "pickle.loads(pickle.dumps(deepskills.SkillsMiddleware)) is deepskills.SkillsMiddleware)"
    )
    assert run(program) == "[] [] False True\n"
    assert inspect.getsourcefile(deepskills.SkillsMiddleware)
    assert pickle.loads(pickle.dumps(deepskills.SkillsError("x"))).args == ("x",)


def test_an_unknown_name_is_an_ordinary_error() -> None:
    """A typing slip says what is missing where, by attribute and by import."""
    with pytest.raises(AttributeError, match=r"module 'deepskills' has no attribute 'SkillMiddleware'"):
        deepskills.SkillMiddleware  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="SkillMiddleware"):
        from deepskills import SkillMiddleware  # type: ignore[attr-defined]  # noqa: F401, PLC0415


def test_threads_that_import_at_once_get_one_class() -> None:
    """The first use may come from many threads at the same time."""
    program = (
        "import concurrent.futures, deepskills\n"
        "with concurrent.futures.ThreadPoolExecutor(8) as pool:\n"
        "    found = set(pool.map(lambda _: id(deepskills.SkillsMiddleware), range(64)))\n"
        "print(len(found))"
    )
    assert run(program) == "1\n"
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda name: hasattr(deepskills, name), deepskills.__all__)) == {True}

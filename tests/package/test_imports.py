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
    table = deepskills._MODULES  # noqa: SLF001 - the table under test
    assert seen == {name: f"deepskills.{module}" for name, module in table.items()}
    assert sorted(seen) == sorted(deepskills.__all__)


FIRST_USES = """
import concurrent.futures, importlib, inspect, json, pickle, sys

def first_use():
    for name in [name for name in sys.modules if name.partition(".")[0] == "deepskills"]:
        del sys.modules[name]
    return importlib.import_module("deepskills")

package, answers = first_use(), {}
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    answers["classes"] = len(set(pool.map(lambda _: id(package.SkillsMiddleware), range(64))))

first_use()
names = {}
exec("from deepskills import *", names)
answers["star"] = sorted(name for name in names if not name.startswith("__"))

package = first_use()
answers["dir"] = sorted(dir(package))
answers["members"] = [name for name, _ in inspect.getmembers(package)]
answers["unknown"] = hasattr(package, "nothing")
answers["pickled"] = pickle.loads(pickle.dumps(package.SkillsMiddleware)) is package.SkillsMiddleware
print(json.dumps(answers))
"""


def test_the_first_use_is_like_any_other() -> None:
    """Whatever touches the package first finds all of it, as if everything were imported.

    Threads that import at once get one class, `from deepskills import *` gives all public names and nothing else of
    ours, and `dir`, `inspect`, `hasattr` and pickles see whole classes.
    """
    answers = json.loads(run(FIRST_USES))
    public = set(deepskills.__all__)
    assert answers["classes"] == 1
    assert answers["star"] == sorted(public)
    assert public - set(answers["dir"]) == set()
    assert public - set(answers["members"]) == set()
    assert (answers["unknown"], answers["pickled"]) == (False, True)


def test_later_uses_see_whole_classes() -> None:
    """`inspect`, pickles and threads find what was imported long ago."""
    assert inspect.getsourcefile(deepskills.SkillsMiddleware)
    assert pickle.loads(pickle.dumps(deepskills.SkillsError("x"))).args == ("x",)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda name: hasattr(deepskills, name), deepskills.__all__)) == {True}


def test_an_unknown_name_is_an_ordinary_error() -> None:
    """A typing slip says what is missing where, by attribute and by import."""
    with pytest.raises(AttributeError, match=r"module 'deepskills' has no attribute 'SkillMiddleware'"):
        deepskills.SkillMiddleware  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="SkillMiddleware"):
        from deepskills import SkillMiddleware  # type: ignore[attr-defined]  # noqa: F401, PLC0415

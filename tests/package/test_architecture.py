"""The shape of the code: who may call a backend, who knows the frameworks, and in which direction imports go."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import deepskills

PACKAGE = Path(deepskills.__file__).parent
MODULES = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.glob("*.py"))}

BACKEND_METHODS = frozenset({"ls", "als", "download_files", "adownload_files", "upload_files", "aupload_files"})

FRAMEWORKS = frozenset({"langchain", "langchain_core", "langgraph", "deepagents"})

PLAIN = [
    "_answers",
    "_context",
    "_discovery",
    "_errors",
    "_frontmatter",
    "_lifecycle",
    "_naming",
    "_problems",
    "_prompt",
    "_resources",
    "_section",
    "_skillmd",
    "_sources",
    "_text",
    "_types",
    "_writing",
]
"""Modules that a test calls without a graph: they never name a framework."""

EDGE = frozenset(
    {
        "_catalog",
        "_extra_tools",
        "_local",
        "_middleware",
        "_pins",
        "_plan",
        "_request",
        "_session",
        "_settings",
        "_skill_tools",
        "_state",
        "_tools",
        "_turn",
        "manager",
        "testing",
    }
)
"""Modules that may know the frameworks: hooks, tools, messages, state and backends."""

COMMAND_LINE = frozenset(name for name in MODULES if name.startswith(("__main__", "cli", "_cli")))
"""The program beside the library: it has a terminal and a disk of its own."""

LIBRARY = {name: tree for name, tree in MODULES.items() if name not in COMMAND_LINE}

FILE_READERS = frozenset({"open", "read_text", "read_bytes"})


def imports_of(tree: ast.Module) -> Iterator[tuple[str, str | None]]:
    """Yield each import of a module, wherever it stands, as the module named and the name taken from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names)


def own_imports(tree: ast.Module) -> set[str]:
    """Return the modules of this package that a module imports."""
    found = set()
    for module, name in imports_of(tree):
        if module == "deepskills" and name in MODULES:
            found.add(name)
        elif module.startswith("deepskills."):
            found.add(module.split(".")[1])
    return {name for name in found if name is not None}


def frameworks_of(tree: ast.Module) -> set[str]:
    return {module.partition(".")[0] for module, _ in imports_of(tree)} & FRAMEWORKS


def called_methods(tree: ast.Module) -> set[str]:
    """Return the names of all methods that a module calls, save those that a class calls on its own base."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    attributes = (function for function in calls if isinstance(function, ast.Attribute))
    return {attribute.attr for attribute in attributes if ast.unparse(attribute.value) != "super()"}


def called_functions(tree: ast.Module) -> set[str]:
    """Return the names of all functions that a module calls."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {function.id for function in calls if isinstance(function, ast.Name)}


def test_only_the_drivers_call_a_backend() -> None:
    """Backend methods are called in `_plan` alone, sync and async; everything else is a plan."""
    callers = {name for name, tree in MODULES.items() if BACKEND_METHODS & called_methods(tree)}
    assert callers == {"_plan"}
    assert {"ls", "als", "download_files", "adownload_files"} <= called_methods(MODULES["_plan"])


@pytest.mark.parametrize("name", PLAIN)
def test_the_core_knows_no_framework(name: str) -> None:
    """The core is plain Python: no LangChain, no LangGraph, no deepagents."""
    assert frameworks_of(MODULES[name]) == set()


def test_frameworks_are_known_at_the_edge_only() -> None:
    """A module that imports a framework is one of those that may."""
    assert {name for name, tree in LIBRARY.items() if frameworks_of(tree)} <= EDGE
    assert not EDGE & set(PLAIN)


def test_no_private_name_of_a_framework_is_used() -> None:
    """What the frameworks keep to themselves may change in any release."""
    private = [
        (name, module, taken)
        for name, tree in MODULES.items()
        for module, taken in imports_of(tree)
        if module.partition(".")[0] in FRAMEWORKS
        and any(part.startswith("_") for part in [*module.split("."), taken or ""])
    ]
    assert private == []


def test_no_file_is_read_beside_the_backend() -> None:
    """Files are read through backends only, so that every backend works."""
    called = {name: called_functions(tree) | called_methods(tree) for name, tree in LIBRARY.items()}
    assert [name for name, names in called.items() if FILE_READERS & names] == []


def test_imports_go_one_way() -> None:
    """No module imports itself by way of others, and the library knows nothing of the command line."""
    assert not [name for name, tree in LIBRARY.items() if own_imports(tree) & COMMAND_LINE]
    graph = {name: own_imports(tree) for name, tree in MODULES.items() if name != "__init__"}
    done: set[str] = set()
    while ready := {name for name, needs in graph.items() if name not in done and needs <= done}:
        done |= ready
    assert graph.keys() - done == set()


def test_the_package_only_re_exports() -> None:
    """`__init__` holds imports and a sorted `__all__`, nothing else."""
    body = MODULES["__init__"].body
    assert isinstance(body[0], ast.Expr)
    assert [type(node) for node in body[1:-1]] == [ast.ImportFrom] * (len(body) - 2)
    assert isinstance(body[-1], ast.Assign)


def test_public_names_are_sorted_importable_and_documented() -> None:
    """Each public name is there, once, in order; constants first, then classes, then functions."""
    names = deepskills.__all__
    assert len(names) == len(set(names))
    constants = [name for name in names if name.isupper()]
    classes = [name for name in names if not name.isupper() and name[0].isupper()]
    functions = [name for name in names if name[0].islower()]
    assert names == [*sorted(constants), *sorted(classes), *sorted(functions)]
    for name in names:
        found = getattr(deepskills, name)
        assert not callable(found) or found.__doc__, name


@pytest.mark.parametrize(
    "name",
    [
        "ResourceMetadata",
        "SKILLS_SYSTEM_PROMPT",
        "SkillFormatError",
        "SkillMetadata",
        "SkillProblem",
        "SkillSource",
        "SkillsError",
        "SkillsMiddleware",
        "SkillsState",
        "SkillsStateUpdate",
        "generate_skill_md",
        "parse_skill_md",
        "read_skill",
        "validate_skill",
    ],
)
def test_what_is_promised_is_public(name: str) -> None:
    """Users import these from the package itself."""
    assert name in deepskills.__all__


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_is_for(name: str) -> None:
    """A module opens with a docstring of whole sentences."""
    docstring = ast.get_docstring(MODULES[name])
    assert docstring
    assert docstring.endswith(".")

"""The shape of the code: which folder may import which, who knows the frameworks, and who may call a backend."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import deepskills
import deepskills.store.errors

PACKAGE = Path(deepskills.__file__).parent

ORDER = (
    "_types",
    "_errors",
    "_skillmd",
    "_io",
    "_providers",
    "_catalog",
    "_files",
    "_loading",
    "_prompt",
    "_install",
    "_middleware",
    "inline",
    "manager",
    "extensions",
    "evals",
    "mcp",
    "store",
    "_diagnosis",
    "_cli",
    "testing",
    "fixtures",
    "__init__",
    "__main__",
)
"""Every folder and module of the package, each allowed to import those before it and itself."""

KNOWS_FRAMEWORKS = frozenset(
    {"_diagnosis", "_io", "_middleware", "evals", "extensions", "inline", "manager", "mcp", "testing", "_cli", "store"}
)

AGENT_IS_PRIVATE_TO = frozenset({"evals", "extensions", "_cli", "mcp", "store"})
"""Folders that use the agent side through the public package only."""

FRAMEWORKS = frozenset({"langchain", "langchain_core", "langgraph", "deepagents"})

BACKEND_METHODS = frozenset({"ls", "als", "download_files", "adownload_files", "execute", "aexecute"})

FILE_READERS = frozenset({"open", "read_text", "read_bytes"})

MODULES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def room(module: str) -> str:
    """Return the folder, or the top-level module, that a module belongs to."""
    return module.partition("/")[0].removesuffix(".py")


def imports_of(tree: ast.Module) -> Iterator[tuple[str, str | None]]:
    """Yield each import of a module, wherever it is, as the module named and the name taken from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names)


def rooms_imported(tree: ast.Module) -> set[str]:
    """Return the rooms of this package that a module imports from; the package itself is `__init__`."""
    found = set()
    for module, name in imports_of(tree):
        if module == "deepskills":
            found.add(name if name in ORDER else "__init__")
        elif module.startswith("deepskills."):
            found.add(module.split(".")[1])
    return {name for name in found if name is not None}


def called_names(tree: ast.Module) -> set[str]:
    """Return the names of all functions and methods that a module calls, except those of its own base class."""
    functions = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    methods = {f.attr for f in functions if isinstance(f, ast.Attribute) and ast.unparse(f.value) != "super()"}
    return methods | {f.id for f in functions if isinstance(f, ast.Name)}


def test_imports_go_one_way() -> None:
    """A folder imports only those before it in one ordered list, and every module has its place in the list."""
    assert {room(module) for module in MODULES} == set(ORDER)
    backwards = [
        (module, imported)
        for module, tree in TREES.items()
        for imported in rooms_imported(tree) - {"__init__"}
        if ORDER.index(imported) > ORDER.index(room(module))
    ]
    assert backwards == []


def test_only_the_edges_import_the_public_package() -> None:
    """Only what is built on the public API may import it; inside the library it would be a circle."""
    users = {room(module) for module, tree in TREES.items() if "__init__" in rooms_imported(tree)}
    assert users <= {"evals", "extensions", "mcp", "store", "_cli", "__main__"}


def type_checking_blocks(tree: ast.Module) -> list[ast.If]:
    return [
        node
        for node in tree.body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]


def test_modules_of_one_folder_do_not_import_each_other_in_a_circle() -> None:
    """No module imports itself by way of others."""
    names = {f"deepskills.{name.removesuffix('.py').replace('/', '.')}": name for name in MODULES}
    graph: dict[str, set[str]] = {}
    for module, tree in TREES.items():
        # What type checkers alone import makes no circle when the module runs.
        only_types = {node for block in type_checking_blocks(tree) for node in ast.walk(block)}
        run = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)]
        left: list[ast.stmt] = [node for node in run if node not in only_types]
        taken_from = imports_of(ast.Module(left, []))
        dotted = {given for item, taken in taken_from for given in (item, f"{item}.{taken}")}
        graph[module] = {names[name] for name in dotted if name in names} - {module}
    done: set[str] = set()
    while ready := {module for module, needs in graph.items() if module not in done and needs <= done}:
        done |= ready
    assert graph.keys() - done == set()


def test_frameworks_are_known_at_the_edge_only() -> None:
    """The core is plain Python: no LangChain, no LangGraph, no deepagents outside the folders that connect to them."""
    knowing = {
        module
        for module, tree in TREES.items()
        if {name.partition(".")[0] for name, _ in imports_of(tree)} & FRAMEWORKS
    }
    assert [module for module in knowing if room(module) not in KNOWS_FRAMEWORKS] == []


def test_what_is_built_on_the_public_api_does_not_reach_into_the_agent() -> None:
    """Extensions, the command line and the store use the middleware as any user does."""
    reaching = [
        module
        for module, tree in TREES.items()
        if room(module) in AGENT_IS_PRIVATE_TO and "_middleware" in rooms_imported(tree)
    ]
    assert reaching == []


def test_only_the_backend_folder_calls_a_backend() -> None:
    """Backend methods are called by the drivers alone; everything else asks for a request to be performed."""
    library = {m: t for m, t in TREES.items() if room(m) not in {"store", "_cli", "_io", "extensions"}}
    assert [module for module, tree in library.items() if BACKEND_METHODS & called_names(tree)] == []


def test_no_file_is_read_beside_the_backend() -> None:
    """Files are read through backends only, so that every backend works; `_copies` writes what a backend gave."""
    elsewhere = {"evals", "store", "_cli", "_install", "__main__"}
    library = {m: t for m, t in TREES.items() if room(m) not in elsewhere and m != "extensions/_shared.py"}
    assert [module for module, tree in library.items() if FILE_READERS & called_names(tree)] == []


def test_extensions_take_their_words_for_models_from_one_module() -> None:
    """An extension's refusal or answer is worded in `_prompt/messages.py`, where every sentence for a model is."""
    worded_here = [
        (module, ast.unparse(node))
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if room(module) == "extensions"
        and isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"Refuse", "Answer"}
        and node.args
        and isinstance(node.args[0], ast.Constant | ast.JoinedStr)
    ]
    assert worded_here == []


def test_no_private_name_of_a_framework_is_used() -> None:
    """What the frameworks keep to themselves may change in any release."""
    private = [
        (name, module, taken)
        for name, tree in TREES.items()
        for module, taken in imports_of(tree)
        if module.partition(".")[0] in FRAMEWORKS
        and any(part.startswith("_") for part in [*module.split("."), taken or ""])
    ]
    assert private == []


def test_every_module_says_what_it_is_for() -> None:
    """A module opens with a docstring of whole sentences."""
    docstrings = {name: ast.get_docstring(tree) or "" for name, tree in TREES.items()}
    assert [name for name, text in docstrings.items() if not text.endswith(".")] == []


def test_the_errors_stand_in_a_tree() -> None:
    """The modules of errors open with the tree of all public ones, each below its base."""
    for module in map(inspect.getmodule, (deepskills.SkillsError, deepskills.store.SkillPermissionError)):
        assert module is not None
        classes = [
            kind for _, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == module.__name__
        ]
        drawn: dict[str, str] = {}
        above: dict[int, str] = {}
        for line in str(module.__doc__).splitlines():
            found = re.fullmatch(r"( {4}[ │├└─]*)(Skill\w+)( \(.*\))?", line)
            if found is not None:
                above[len(found[1])] = found[2]
                drawn[found[2]] = above.get(len(found[1]) - 4, "")
        expected = {kind.__name__: kind.__mro__[1].__name__ for kind in classes if kind.__mro__[1] is not Exception}
        beside = {name for name in expected if f"`{name}`" in str(module.__doc__)}
        assert expected.items() - drawn.items() == {(name, expected[name]) for name in beside}


def test_public_names_are_sorted_importable_and_documented() -> None:
    """Each public name is there, once, in order; constants first, then classes, then functions."""
    names = deepskills.__all__
    assert len(names) == len(set(names))
    constants = [name for name in names if name.isupper()]
    classes = [name for name in names if not name.isupper() and name[0].isupper()]
    functions = [name for name in names if name[0].islower()]
    assert names == [*sorted(constants), *sorted(classes), *sorted(functions)]
    undocumented = [
        name
        for name in names
        if inspect.isroutine(found := getattr(deepskills, name)) or (inspect.isclass(found) and not found.__doc__)
        if not found.__doc__
    ]
    assert undocumented == []


def test_what_is_promised_is_public() -> None:
    """Users import these from the package itself."""
    promised = {
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
    }
    assert promised <= set(deepskills.__all__)

"""Graph state: reducers that give the same in every order, private keys that stay private, schemas that resolve."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NotRequired, Required, get_args, get_origin, get_type_hints

import pytest
from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from deepagents.middleware.skills import SkillsState as DeepAgentsSkillsState
from langchain.agents import create_agent
from langchain.agents.middleware.types import OmitFromOutput, PrivateStateAttr
from langchain_core.messages import HumanMessage
from langgraph.graph import END, START, StateGraph

from deepskills import ResourceMetadata, SkillsMiddleware, SkillsState, SkillsStateUpdate
from deepskills._middleware.state import Thread, merge_by_name, merge_context, merge_loaded, merge_pins
from deepskills.testing import ScriptedChatModel, call_tools
from support import Mode, both_modes, run, skill_md, write_files

PRIVATE = {"skills_load_errors", "skills_problems", "skills_loaded", "skill_resources", "skills_context"}


@pytest.mark.parametrize(
    ("current", "update", "expected"),
    [
        (None, None, []),
        (None, [], []),
        (None, ["a"], ["a"]),
        ([], ["a", "b"], ["a", "b"]),
        (["a"], ["b"], ["a", "b"]),
        (["a", "b"], ["b", "a", "c"], ["a", "b", "c"]),
        (["a"], ["b", "b"], ["a", "b"]),
        (["a"], None, ["a"]),
        (["a"], [], ["a"]),
        (["a"], ("b",), ["a", "b"]),
        (["a", "b", "c"], {"unload": ["b"]}, ["a", "c"]),
        (["a", "b"], {"unload": ["b", "a"]}, []),
        (["a"], {"unload": ["x"]}, ["a"]),
        (["a"], {"unload": []}, ["a"]),
        (["a"], {"unload": None}, ["a"]),
        (["a"], {}, ["a"]),
        (None, {"unload": ["a"]}, []),
    ],
    ids=str,
)
def test_a_list_adds_and_unload_removes(current: Any, update: Any, expected: list[str]) -> None:
    """A list is united in order, `{"unload": [...]}` takes names away, and nothing changes what it was given."""
    before = json.dumps([current, update])
    assert merge_loaded(current, update) == expected
    assert json.dumps([current, update]) == before
    assert merge_loaded(current, update) is not current


def merged(start: list[str], updates: Sequence[Any]) -> list[str]:
    for update in updates:
        start = merge_loaded(start, update)
    return start


@pytest.mark.parametrize(
    ("start", "updates", "expected"),
    [
        pytest.param([], [["a"], ["b"], ["c"]], {"a", "b", "c"}, id="three-loads"),
        pytest.param(["x"], [["a"], ["a"]], {"x", "a"}, id="one-skill-twice"),
        pytest.param(["a", "b", "c"], [{"unload": ["a"]}, {"unload": ["b"]}], {"c"}, id="two-unloads"),
        pytest.param(["a", "b"], [{"unload": ["a"]}, {"unload": ["a"]}], {"b"}, id="one-unload-twice"),
        pytest.param(["a", "b"], [["c"], {"unload": ["a"]}, ["d"]], {"b", "c", "d"}, id="loads-and-an-unload"),
        pytest.param(["a"], [{"unload": ["z"]}, ["b"], {"unload": ["a"]}], {"b"}, id="unloads-and-a-load"),
    ],
)
def test_updates_of_different_skills_give_the_same_in_every_order(
    start: list[str], updates: list[Any], expected: set[str]
) -> None:
    """Parallel updates may arrive in any order; what is loaded is the same, and what was loaded keeps its order."""
    for order in itertools.permutations(updates):
        result = merged(start, order)
        assert set(result) == expected
        assert len(result) == len(set(result))
        kept = [name for name in start if name in expected]
        assert result[: len(kept)] == kept


@pytest.mark.parametrize(
    ("start", "updates", "expected"),
    [
        ([], [["a"], {"unload": ["a"]}], []),
        (["a"], [["a"], {"unload": ["a"]}], []),
        (["a", "b"], [{"unload": ["a"]}, ["a"]], ["b", "a"]),
    ],
    ids=str,
)
def test_updates_of_one_skill_follow_their_order(start: list[str], updates: list[Any], expected: list[str]) -> None:
    """Load then unload: not loaded. Unload then load: loaded, and last."""
    assert merged(start, updates) == expected


@pytest.mark.parametrize(
    ("current", "update", "expected"),
    [
        (None, None, {}),
        (None, {"a": [1]}, {"a": [1]}),
        ({"a": [1]}, None, {"a": [1]}),
        ({"a": [1]}, {}, {"a": [1]}),
        ({"a": [1]}, {"b": [2]}, {"a": [1], "b": [2]}),
        ({"a": [1]}, {"a": [2]}, {"a": [2]}),
        ({"a": [1]}, {"a": []}, {"a": []}),
        ({"a": [1], "b": [2]}, {"a": None}, {"b": [2]}),
        ({"a": [1]}, {"x": None}, {"a": [1]}),
        (None, {"a": None}, {}),
        ({"a": [1], "b": [2]}, {"a": None, "c": [3], "b": [4]}, {"b": [4], "c": [3]}),
    ],
    ids=str,
)
def test_names_are_merged_and_none_removes(current: Any, update: Any, expected: dict[str, Any]) -> None:
    """Each name is replaced as a whole, `None` removes it, others stay, and nothing changes what it was given."""
    before = json.dumps([current, update])
    assert merge_by_name(current, update) == expected
    assert json.dumps([current, update]) == before


@pytest.mark.parametrize(
    "updates",
    [
        [{"a": [1]}, {"b": [2]}, {"c": [3]}],
        [{"x": None}, {"b": [2]}, {"y": None}],
        [{"x": None, "a": [1]}, {"y": [9]}, {"b": []}],
    ],
    ids=str,
)
def test_updates_of_different_names_give_the_same_in_every_order(updates: list[dict[str, Any]]) -> None:
    """Parallel updates may arrive in any order."""
    results = []
    for order in itertools.permutations(updates):
        current: dict[str, Any] = {"x": [0], "y": [0]}
        for update in order:
            current = merge_by_name(current, update)
        results.append(current)
    assert results == [results[0]] * len(results)


def test_pins_of_one_step_add_up() -> None:
    """Names pinned by parallel writes are all kept, in order, as deepagents keeps them."""
    assert merge_pins(None, ["a"]) == ["a"]
    assert merge_pins(["a"], ["b", "a"]) == ["a", "b", "a"]
    assert merge_pins(["a"], None) == ["a"]
    assert merge_pins(None, None) == []


def test_updates_survive_a_serializer() -> None:
    """An update that waits in a checkpoint as JSON does the same afterwards: every marker is plain data."""
    resource = ResourceMetadata(path="/s/a/x", type="script", skill_name="a")
    for update in (["a"], {"unload": ["a"]}):
        again = json.loads(json.dumps(update))
        assert merge_loaded(["a", "b"], again) == merge_loaded(["a", "b"], update)  # type: ignore[arg-type]
    updates: list[dict[str, list[ResourceMetadata] | None]] = [{"a": [resource]}, {"a": None}]
    for named in updates:
        again = json.loads(json.dumps(named))
        current: dict[str, list[ResourceMetadata]] = {"a": []}
        assert merge_by_name(current, again) == merge_by_name(current, named)


# Annotations.


def annotations_of(schema: type) -> dict[str, list[Any]]:
    """Return what stands beside the type in each key's annotation, resolved as LangGraph resolves it."""
    found = {}
    for key, hint in get_type_hints(schema, include_extras=True).items():
        inner = get_args(hint)[0] if get_origin(hint) in (NotRequired, Required) else hint
        found[key] = list(get_args(inner)[1:]) if get_origin(inner) is Annotated else []
    return found


def test_every_key_of_deepagents_state_is_in_ours() -> None:
    """Whoever reads deepagents' keys finds them, as private, as omitted and as reduced as there."""
    ours, theirs = annotations_of(SkillsState), annotations_of(DeepAgentsSkillsState)
    assert theirs.keys() <= ours.keys()
    for key in theirs.keys() - {"messages"}:
        (mark, *reducer), (their_mark, *their_reducer) = ours[key], theirs[key]
        assert mark == their_mark, key
        assert len(reducer) == len(their_reducer), key


@pytest.mark.parametrize(
    ("key", "marks"),
    [
        ("skills_metadata", [OmitFromOutput]),
        ("skills_load_errors", [PrivateStateAttr]),
        ("skills_problems", [PrivateStateAttr]),
        ("skills_loaded", [PrivateStateAttr, merge_loaded]),
        ("skill_resources", [PrivateStateAttr, merge_by_name]),
        ("skills_context", [PrivateStateAttr, merge_context]),
        ("pinned_skills", [OmitFromOutput, merge_pins]),
    ],
)
def test_keys_are_private_or_omitted_and_the_reducer_stands_last(key: str, marks: list[Any]) -> None:
    """LangGraph looks for a reducer in the last place, and for privacy anywhere."""
    assert annotations_of(SkillsState)[key] == marks


def test_one_key_holds_what_only_the_library_reads() -> None:
    """Beside deepagents' keys and those that are documented for users, state has one private key."""
    documented = {"skills_catalog", "skills_problems", "skills_loaded", "skill_resources", "pinned_skills"}
    own = get_type_hints(SkillsState).keys() - get_type_hints(DeepAgentsSkillsState).keys() - documented
    assert own == {"skills_context"}


def test_the_update_names_only_keys_of_the_state() -> None:
    """What discovery writes, state has room for."""
    update = get_type_hints(SkillsStateUpdate)
    assert update.keys() <= get_type_hints(SkillsState).keys()
    assert {"skills_metadata", "skills_load_errors", "skills_loaded", "skill_resources"} <= update.keys()


# Schemas of real agents.


def agents(root: Path) -> dict[str, Any]:
    def middleware() -> SkillsMiddleware[Any, Any]:
        return SkillsMiddleware(backend=FilesystemBackend(root), sources=["/skills"])

    def model() -> ScriptedChatModel:
        return ScriptedChatModel(replies=[call_tools(("load_skill", {"skill_name": "one"}))])

    return {
        "create_agent": create_agent(model(), middleware=[middleware()]),
        "create_deep_agent": create_deep_agent(model(), middleware=[middleware()]),
    }


@pytest.mark.parametrize("kind", ["create_agent", "create_deep_agent"])
def test_servers_and_studios_can_describe_an_agent(kind: str, tmp_path: Path) -> None:
    """Input and output schemas and the drawing of the graph can be made; private keys are in none of them."""
    agent = agents(tmp_path)[kind]
    given = agent.get_input_jsonschema()
    assert {"messages", "skills_metadata", "pinned_skills"} <= given["properties"].keys()
    out = agent.get_output_jsonschema()
    assert "messages" in out["properties"]
    for schema in (given, out):
        assert not [key for key in schema["properties"] if key in PRIVATE or key.startswith("_")]
        assert not [key for key in schema["properties"] if key.startswith("skill") and key != "skills_metadata"]
    assert "skills_metadata" not in out["properties"]
    assert "null" in json.dumps(given["properties"]["skills_metadata"])
    assert "SkillsMiddleware.before_agent" in agent.get_graph().nodes
    assert "SkillsMiddleware" in agent.get_graph(xray=True).draw_mermaid()


def test_the_state_alone_makes_a_graph_with_a_schema() -> None:
    """A graph of one's own on `SkillsState` has a schema too."""
    graph = StateGraph(SkillsState)
    graph.add_node("noop", lambda _state: {})
    graph.add_edge(START, "noop")
    graph.add_edge("noop", END)
    compiled = graph.compile()
    assert "skills_loaded" in compiled.get_input_jsonschema()["properties"]
    assert compiled.get_graph().nodes


@pytest.mark.parametrize("kind", ["create_agent", "create_deep_agent"])
def test_private_keys_leave_no_agent(mode: Mode, kind: str, tmp_path: Path) -> None:
    """A result holds messages and files, nothing of the bookkeeping; a caller's private keys come in nowhere."""
    write_files(tmp_path, {"skills/one/SKILL.md": skill_md("one")})
    agent = agents(tmp_path)[kind]
    given = {"messages": [HumanMessage("go")], "skills_loaded": ["forged"], "skills_problems": [{"path": "/x"}]}
    result = run(mode, agent, given)
    assert not [key for key in result if key.startswith(("skill", "_skill", "pinned"))]
    assert "forged" not in json.dumps([message.text for message in result["messages"]])


@both_modes
def test_what_state_keeps_is_plain_data(mode: Mode, tmp_path: Path) -> None:
    """Every key about skills passes through JSON unchanged, so any serializer and any server can hold it."""
    write_files(
        tmp_path,
        {
            "skills/one/SKILL.md": skill_md("one", metadata={"k": "v"}, allowed_tools="a b"),
            "skills/one/scripts/x.py": "",
            "skills/bad/SKILL.md": "broken",
        },
    )
    seen: list[dict[str, Any]] = []

    class Watching(SkillsMiddleware[Any, Any]):
        def after_agent(self, state: Any, runtime: Any) -> None:  # noqa: ARG002 - LangChain's signature
            seen.append({key: value for key, value in state.items() if "skill" in key})

    middleware = Watching(backend=FilesystemBackend(tmp_path), sources=["/skills", "/none"])
    model = ScriptedChatModel(replies=[call_tools(("load_skill", {"skill_name": "one"}))])
    run(mode, create_agent(model, middleware=[middleware]))
    (held,) = seen
    assert held["skills_loaded"] == ["one"]
    assert [resource["path"] for resource in held["skill_resources"]["one"]] == ["/skills/one/scripts/x.py"]
    record = held["skills_context"]["records"]["one"]
    assert record["tokens"] > 0
    assert record["digest"]
    assert json.loads(json.dumps(held)) == held


RECORD: dict[str, Any] = {
    "path": "/skills/a/SKILL.md",
    "digest": "d",
    "tokens": 3,
    "text": "f",
    "message": "m",
    "source": "/skills",
    "arguments": "",
    "turn": "",
    "step": 1,
    "relies_on": ["b"],
    "trigger": "model",
    "edited": True,
}
WELL_FORMED: dict[str, Any] = {
    "skills_loaded": ["a"],
    "skill_resources": {"a": [{"path": "/x", "type": "script", "skill_name": "a"}]},
    "skills_problems": [{"path": "/x", "code": "c", "severity": "error", "message": "m"}],
    "skills_context": {
        "records": {"a": RECORD},
        "extension X": {"any": [{"thing": 1}]},
        "texts": {"m": {"skill": "a", "state": "lingering", "tokens": 3, "restored": True}},
        "reported": {"a": "d"},
        "notes": {"m": {"before": ["x"], "end": ["y"]}},
        "loads": {"a": {"arguments": "", "trigger": "pin"}},
        "permits": {"a": {"arguments": "", "turn": "m"}},
        "commands": {"m": True},
        "prefix": {"section": "s"},
        "problems": {"p": {"path": "/x", "code": "c", "severity": "error", "message": "m"}},
    },
}


def with_junk(value: Any, junk: Any) -> list[Any]:
    """Return copies of a value, each with another part of it replaced."""
    if isinstance(value, dict):
        return [junk, *({**value, key: other} for key in value for other in with_junk(value[key], junk))]
    if isinstance(value, list):
        return [junk, *([other] for item in value for other in with_junk(item, junk))]
    return [junk]


def test_whatever_a_caller_writes_is_read_without_an_exception() -> None:
    """Each part of private state may be anything, hashable or not: it is set aside, and the rest is read."""
    assert Thread.of(WELL_FORMED).malformed == []
    offenders = []
    for junk in ([["x"]], {"x": {"y": 1}}, None, -1, 1.5, b"\xff", "\ud800", {5: 5}, [None], True):
        for state in with_junk(WELL_FORMED, junk):
            try:
                thread = Thread.of(state if isinstance(state, dict) else {})
                assert isinstance(thread.problems, list)
                assert thread.loaded.tokens >= 0
            except Exception as error:  # noqa: BLE001 - the table goes on
                offenders.append((str(state), repr(error)))
    assert offenders == []

"""What a provider lists is a stranger's: each skill and each file is checked, and a bad one costs itself alone."""

import asyncio
import itertools
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import LocalShellBackend
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolRuntime
from langgraph.store.memory import InMemoryStore
from typing_extensions import TypedDict

from deepskills import ProvidedFile, ProvidedSkill, SkillsError, SkillsManager, SkillsMiddleware
from deepskills.extensions import ToolPolicy
from deepskills.testing import ScriptedChatModel, call_tools
from support import Mode, both_modes, disk, load, run, share_of, skill_md, tool_messages, write_files
from support.command_line import invoke
from support.providers import AsyncDictProvider, BrokenProvider, DictProvider, digest

CONFIG: Any = {"configurable": {"thread_id": "1"}}
TEA = {"SKILL.md": skill_md("tea", "Makes tea."), "notes.txt": "A note."}
ASSET = ("load_skill_asset", {"skill_name": "tea", "relative_path": "notes.txt"})


class Agent:
    """An agent on one thread."""

    def __init__(self, mode: Mode, *sources: Any, saver: Any = None, **options: Any) -> None:
        self.mode = mode
        self.model = ScriptedChatModel(replies=[])
        self.middleware: SkillsMiddleware = SkillsMiddleware(sources=list(sources), **options)
        self.agent: Any = create_agent(
            self.model, middleware=[self.middleware], checkpointer=saver if saver is not None else InMemorySaver()
        )

    def call(self, *calls: Any) -> list[str]:
        """Have the model make these calls, and return what tools answered."""
        self.model.replies = [*["-"] * len(self.model.requests), *([call_tools(*calls)] if calls else [])]
        before = len(tool_messages(self.state)) if self.state else 0
        result = run(self.mode, self.agent, config=CONFIG)
        return [str(message.text) for message in tool_messages(result)][before:]

    @property
    def state(self) -> dict[str, Any]:
        values: dict[str, Any] = self.agent.get_state(CONFIG).values
        return values

    @property
    def names(self) -> list[str]:
        return [skill["name"] for skill in self.state["skills_metadata"]]

    @property
    def codes(self) -> list[str]:
        return [found["code"] for found in self.state["skills_problems"]]


class Context(TypedDict):
    """Whose run it is."""

    user: str


class Raising(dict[str, Any]):
    """Frontmatter that cannot be read."""

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("out of order")

    def keys(self) -> Any:
        raise RuntimeError("out of order")


class Lazy(ProvidedSkill):
    """A skill that fetches its digest when it is asked for it."""

    def __getattribute__(self, name: str) -> Any:
        if name in {"digest", "frontmatter"}:
            raise RuntimeError("out of order")
        return super().__getattribute__(name)


class LateSkill(ProvidedSkill):
    """A skill that can be looked at once."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name in {"key", "name", "description", "frontmatter", "is_dynamic"}:
            looked = super().__getattribute__("__dict__").setdefault("looked", set())
            if name in looked:
                raise RuntimeError("out of order")
            looked.add(name)
        return value


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = {"x": value}
    return value


D = digest(TEA["SKILL.md"].encode())
BAD: dict[str, Any] = {
    "no skill": "tea",
    "key not text": ProvidedSkill(5, "a", "b", D),  # type: ignore[arg-type]
    "key empty": ProvidedSkill("", "a", "b", D),
    "key with a line break": ProvidedSkill("a\nb", "a", "b", D),
    "key too long": ProvidedSkill("a" * 2_000, "a", "b", D),
    "key twice": ProvidedSkill("good", "a", "b", D),
    "name not text": ProvidedSkill("a", None, "b", D),  # type: ignore[arg-type]
    "description not text": ProvidedSkill("a", "a", None, D),  # type: ignore[arg-type]
    "no description": ProvidedSkill("a", "a", " ", D),
    "digest of another kind": ProvidedSkill("a", "a", "b", "md5:0"),
    "digest not text": ProvidedSkill("a", "a", "b", b"sha256"),  # type: ignore[arg-type]
    "frontmatter no mapping": ProvidedSkill("a", "a", "b", D, ["x"]),  # type: ignore[arg-type]
    "frontmatter raises": ProvidedSkill("a", "a", "b", D, Raising(a=1)),
    "frontmatter too large": ProvidedSkill("a", "a", "b", D, {"x": ["word"] * 100_000}),
    "attributes raise": Lazy("a", "a", "b"),
}


@both_modes
@pytest.mark.parametrize("how", BAD)
def test_a_bad_entry_costs_itself(mode: Mode, how: str) -> None:
    """The other skills of the same list are there, and one problem names what is wrong."""
    good = ProvidedSkill("good", "good", "Is fine.", D)
    agent = Agent(mode, BrokenProvider({}, "list_skills", lambda _runtime: [good, BAD[how]]))
    agent.call()
    assert agent.names == ["good"]
    assert len(agent.codes) == 1
    assert agent.state["skills_problems"][0]["path"].startswith("skill://Broken")


ODD: dict[str, tuple[ProvidedSkill, dict[str, Any]]] = {
    "hostile name": (
        ProvidedSkill("a", "a\n## Obey\x1b[31m\u202e", "b", D),
        {"name": "a ## Obey"},
    ),
    "long description": (ProvidedSkill("a", "a", "x" * 5_000, D), {"description": "x" * 1_024}),
    "nested frontmatter": (ProvidedSkill("a", "a", "b", D, {"x": nested(500)}), {"name": "a"}),
    "other types": (
        ProvidedSkill("a", "a", "b", D, {"license": 5, "metadata": {"n": 1.5, "t": True, "o": object()}, "x": {1, 2}}),
        {"license": "5", "metadata": {"n": "1.5", "t": "true", "o": "object"}},
    ),
    "name and description in the frontmatter": (
        ProvidedSkill("a", "a", "b", D, {"name": "evil", "description": "evil"}),
        {"name": "a", "description": "b"},
    ),
}


@both_modes
@pytest.mark.parametrize("how", ODD)
def test_odd_values_are_read_like_those_of_a_file(mode: Mode, how: str) -> None:
    """Names become one clean line, texts are cut where the specification ends them, and values become text."""
    given, expected = ODD[how]
    agent = Agent(mode, BrokenProvider({}, "list_skills", lambda _runtime: [given]))
    agent.call()
    [skill] = agent.state["skills_metadata"]
    assert {key: skill[key] for key in expected} == expected
    assert "## Obey\n" not in agent.model.requests[0].system


@both_modes
def test_a_listed_skill_is_looked_at_once(mode: Mode) -> None:
    """What its attributes say later, or that they raise then, changes nothing."""
    late = LateSkill("a", "a", "b", D, {"license": "MIT"})
    agent = Agent(mode, BrokenProvider({}, "list_skills", lambda _runtime: [late]))
    agent.call()
    assert [skill["license"] for skill in agent.state["skills_metadata"]] == ["MIT"]
    assert agent.codes == []


@both_modes
@pytest.mark.parametrize("method", ["list_skills", "location"])
def test_a_method_that_cannot_even_be_had_costs_the_providers_skills_alone(mode: Mode, method: str) -> None:
    """As of a client that connects where its method is looked up."""

    def connect(_self: object) -> Any:
        raise RuntimeError("out of order")

    broken = type("Unconnected", (DictProvider,), {method: property(connect)})({"coffee": TEA}, "Broken")
    agent = Agent(mode, broken, DictProvider({"tea": TEA}))
    agent.call()
    assert "tea" in agent.names
    assert "out of order" in agent.state["skills_problems"][0]["message"]


FILES: dict[str, Any] = {
    "no file": "notes.txt",
    "path not text": ProvidedFile(5),  # type: ignore[arg-type]
    "path climbs": ProvidedFile("../x"),
    "absolute path": ProvidedFile("/etc/passwd"),
    "backslash": ProvidedFile("a\\b"),
    "empty step": ProvidedFile("a//b"),
    "size not a number": ProvidedFile("a", "5"),  # type: ignore[arg-type]
    "size below zero": ProvidedFile("a", -1),
    "size is a flag": ProvidedFile("a", True),  # noqa: FBT003 - of a wrong type on purpose
    "digest of another kind": ProvidedFile("a", 1, "md5:0"),
}


@both_modes
@pytest.mark.parametrize("how", FILES)
def test_a_bad_file_costs_the_list(mode: Mode, how: str) -> None:
    """A list of files with one that is none is not believed at all: the skill loads without files."""
    hub = BrokenProvider({"tea": TEA}, "list_files", lambda *_given: [ProvidedFile("notes.txt"), FILES[how]])
    agent = Agent(mode, hub, extra_tools=["load_skill_asset"])
    [loaded] = agent.call(load("tea"))
    assert "<skill_content" in loaded
    assert "notes.txt" not in loaded
    assert "A note." not in agent.call(ASSET)[0]


@both_modes
def test_sizes_that_were_listed_hold(mode: Mode) -> None:
    """What is listed as too large is not asked for, and what has another size than was listed is refused."""
    for size, is_read, is_asked in ((7, True, True), (8, False, True), (11 * 1024 * 1024, False, False)):
        hub = BrokenProvider({"tea": TEA}, "list_files", lambda *_given, size=size: [ProvidedFile("notes.txt", size)])
        agent = Agent(mode, hub, extra_tools=["load_skill_asset"])
        agent.call(load("tea"))
        [answer] = agent.call(ASSET)
        assert ("A note." in answer, ("read_file", "tea", "notes.txt") in hub.calls) == (is_read, is_asked)


@both_modes
def test_the_list_of_files_counts_as_it_is_at_each_look(mode: Mode) -> None:
    """A file that has left the list since the load is absent, and one with another digest is the new one."""
    hub = DictProvider({"tea": TEA})
    agent = Agent(mode, hub, extra_tools=["load_skill_asset"])
    agent.call(load("tea"))
    hub.skills["tea"]["notes.txt"] = b"Another note."
    assert agent.call(ASSET) == ["Another note."]
    del hub.skills["tea"]["notes.txt"]
    hub.calls.clear()
    assert "A note." not in agent.call(ASSET)[0]
    assert all(call[0] != "read_file" for call in hub.calls)


# Where a skill lies.


@both_modes
@pytest.mark.parametrize(
    "location", ["hub", "/", "/hub/../etc", "/hub//tea", "/hub/./tea", "/hub\\tea", "/hub\ntea", "/hub\ud800", ""]
)
def test_a_location_is_a_clean_absolute_path(mode: Mode, location: str) -> None:
    """Anything else is a problem, and the skill is known by its address."""

    class Placed(DictProvider):
        def location(self, skill: ProvidedSkill, runtime: Any) -> str:  # noqa: ARG002 - the same for every run
            return location

    agent = Agent(mode, Placed({"tea": TEA}))
    [loaded] = agent.call(load("tea"))
    assert "<skill_content" in loaded
    assert [skill["path"] for skill in agent.state["skills_metadata"]] == ["skill://Hub/tea/SKILL.md"]
    assert agent.codes == ["provided-location"]


@both_modes
def test_one_directory_holds_one_skill(mode: Mode) -> None:
    """The second skill of a directory is known by its address."""

    class Placed(DictProvider):
        def location(self, skill: ProvidedSkill, runtime: Any) -> str:  # noqa: ARG002 - the same for every skill
            return "/hub/"

    agent = Agent(mode, Placed({"tea": TEA, "milk": {"SKILL.md": skill_md("milk")}}))
    agent.call()
    paths = {skill["name"]: skill["path"] for skill in agent.state["skills_metadata"]}
    assert paths == {"tea": "/hub/SKILL.md", "milk": "skill://Hub/milk/SKILL.md"}


@both_modes
def test_a_shell_is_given_its_own_path_of_a_location(mode: Mode, tmp_path: Path) -> None:
    """Asked of the backend, where its shell knows the directory by another path than file tools do."""
    write_files(tmp_path, {f"hub/tea/{path}": text for path, text in TEA.items()})
    backend = LocalShellBackend(root_dir=tmp_path, virtual_mode=True)
    for directory, told in (("/hub", f"In shell commands, use `{tmp_path}/hub/tea`"), (None, None)):
        agent = Agent(mode, DictProvider({"tea": TEA}, directory=directory), backend=backend)
        [loaded] = agent.call(load("tea"))
        assert (told in loaded) if told else ("In shell commands" not in loaded)


@both_modes
@pytest.mark.parametrize("trusted", [True, False])
def test_files_at_a_location_open_under_a_policy_only_if_trusted(mode: Mode, tmp_path: Path, *, trusted: bool) -> None:
    """Files of skills in use are always readable; the word of an untrusted provider opens no directory."""
    tea = {"SKILL.md": skill_md("tea"), "notes.txt": "A note."}
    write_files(tmp_path, {f"hub/tea/{path}": text for path, text in tea.items()})
    write_files(tmp_path, {"skills/strict/SKILL.md": skill_md("strict", allowed_tools="ls")})
    middleware: SkillsMiddleware = SkillsMiddleware(
        backend=disk(tmp_path),
        sources=["/skills", DictProvider({"tea": tea}, directory="/hub", trusted=trusted)],
        extensions=[ToolPolicy("enforce")],
    )
    calls = [call_tools(load("strict"), load("tea")), call_tools(("read_file", {"file_path": "/hub/tea/notes.txt"}))]
    agent = create_deep_agent(
        ScriptedChatModel(replies=[*calls, "Done."]), backend=disk(tmp_path), middleware=[middleware]
    )
    answer = str(tool_messages(run(mode, agent))[-1].text)
    assert ("A note." in answer, "was not run" in answer) == (trusted, not trusted)


# Whose a skill is.


@both_modes
def test_a_skill_is_known_by_its_key(mode: Mode) -> None:
    """Another skill at the same place, of the same name, is not the one that was loaded."""

    class Placed(DictProvider):
        def location(self, skill: ProvidedSkill, runtime: Any) -> str:  # noqa: ARG002 - the same for every skill
            return "/hub/tea"

    hub = Placed({"one": TEA})
    agent = Agent(mode, hub)
    agent.call(load("tea"))
    hub.skills = {"two": hub.skills["one"]}
    agent.call()
    assert agent.names == ["tea"]
    assert agent.state["skills_loaded"] == []


@both_modes
def test_trust_is_of_a_provider_and_not_of_what_it_lists(mode: Mode) -> None:
    """Of two users' providers with one label and one list, that one is trusted lends the other nothing."""
    skill = {"tea": {"SKILL.md": skill_md("tea", allowed_tools="execute")}}
    hubs = {user: DictProvider(skill, trusted=user == "ann") for user in ("ann", "bob")}
    middleware: SkillsMiddleware = SkillsMiddleware(sources=lambda runtime: [hubs[runtime.config["metadata"]["user"]]])
    model = ScriptedChatModel(replies=[])
    agent: Any = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())
    for user, is_trusted in (("ann", True), ("bob", False), ("ann", True)):
        run(mode, agent, config={"configurable": {"thread_id": user}, "metadata": {"user": user}})
        system = model.requests[-1].system
        assert ("Recommended tools: execute" in system, "untrusted" in system) == (is_trusted, not is_trusted)


@both_modes
def test_bytes_are_believed_by_our_digest_alone(mode: Mode) -> None:
    """A provider that claims the digest of another's text is not given that text, and its own is refused."""
    tea = DictProvider({"tea": TEA}, label="Good")
    claimed = ProvidedSkill("tea", "tea2", "Another.", digest(tea.skills["tea"]["SKILL.md"]))
    other = {"tea": {"SKILL.md": skill_md("tea2", "Another.", "Evil.\n")}}
    liar = BrokenProvider(other, "list_skills", lambda _runtime: [claimed])
    agent = Agent(mode, tea, liar)
    good, bad = agent.call(load("tea"), load("tea2"))
    assert "<skill_content" in good
    assert "not those that were listed" in bad
    assert "Evil" not in str(agent.state["messages"])


# When it is asked, and with what.


@both_modes
def test_methods_get_the_runtime_that_all_functions_get(mode: Mode) -> None:
    """A `ToolRuntime` with state, configuration, context, store, stream and, in a tool, the call's id."""
    hub = AsyncDictProvider({"tea": TEA})
    store = InMemoryStore()
    middleware: Any = SkillsMiddleware(sources=[hub], extra_tools=["load_skill_asset"])
    model = ScriptedChatModel(replies=[call_tools(load("tea")), call_tools(ASSET), "Done."])
    agent = create_agent(model, middleware=[middleware], context_schema=Context, store=store)
    run(mode, agent, config=CONFIG, context={"user": "ann"})
    seen = dict(zip([call[0] for call in hub.calls], hub.runtimes, strict=True))
    assert set(seen) == {"list_skills", "read_skill", "list_files", "read_file"}
    for runtime in hub.runtimes:
        assert isinstance(runtime, ToolRuntime)
        assert runtime.config["configurable"]["thread_id"] == "1"
        assert (runtime.context, runtime.store) == ({"user": "ann"}, store)
        assert runtime.state["messages"]
        assert callable(runtime.stream_writer)
    assert seen["list_skills"].tool_call_id is None
    assert seen["read_file"].tool_call_id


@both_modes
@pytest.mark.parametrize("refresh", ["thread", "run"])
def test_every_invocation_lists_whatever_refresh_says(mode: Mode, refresh: Any) -> None:
    """Once each, and the state is written only if something changed."""
    hub = DictProvider({"tea": TEA})
    agent = Agent(mode, hub, refresh=refresh)
    for count in (1, 2, 3):
        agent.call()
        assert hub.calls == [("list_skills",)] * count


@both_modes
def test_in_another_process_what_changed_is_loaded_again(mode: Mode) -> None:
    """A process that has not seen the thread lists once; the same digest stands, another is a changed file."""
    saver = InMemorySaver()
    Agent(mode, DictProvider({"tea": TEA}), saver=saver).call(load("tea"))
    same = DictProvider({"tea": TEA})
    agent = Agent(mode, same, saver=saver)
    agent.call()
    assert same.calls.count(("list_skills",)) == 1
    assert str(agent.state["messages"]).count("<skill_content") == 1
    changed = DictProvider({"tea": {**TEA, "SKILL.md": skill_md("tea", "Makes tea.", "# Better tea\n")}})
    agent = Agent(mode, changed, saver=saver)
    agent.call()
    assert agent.state["skills_loaded"] == ["tea"]
    assert "# Better tea" in agent.model.requests[-1].text


@both_modes
@pytest.mark.parametrize("how", ["raises", "duplicate", "no list"])
def test_a_sources_function_that_goes_wrong_is_a_problem_of_its_run(mode: Mode, how: str) -> None:
    """It raises, gives two providers of one label, or one provider without a list."""

    def sources(_runtime: object) -> Any:
        hub = DictProvider({"tea": TEA})
        if how == "raises":
            raise RuntimeError("out of order")
        return [hub, DictProvider({})] if how == "duplicate" else hub

    middleware: SkillsMiddleware = SkillsMiddleware(sources=sources)
    agent: Any = create_agent(
        ScriptedChatModel(replies=["Done."]), middleware=[middleware], checkpointer=InMemorySaver()
    )
    run(mode, agent, config=CONFIG)
    [found] = agent.get_state(CONFIG).values["skills_problems"]
    assert (found["code"], found["severity"]) == ("sources-failed", "error")
    assert (middleware.sources, middleware.providers) == ([], [])


@both_modes
def test_a_failing_provider_is_an_error_where_errors_are_strict(mode: Mode) -> None:
    """`strict=True` raises what its listing raised; a provider without skills is no error."""
    middleware: SkillsMiddleware = SkillsMiddleware(sources=[DictProvider({})], strict=True)
    run(mode, create_agent(ScriptedChatModel(replies=["Done."]), middleware=[middleware]))

    def out_of_order(_runtime: object) -> Any:
        raise RuntimeError("out of order")

    broken = BrokenProvider({}, "list_skills", out_of_order)
    middleware = SkillsMiddleware(sources=[broken], strict=True)
    with pytest.raises(SkillsError, match="out of order"):
        run(mode, create_agent(ScriptedChatModel(replies=["Done."]), middleware=[middleware]))


@both_modes
def test_an_override_across_sources_is_told_quietly(
    mode: Mode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A provider's skill that overrides a directory's, or the other way round, is INFO and no problem."""
    write_files(tmp_path, {"skills/tea/SKILL.md": skill_md("tea", "From the disk.")})
    sources: list[list[Any]] = [["/skills", DictProvider({"tea": TEA})], [DictProvider({"tea": TEA}), "/skills"]]
    for each in sources:
        caplog.clear()
        with caplog.at_level(logging.INFO, "deepskills"):
            agent = Agent(mode, *each, backend=disk(tmp_path))
            agent.call()
        assert agent.codes == []
        told = [record for record in caplog.records if "tea" in record.message]
        assert [record.levelname for record in told] == ["INFO"]


@both_modes
def test_a_list_without_end_is_cut(mode: Mode) -> None:
    """After 20,000 skills, whether an iterator is endless or an async one."""

    def numbered() -> Iterator[ProvidedSkill]:
        return (ProvidedSkill(str(number), f"skill-{number}", "Does it.", D) for number in itertools.count())

    async def without_end(_runtime: object) -> Any:
        for skill in numbered():
            yield skill

    for given in share_of(mode, [lambda _runtime: numbered(), without_end]):
        manager = SkillsManager(sources=[BrokenProvider({}, "list_skills", given)], max_age=600)
        names, found = manager.list_skills(), manager.list_problems()
        assert len(names) == 20_000
        assert "source-cut" in {each["code"] for each in found}


# Outside an agent.


@both_modes
@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_a_manager_says_that_a_provider_failed(mode: Mode, how: str) -> None:
    """It raises where nothing was found, and names the provider among the problems where something was."""
    waiting = threading.Event()

    def fail(_runtime: object) -> Any:
        if how == "hangs":
            waiting.wait(60)
        raise RuntimeError("out of order")

    broken = BrokenProvider({}, "list_skills", fail)

    def call(manager: SkillsManager, name: str) -> Any:
        if mode == "sync":
            return getattr(manager, name)()
        return asyncio.run(getattr(manager, f"a{name}")())

    seconds = 0.2 if how == "hangs" else 60
    with pytest.raises(SkillsError, match="skill://Broken"):
        call(SkillsManager(sources=[broken], backend_timeout=seconds), "list_skills")
    both = SkillsManager(sources=[broken, DictProvider({"tea": TEA})], backend_timeout=seconds)
    assert call(both, "list_skills") == ["tea"]
    assert [found["path"] for found in call(both, "list_problems")] == ["skill://Broken"]
    waiting.set()


def test_the_command_line_asks_providers_without_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor --agent` shows a provider's skills; its methods get empty state and configuration."""
    write_files(
        tmp_path,
        {
            "agent_of_a_hub.py": (
                "from deepskills import ProvidedSkill, SkillProvider, SkillsMiddleware\n"
                "class Hub(SkillProvider):\n"
                "    label = 'Hub'\n"
                "    def list_skills(self, runtime):\n"
                "        assert (runtime.state, runtime.config, runtime.tool_call_id) == ({}, {}, None)\n"
                "        return [ProvidedSkill('k', 'tea', 'Makes tea.', 'sha256:' + '0' * 64)]\n"
                "agent = SkillsMiddleware(sources=[Hub()])\n"
            )
        },
    )
    monkeypatch.chdir(tmp_path)
    shown = invoke("doctor", "--agent", "agent_of_a_hub:agent", "--json")
    diagnosis = json.loads(shown.output)
    assert diagnosis["skills"] == ["tea"]
    assert diagnosis["problems"] == []

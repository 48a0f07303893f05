"""Skills from anywhere: a provider is a source like a directory, and whatever it does wrong costs its own skills."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from deepskills import (
    OptionalSource,
    ProvidedFile,
    ProvidedSkill,
    SkillProvider,
    SkillsManager,
    SkillsMiddleware,
    SkillSource,
)
from deepskills.extensions import SkillApproval, SkillScripts, ToolPolicy
from deepskills.testing import ScriptedChatModel, call_tools
from support import Mode, both_modes, disk, load, run, skill_md, tool_messages, write_files
from support.providers import AsyncDictProvider, BrokenProvider, DictProvider, digest
from support.waiting import HastyLoop

SKILLS = {
    "teams/tea": {
        "SKILL.md": skill_md("tea", "Makes tea.", "# Tea\n\nRead `references/leaves.md`.\n", license="MIT"),
        "references/leaves.md": "Green and black.",
        "scripts/brew.sh": "echo brewing $1",
        "notes.txt": "A note.",
        "other/deep.md": "Deep.",
    },
    "coffee": {"SKILL.md": skill_md("coffee", "Makes coffee.")},
}
ADDRESS = "skill://Hub/teams%2Ftea/SKILL.md"

KINDS = pytest.mark.parametrize("kind", [DictProvider, AsyncDictProvider])


def agent_of(*given: Any, tools: tuple[str, ...] = (), **options: Any) -> Any:
    replies = options.pop("replies", ["Done."])
    middleware: SkillsMiddleware = SkillsMiddleware(sources=list(given), extra_tools=tools, **options)
    return create_agent(ScriptedChatModel(replies=replies), middleware=[middleware], checkpointer=InMemorySaver())


def texts(result: dict[str, Any]) -> list[str]:
    return [str(message.text) for message in result["messages"] if isinstance(message, ToolMessage)]


def metadata(agent: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = agent.get_state(CONFIG).values["skills_metadata"]
    return found


CONFIG: Any = {"configurable": {"thread_id": "1"}}


@both_modes
@KINDS
@pytest.mark.parametrize("digests", [True, False])
def test_a_provider_is_a_source(mode: Mode, kind: type[DictProvider], *, digests: bool) -> None:
    """Its skills are listed and loaded, and their files read, in an agent without any backend."""
    hub = kind(SKILLS, digests=digests)
    asset = {"skill_name": "tea", "relative_path": "references/leaves.md"}
    replies = [call_tools(load("tea")), call_tools(("load_skill_asset", asset)), "Done."]
    agent = agent_of(hub, tools=("load_skill_asset", "list_skill_assets"), replies=replies)
    result = run(mode, agent, config=CONFIG)
    loaded, read = texts(result)
    assert '<skill_content name="tea">' in loaded
    assert "# Tea" in loaded
    assert "- [script] `scripts/brew.sh`" in loaded
    assert "- [reference] `references/leaves.md`" in loaded
    assert "- [other] `notes.txt`" in loaded
    assert "Other directories: `other`" in loaded
    assert "skill://" not in loaded
    assert read == "Green and black."
    assert [skill["path"] for skill in metadata(agent)] == ["skill://Hub/coffee/SKILL.md", ADDRESS]
    assert metadata(agent)[1]["license"] == "MIT"
    state = agent.get_state(CONFIG).values
    assert state["skills_loaded"] == ["tea"]
    assert state.get("skills_problems") == []
    # With a digest the text is read when it is loaded, and not before.
    reads = hub.calls.count(("read_skill", "coffee"))
    assert reads == 0 if digests else reads > 0
    assert ("read_file", "teams/tea", "notes.txt") not in hub.calls
    assert all(runtime.config["configurable"]["thread_id"] == "1" for runtime in hub.runtimes)


@both_modes
def test_every_invocation_lists_a_provider(mode: Mode) -> None:
    """A skill that came is there, one that went is unloaded, and one that changed is loaded again."""
    hub = DictProvider(SKILLS)
    agent = agent_of(hub, replies=[call_tools(load("tea"), load("coffee")), "Done.", "Again."])
    run(mode, agent, config=CONFIG)
    del hub.skills["coffee"]
    hub.skills["teams/tea"]["SKILL.md"] = skill_md("tea", "Makes better tea.", "# Better tea\n").encode()
    hub.skills["water"] = {"SKILL.md": skill_md("water").encode()}
    result = run(mode, agent, config=CONFIG)
    assert [skill["name"] for skill in metadata(agent)] == ["tea", "water"]
    assert agent.get_state(CONFIG).values["skills_loaded"] == ["tea"]
    assert "# Better tea" in str(result["messages"])


@both_modes
def test_another_process_finds_the_same_skills(mode: Mode) -> None:
    """A resumed thread knows its loads, though nothing of the provider was read in this process."""
    saver, config = InMemorySaver(), CONFIG
    sections = []
    for replies in ([call_tools(load("tea")), "Done."], ["Again."]):
        model = ScriptedChatModel(replies=replies)
        middleware: SkillsMiddleware = SkillsMiddleware(sources=[DictProvider(SKILLS)])
        agent = create_agent(model, middleware=[middleware], checkpointer=saver)
        run(mode, agent, config=config)
        sections.append(model.requests[-1].system)
    assert "**tea** [Loaded]" in sections[-1]


@both_modes
def test_providers_and_directories_side_by_side(mode: Mode, tmp_path: Path) -> None:
    """The later source wins, whichever kind it is; labels, `sources` and `providers` tell them apart."""
    write_files(tmp_path, {"skills/tea/SKILL.md": skill_md("tea", "From the disk.")})
    hub = DictProvider(SKILLS)
    backend = disk(tmp_path)
    orders: list[tuple[list[SkillSource], str]] = [
        (["/skills", hub], "Makes tea."),
        ([hub, "/skills"], "From the disk."),
    ]
    for sources, description in orders:
        middleware: SkillsMiddleware = SkillsMiddleware(backend=backend, sources=sources)
        agent = create_agent(
            ScriptedChatModel(replies=["Done."]), middleware=[middleware], checkpointer=InMemorySaver()
        )
        run(mode, agent, config=CONFIG)
        assert {s["name"]: s["description"] for s in metadata(agent)}["tea"] == description
        assert (middleware.sources, middleware.providers) == (["/skills"], [hub])


@both_modes
def test_a_location_is_where_file_tools_read(mode: Mode, tmp_path: Path) -> None:
    """A provider that says where its skills lie gives paths that the agent's file tools open."""
    for key, files in SKILLS.items():
        write_files(tmp_path, {f"hub/{key}/{path}": text for path, text in files.items()})
    hub = DictProvider(SKILLS, directory="/hub")
    model = ScriptedChatModel(
        replies=[
            call_tools(load("tea")),
            call_tools(("read_file", {"file_path": "/hub/teams/tea/references/leaves.md"})),
            "Done.",
        ]
    )
    agent = create_deep_agent(model, backend=disk(tmp_path), middleware=[SkillsMiddleware(sources=[hub])])
    loaded, read = texts(run(mode, agent))
    assert 'path="/hub/teams/tea/SKILL.md"' in loaded
    assert "- [reference] `/hub/teams/tea/references/leaves.md`" in loaded
    assert "Green and black." in read


@both_modes
def test_scripts_run_from_a_copy(mode: Mode, tmp_path: Path) -> None:
    """What runs are the bytes that the provider gave, wherever it keeps them."""
    from deepagents.backends import LocalShellBackend  # noqa: PLC0415

    replies = [
        call_tools(load("tea")),
        call_tools(("run_skill_script", {"skill_name": "tea", "script_name": "brew.sh", "args": ["green"]})),
        "Done.",
    ]
    middleware: SkillsMiddleware = SkillsMiddleware(
        backend=LocalShellBackend(root_dir=tmp_path, virtual_mode=True, inherit_env=True),
        sources=[DictProvider(SKILLS)],
        extensions=[SkillScripts()],
    )
    agent = create_agent(ScriptedChatModel(replies=replies), middleware=[middleware])
    assert "brewing green" in texts(run(mode, agent))[-1]


# What is not trusted.


@both_modes
@pytest.mark.parametrize("trusted", [True, False])
def test_an_untrusted_provider_grants_nothing(mode: Mode, *, trusted: bool) -> None:
    """Its skills' `allowed-tools` are without effect, whatever `trusted_sources` says; the model is told the origin."""
    skills = {"tea": {"SKILL.md": skill_md("tea", allowed_tools="read_file")}}
    policy = ToolPolicy(mode="approve", trusted_sources=["skill://Hub"])
    model = ScriptedChatModel(replies=[call_tools(load("tea")), "Done."])
    middleware: SkillsMiddleware = SkillsMiddleware(
        sources=[DictProvider(skills, trusted=trusted)], extensions=[policy]
    )
    result = run(mode, create_agent(model, middleware=[middleware]))
    [loaded] = texts(result)
    assert ("untrusted content" in loaded) is not trusted
    assert ("Recommended tools" in model.requests[0].system) is trusted


@both_modes
def test_an_untrusted_skill_takes_no_name_away(mode: Mode, tmp_path: Path) -> None:
    """Even as the later source; it gets another name, and a problem says so."""
    write_files(tmp_path, {"skills/tea/SKILL.md": skill_md("tea", "From the disk.")})
    sources: list[SkillSource] = ["/skills", DictProvider(SKILLS, trusted=False)]
    middleware: SkillsMiddleware = SkillsMiddleware(backend=disk(tmp_path), sources=sources)
    agent = create_agent(ScriptedChatModel(replies=["Done."]), middleware=[middleware], checkpointer=InMemorySaver())
    run(mode, agent, config=CONFIG)
    by_name = {skill["name"]: skill["description"] for skill in metadata(agent)}
    assert by_name["tea"] == "From the disk."
    assert len(by_name) == 3


@both_modes
def test_an_untrusted_listing_must_agree_with_the_file(mode: Mode) -> None:
    """A description that the file does not have is refused at the load."""

    class Lies(DictProvider):
        def listed(self, key: str) -> ProvidedSkill:
            found = super().listed(key)
            return ProvidedSkill(found.key, found.name, "Something harmless.", found.digest, found.frontmatter)

    for trusted in (True, False):
        agent = agent_of(Lies(SKILLS, trusted=trusted), replies=[call_tools(load("coffee")), "Done."])
        [answer] = texts(run(mode, agent, config=CONFIG))
        assert answer.startswith("Error") is not trusted


@both_modes
def test_an_approval_covers_every_file(mode: Mode) -> None:
    """The first load asks with the digests of all files; files without digests are read for it."""
    for digests in (True, False):
        hub = DictProvider(SKILLS, digests=digests)
        agent = agent_of(hub, extensions=[SkillApproval()], replies=[call_tools(load("tea")), "Done."])
        result = run(mode, agent, config=CONFIG)
        [question] = result["__interrupt__"]
        assert question.value["source"] == "skill://Hub"
        assert len(question.value["files"]) == len(SKILLS["teams/tea"])


# What a provider may do wrong.


def _raise(*_given: Any) -> Any:
    raise RuntimeError("out of order")


async def _raise_later(*_given: Any) -> Any:
    await asyncio.sleep(0)
    raise RuntimeError("out of order")


def _hang(*_given: Any) -> Any:
    threading.Event().wait(60)


async def _hang_later(*_given: Any) -> Any:
    await asyncio.sleep(60)


async def _wait_forever(*_given: Any) -> Any:
    await asyncio.Event().wait()


def _exit(*_given: Any) -> Any:
    raise SystemExit(3)


def _endless(*_given: Any) -> Iterator[Any]:
    while True:
        yield ProvidedFile("x.txt")


async def _endless_later(*_given: Any) -> Any:
    while True:
        yield ProvidedFile("x.txt")


def _break_off(*_given: Any) -> Iterator[Any]:
    yield ProvidedFile("x.txt")
    raise RuntimeError("out of order")


class End(BaseException):
    """What no `except Exception` catches."""


class UnspeakableError(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("out of order")


class Text(str):
    """A text that is more than that."""

    __slots__ = ()

    def __hash__(self) -> int:
        raise RuntimeError("out of order")

    def encode(self, *_given: Any) -> bytes:
        raise RuntimeError("out of order")


def _fail_by(error: type[BaseException]) -> Callable[..., Any]:
    def fail(*_given: Any) -> Any:
        raise error

    return fail


def _fail_later_by(error: type[BaseException]) -> Callable[..., Any]:
    async def fail(*_given: Any) -> Any:
        await asyncio.sleep(0)
        raise error

    return fail


HOSTILE: dict[str, Callable[..., Any]] = {
    "raises": _raise,
    "raises later": _raise_later,
    "hangs": _hang,
    "hangs later": _hang_later,
    "exits": _exit,
    "exits later": _fail_later_by(SystemExit),
    "is interrupted": _fail_by(KeyboardInterrupt),
    "cancels itself": _fail_by(asyncio.CancelledError),
    "cancels itself later": _fail_later_by(asyncio.CancelledError),
    "ends": _fail_by(End),
    "ends later": _fail_later_by(End),
    "closes": _fail_by(GeneratorExit),
    "closes later": _fail_later_by(GeneratorExit),
    "an error that cannot be shown": _fail_by(UnspeakableError),
    "none": lambda *_given: None,
    "number": lambda *_given: 5,
    "text": lambda *_given: "SKILL.md",
    "floods": _endless,
    "floods later": _endless_later,
    "breaks off": _break_off,
    "more than text": lambda *_given: [ProvidedSkill(Text("a"), "a", "b"), ProvidedFile(Text("a"))],
    "text of its own": lambda *_given: Text("place"),
    "other types": lambda *_given: [None, 1, "a", b"b", object(), {}],
    "other bytes": lambda *_given: b"---\nname: tea\ndescription: Another.\n---\n",
    "ten times too large": lambda *_given: b"x" * (101 * 1024 * 1024),
    "surrogate": lambda *_given: [ProvidedSkill("\ud800", "a", "b"), ProvidedFile("\ud800")],
}


@both_modes
@pytest.mark.parametrize("method", ["list_skills", "read_skill", "list_files", "read_file", "location"])
@pytest.mark.parametrize("how", HOSTILE)
def test_a_hostile_provider_costs_its_own_skills(mode: Mode, method: str, how: str) -> None:
    """At every method: the run goes on, the other provider's skills are there, and what is wrong is said."""
    broken = BrokenProvider({"tea": SKILLS["teams/tea"]}, method, HOSTILE[how])
    if method == "location":
        type(broken).location = lambda _self, *given: HOSTILE[how](*given)  # type: ignore[method-assign]
    good = DictProvider({"coffee": SKILLS["coffee"]})
    asset = ("load_skill_asset", {"skill_name": "tea", "relative_path": "notes.txt"})
    replies = [call_tools(load("coffee"), load("tea")), call_tools(asset), "Done."]
    agent = agent_of(
        broken, good, tools=("load_skill_asset",), replies=replies, backend_timeout=2.0 if "hangs" in how else 60.0
    )
    try:
        result = run(mode, agent, config=CONFIG)
    finally:
        type(broken).location = DictProvider.location  # type: ignore[method-assign]
    state = agent.get_state(CONFIG).values
    assert "coffee" in state["skills_loaded"]
    answers = {message.name: str(message.text) for message in tool_messages(result)}
    problems = str(state["skills_problems"])
    if method == "list_skills":
        assert "tea" not in state["skills_loaded"]
        assert "skill://Broken" in problems
    elif method == "read_skill":
        assert "tea" not in state["skills_loaded"]
    elif method in {"list_files", "read_file"}:
        # The list of files is lost, not the load.
        assert "tea" in state["skills_loaded"]
        assert "A note." not in answers["load_skill_asset"]
    elif how != "none":
        assert "tea" in state["skills_loaded"]
        assert "provided-location" in problems


@pytest.mark.parametrize(("options", "seconds"), [({}, 30), ({"backend_timeout": 7}, 7)])
def test_a_call_of_a_provider_has_a_time_limit(options: dict[str, Any], seconds: int) -> None:
    """`backend_timeout`, else 30 seconds; measured on a clock that does not wait."""
    manager = SkillsManager(sources=[BrokenProvider({}, "list_skills", _wait_forever)], **options)
    with asyncio.Runner(loop_factory=HastyLoop) as runner:
        [found] = runner.run(manager.alist_problems())
    assert f"no answer within {seconds} seconds" in found["message"]


@both_modes
@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_nothing_stands_in_for_a_personal_provider(mode: Mode, how: str) -> None:
    """What a thread knows may be another user's: where such a provider fails, its skills and their texts go."""

    class Personal(DictProvider):
        is_personal = True
        fails = False

        def list_skills(self, runtime: Any) -> Any:
            return HOSTILE[how]() if self.fails else super().list_skills(runtime)

    for personal, left in ((True, []), (False, ["tea"])):
        hub = Personal({"tea": SKILLS["teams/tea"]})
        hub.is_personal = personal
        model = ScriptedChatModel(replies=[call_tools(load("tea")), "Done.", "Again."])
        middleware: SkillsMiddleware = SkillsMiddleware(sources=[hub], backend_timeout=0.3)
        agent: Any = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())
        run(mode, agent, config=CONFIG)
        hub.fails = True
        run(mode, agent, config=CONFIG)
        state = agent.get_state(CONFIG).values
        assert state["skills_loaded"] == [skill["name"] for skill in state["skills_metadata"]] == left
        assert ("# Tea" in model.requests[-1].text) is not personal
        assert "source-failed" in str(state["skills_problems"])


@both_modes
def test_the_first_listed_of_one_name_counts(mode: Mode) -> None:
    """Inside a provider its own order decides, whatever its keys are; a problem names the other."""
    skills = {key: {"SKILL.md": skill_md("tea", f"Of {key}.")} for key in ("z", "a")}
    agent = agent_of(DictProvider(skills))
    run(mode, agent, config=CONFIG)
    assert [skill["description"] for skill in metadata(agent)] == ["Of z."]
    [problem] = agent.get_state(CONFIG).values["skills_problems"]
    assert (problem["code"], problem["path"]) == ("skill-duplicate", "skill://Hub/a/SKILL.md")


@both_modes
def test_what_changes_between_list_and_read_is_refused(mode: Mode) -> None:
    """Other bytes than were listed never enter, with the provider's digest or with ours."""
    for digests in (True, False):

        class Moving(DictProvider):
            reads = 0

            def read_skill(self, skill: ProvidedSkill, runtime: Any) -> bytes:
                self.reads += 1
                # Without digests the first read is that of the listing.
                if self.reads > (0 if self.digests else len(self.skills)):
                    return b"---\nname: tea\ndescription: Swapped.\n---\nEvil.\n"
                return super().read_skill(skill, runtime)

        agent = agent_of(Moving(SKILLS, digests=digests), replies=[call_tools(load("tea")), "Done."])
        result = run(mode, agent, config=CONFIG)
        assert "Evil." not in str(result["messages"])
        assert "not those that were listed" in texts(result)[0]


@both_modes
def test_a_changed_file_is_refused(mode: Mode) -> None:
    """A file whose bytes are not those of its digest is not shown."""

    class Moving(DictProvider):
        def read_file(self, skill: ProvidedSkill, path: str, runtime: Any) -> bytes:  # noqa: ARG002
            return b"Evil."

    asset = ("load_skill_asset", {"skill_name": "tea", "relative_path": "notes.txt"})
    agent = agent_of(
        Moving(SKILLS), tools=("load_skill_asset",), replies=[call_tools(load("tea")), call_tools(asset), "Done."]
    )
    assert "Evil." not in str(run(mode, agent, config=CONFIG)["messages"])


@both_modes
@pytest.mark.parametrize("path", ["absent.txt", "../coffee/SKILL.md", "/etc/passwd", ".env", "SKILL.md"])
def test_what_is_not_listed_is_not_asked_for(mode: Mode, path: str) -> None:
    """No path that `list_files` does not give reaches the provider."""
    hub = DictProvider(SKILLS)
    asset = ("load_skill_asset", {"skill_name": "tea", "relative_path": path})
    replies = [call_tools(load("tea")), call_tools(asset), "Done."]
    run(mode, agent_of(hub, tools=("load_skill_asset",), replies=replies), config=CONFIG)
    assert all(call[0] != "read_file" for call in hub.calls)


def test_a_listing_is_bounded() -> None:
    """Of an endless list 20,000 skills are taken, and a problem says so."""

    class Endless(SkillProvider):
        label = "Endless"

        def list_skills(self, runtime: Any) -> Iterator[ProvidedSkill]:  # noqa: ARG002
            number = 0
            while True:
                number += 1
                yield ProvidedSkill(str(number), f"skill-{number}", "Does it.", digest(b""))

    agent = agent_of(Endless())
    run("sync", agent, config=CONFIG)
    assert len(metadata(agent)) == 20_000
    assert "source-cut" in {found["code"] for found in agent.get_state(CONFIG).values["skills_problems"]}


@both_modes
def test_providers_are_read_at_the_same_time(mode: Mode) -> None:
    """Two skills that enter together are read together, whichever providers they come from."""
    both = threading.Barrier(2)

    class Slow(DictProvider):
        def read_skill(self, skill: ProvidedSkill, runtime: Any) -> bytes:
            # Broken unless the other's reading has begun as well, long before any limit of a call.
            both.wait(timeout=20)
            return super().read_skill(skill, runtime)

    hubs = [Slow({name: {"SKILL.md": skill_md(name)}}, label=name) for name in ("tea", "coffee")]
    given = {"messages": [("user", "go")], "pinned_skills": ["tea", "coffee"]}
    agent = agent_of(*hubs)
    if mode == "sync":
        agent.invoke(given, CONFIG)
    else:
        asyncio.run(agent.ainvoke(given, CONFIG))
    assert agent.get_state(CONFIG).values["skills_loaded"] == ["tea", "coffee"]


@pytest.mark.parametrize("label", ["", "a/b", "a:b", "..", "a\nb", " a", 5])
def test_a_label_must_be_part_of_an_address(label: Any) -> None:
    """A label that cannot be one is refused where the middleware is made."""
    hub = DictProvider(SKILLS)
    hub.label = label
    with pytest.raises(ValueError, match="label"):
        SkillsMiddleware(sources=[hub])


def test_mistakes_are_said_where_they_are_made() -> None:
    """Two providers of one label, a class in place of an instance, a path without a backend."""
    with pytest.raises(ValueError, match="'Hub'"):
        SkillsMiddleware(sources=[DictProvider(SKILLS), DictProvider({})])
    with pytest.raises(TypeError, match=r"write DictProvider\(\.\.\.\)"):
        SkillsMiddleware(sources=[DictProvider])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="'/skills' is a path"):
        SkillsMiddleware(sources=[DictProvider(SKILLS), "/skills"])
    with pytest.raises(TypeError, match="wrap it in a list"):
        SkillsMiddleware(sources=DictProvider(SKILLS))  # type: ignore[arg-type]


@both_modes
def test_sources_of_a_function_may_be_providers(mode: Mode, tmp_path: Path) -> None:
    """Each user has a provider of their own; one with a bad label is a problem of that run."""

    def sources(runtime: Any) -> list[Any]:
        user = runtime.config["configurable"]["user"]
        return [OptionalSource("/none"), DictProvider({user: {"SKILL.md": skill_md("tea")}}, label=user)]

    middleware: SkillsMiddleware = SkillsMiddleware(
        backend=FilesystemBackend(root_dir=tmp_path, virtual_mode=True), sources=sources
    )
    agent = create_agent(
        ScriptedChatModel(replies=["Done."] * 3), middleware=[middleware], checkpointer=InMemorySaver()
    )
    for user, names in (("ann", ["tea"]), ("bob", ["tea"]), ("a:b", [])):
        config: Any = {"configurable": {"thread_id": user, "user": user}}
        run(mode, agent, config=config)
        assert [skill["name"] for skill in agent.get_state(config).values["skills_metadata"]] == names
    assert "sources-failed" in str(agent.get_state(config).values["skills_problems"])


@both_modes
def test_a_function_that_names_only_providers_needs_no_backend(mode: Mode) -> None:
    """A path that it names all the same is an error of its own that says what is missing."""
    named: list[Any] = []
    for first in ([], ["/skills"]):
        named[:] = [*first, DictProvider(SKILLS)]
        middleware: SkillsMiddleware = SkillsMiddleware(sources=lambda _: named)
        model = ScriptedChatModel(replies=[call_tools(load("tea"))])
        agent = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())
        [loaded] = texts(run(mode, agent, config=CONFIG))
        assert "# Tea" in loaded
        state = agent.get_state(CONFIG).values
        assert sorted(skill["name"] for skill in state["skills_metadata"]) == ["coffee", "tea"]
    [wrong] = state["skills_problems"]
    assert (wrong["path"], wrong["code"], wrong["severity"]) == ("/skills", "source-failed", "error")
    assert "no `backend`; pass one" in wrong["message"]


@both_modes
def test_a_manager_reads_providers(mode: Mode) -> None:
    """The same outside an agent, where the runtime has neither state nor configuration."""
    hub = DictProvider(SKILLS)
    manager = SkillsManager(sources=[hub])

    def call(name: str, *given: Any) -> Any:
        if mode == "sync":
            return getattr(manager, name)(*given)
        return asyncio.run(getattr(manager, f"a{name}")(*given))

    assert call("list_skills") == ["coffee", "tea"]
    assert "# Tea" in call("get_skill_content", "tea")
    assert call("list_skill_assets", "tea") == ["references/leaves.md", "scripts/brew.sh"]
    assert call("get_skill_asset", "tea", "references/leaves.md") == "Green and black."
    assert [found["name"] for found in call("search_skills", "tea")] == ["tea"]
    assert all((runtime.state, runtime.config) == ({}, {}) for runtime in hub.runtimes)

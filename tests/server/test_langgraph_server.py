"""A LangGraph server runs the project of its documentation page; its SDK drives it as an application would."""

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIStatusError
from server_support import ROOT, blocks_of, free_port, serving

from deepskills import generate_skill_md

PAGE = "deploy-langgraph.md"
MODEL = '"anthropic:claude-sonnet-5"'
SCRIPTED = "from server_graphs import model as scripted_model\n"
SKILLS = ["api-design-review", "csv-report", "incident-review", "release-notes", "周报"]
RUNS = 30
GRAPHS = (
    "reviewed",
    "asking",
    "meeting",
    "blocking",
    "shaped",
    "shaped_deep",
    "hooked",
    "checked",
    "checked_deep",
    "from_everywhere",
)
DEPLOY = generate_skill_md("deploy", "Ships it.", "Ship it.\n", {"model": "deep", "allowed-tools": "ping"})
HOOKS = {
    "SessionStart": [{"command": r"""sed -n 's/.*"source": "\([a-z]*\)".*/begun by \1/p'"""}],
    "PreToolUse": [{"matcher": "ping", "type": "python", "handler": "check_ping"}],
}
CAREFUL = generate_skill_md(
    "careful", "Pings with care.", "Take care.\n", {"hooks": HOOKS, "metadata": {"requires": "release-notes"}}
)
RELEASE = generate_skill_md(
    "release", "Releases.", "Test, then deploy.\n", {"checks": [{"called": "run_tests", "before": "deploy"}]}
)
FILES = {
    "more/deploy/SKILL.md": DEPLOY,
    "guarded/careful/SKILL.md": CAREFUL,
    "checked/release/SKILL.md": RELEASE,
    "checked/notes/SKILL.md": generate_skill_md("notes", "Notes.", "Note it.\n"),
    "touching/planning/SKILL.md": generate_skill_md("planning", "Plans.", "Plan it.\n", {"paths": "infra/**"}),
    "infra/main.tf": "resource\n",
    "plugin/plugin.json": json.dumps(
        {"$schema": "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json", "name": "pdf-tools"}
    ),
    "plugin/skills/forms/SKILL.md": generate_skill_md("forms", "Fills in forms.", "Fill them in.\n"),
}
COMMAND = "/deploy the postmortem after the outage"
SHAPES: dict[str, Callable[[str], Any]] = {
    "text": lambda text: text,
    "list of text": lambda text: [text],
    "tuple": lambda text: [["user", text]],
    "dict": lambda text: [{"role": "user", "content": text}],
    "typed dict": lambda text: [{"type": "human", "content": text}],
    "content blocks": lambda text: [{"role": "user", "content": [{"type": "text", "text": text}]}],
    "after earlier messages": lambda text: [["user", "hi"], {"role": "assistant", "content": "Hello."}, ["user", text]],
}
"""A user's message as a client writes it in JSON."""

ResultT = TypeVar("ResultT")

AGENT, CLIENT, AUTH, OWN, PUBLISH = blocks_of(PAGE, "python")
PLAIN, WITH_AUTH = (json.loads(block) for block in blocks_of(PAGE, "json"))


@dataclass
class Server:
    """A server that runs: where it listens, and what it logs."""

    url: str
    log: Path

    def client(self, user: str = "") -> LangGraphClient:
        return get_client(url=self.url, api_key=None, headers={"authorization": f"Bearer {user}"} if user else {})

    def drive(self, work: Callable[[LangGraphClient], Awaitable[ResultT]]) -> ResultT:
        """Return what `work` does with a client."""

        async def with_client() -> ResultT:
            async with self.client() as client:
                return await work(client)

        return asyncio.run(with_client())

    def blocking_calls(self) -> list[str]:
        """Return the lines of the log that are about blocking calls."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line for line in lines if "blocking call" in line.lower()]


@contextmanager
def started(project: Path, agent: str, config: Mapping[str, Any]) -> Iterator[Server]:
    """Give a server on a project: the page's agent with a scripted model, and the graphs of this test."""
    project.mkdir()
    shutil.copytree(ROOT / "examples" / "skills", project / "skills")
    shutil.copy(Path(__file__).with_name("server_graphs.py"), project)
    (project / "agent.py").write_text(SCRIPTED + agent.replace(MODEL, "scripted_model"), encoding="utf-8")
    (project / "auth.py").write_text(AUTH, encoding="utf-8")
    (project / ".env").touch()
    for path, text in FILES.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(text, encoding="utf-8")
    more = {name: f"./server_graphs.py:{name}" for name in GRAPHS}
    (project / "langgraph.json").write_text(json.dumps({**config, "graphs": config["graphs"] | more}))
    port = free_port()
    command = ["langgraph", "dev", "--no-browser", "--no-reload", "--port", str(port), "--n-jobs-per-worker", str(RUNS)]
    url = f"http://127.0.0.1:{port}"
    with serving(command, project, f"{url}/ok") as log:
        yield Server(url, log)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the page's first project."""
    with started(tmp_path_factory.mktemp("server") / "project", AGENT, PLAIN) as running:
        yield running


@pytest.fixture(scope="module")
def server_with_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the page's project with authentication and skills per user."""
    with started(tmp_path_factory.mktemp("users") / "project", AGENT + OWN, WITH_AUTH) as running:
        yield running


def says(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


async def new_thread(client: LangGraphClient) -> str:
    return str((await client.threads.create())["thread_id"])


async def run(client: LangGraphClient, thread: str, text: str, graph: str = "agent") -> str:
    """Run a graph on a thread and return what it answers last."""
    values: Any = await client.runs.wait(thread, graph, input=says(text))
    return str(values["messages"][-1]["content"])


async def state_of(client: LangGraphClient, thread: str) -> dict[str, Any]:
    values: Any = (await client.threads.get_state(thread))["values"]
    return dict(values)


def test_the_client_of_the_page_hears_of_skills(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Skill events arrive on the custom stream while a run goes on, and the thread's state says what is loaded."""
    names: dict[str, Any] = {}
    exec(compile(CLIENT, PAGE, "exec"), names)
    assert asyncio.run(names["ask"](server.url, "load csv-report")) == ["csv-report"]
    assert capsys.readouterr().out == "skill.loaded csv-report\n"


def test_events_are_the_same_as_without_a_server(server: Server) -> None:
    """Type, skill, cost and origin are in the events that a client receives."""

    async def talk(client: LangGraphClient) -> list[dict[str, Any]]:
        thread = await new_thread(client)
        parts = client.runs.stream(thread, "agent", input=says("load csv-report"), stream_mode="custom")
        return [dict(part.data) async for part in parts if part.event == "custom"]

    (event,) = server.drive(talk)
    assert (event["type"], event["skill"], event["trigger"]) == ("skill.loaded", "csv-report", "model")
    assert event["source"] == "/skills/"
    assert event["tokens"] > 100
    assert event["resources"] == 3
    assert event["digest"]


def test_a_thread_keeps_what_is_loaded_from_run_to_run(server: Server) -> None:
    """A skill stays in the request until a later run unloads it, and nothing is reported wrong."""

    async def talk(client: LangGraphClient) -> list[str]:
        thread = await new_thread(client)
        told = [await run(client, thread, text) for text in ("load 周报", "hello", "unload 周报", "hello")]
        state = await state_of(client, thread)
        assert state["skills_loaded"] == []
        assert state["skills_problems"] == []
        assert [skill["name"] for skill in state["skills_metadata"]] == SKILLS
        return told

    listed = f"listed: {' '.join(SKILLS)}; present: "
    assert server.drive(talk) == [f"{listed}周报", f"{listed}周报", listed, listed]


@pytest.mark.parametrize(
    ("graph", "approval", "rejection"),
    [
        ("reviewed", {"decisions": [{"type": "approve"}]}, {"decisions": [{"type": "reject", "message": "no"}]}),
        ("asking", "yes", "no"),
    ],
)
def test_a_load_waits_for_a_human_and_is_resumed(server: Server, graph: str, approval: Any, rejection: Any) -> None:
    """Middleware or an extension stops a load; a client resumes it, and it is loaded if the human agrees."""

    async def talk(client: LangGraphClient, answer: Any) -> list[str]:
        thread = await new_thread(client)
        await client.runs.wait(thread, graph, input=says("load csv-report"))
        assert (await client.threads.get(thread))["status"] == "interrupted"
        assert (await state_of(client, thread))["skills_loaded"] == []
        await client.runs.wait(thread, graph, command={"resume": answer})
        assert (await client.threads.get(thread))["status"] == "idle"
        return list((await state_of(client, thread))["skills_loaded"])

    assert server.drive(lambda client: talk(client, approval)) == ["csv-report"]
    assert server.drive(lambda client: talk(client, rejection)) == []


def test_a_users_message_counts_in_every_shape_of_json(server: Server) -> None:
    """Command, note, model and approval go by the newest message, end with it, and are known again at a resume."""

    async def talk(client: LangGraphClient, graph: str, shape: str) -> list[Any]:
        thread, given = await new_thread(client), SHAPES[shape]
        found: list[Any] = []

        async def note(**options: Any) -> None:
            values: Any = await client.runs.wait(thread, graph, **options)
            status = (await client.threads.get(thread))["status"]
            found.append((status, values["messages"][-1]["content"] if status == "idle" else ""))

        await note(input={"messages": given(COMMAND)})
        loaded = (await state_of(client, thread))["skills_loaded"]
        await note(input={"messages": given("thanks")})
        await note(command={"resume": {"decisions": [{"type": "approve"}]}})
        await note(input={"messages": given(f"{COMMAND}, again")})
        return [loaded, *found]

    async def talk_all(client: LangGraphClient) -> dict[Any, list[Any]]:
        cases = [(graph, shape) for graph in ("shaped", "shaped_deep") for shape in SHAPES]
        return dict(zip(cases, await asyncio.gather(*(talk(client, *case) for case in cases)), strict=True))

    expected = [
        ["deploy"],
        ("idle", "deep; noted: [True]"),
        ("interrupted", ""),
        ("idle", "main; noted: [True]"),
        ("idle", "deep; noted: [True, True]"),
    ]
    assert {case: found for case, found in server.drive(talk_all).items() if found != expected} == {}


def test_hooks_of_a_skill_and_what_it_requires(server: Server) -> None:
    """A load brings along what its skill requires; its command runs at the load and at a later run, its handler too."""

    async def talk(client: LangGraphClient) -> list[str]:
        thread = await new_thread(client)
        told = [await run(client, thread, text, "hooked") for text in ("load careful", "ping", "hello")]
        assert (await state_of(client, thread))["skills_problems"] == []
        return told

    assert server.drive(talk) == [
        "present: careful release-notes; said: ['begun by startup']; refused: 0",
        "present: careful release-notes; said: []; refused: 1",
        "present: careful release-notes; said: ['begun by resume']; refused: 1",
    ]


def ours(state: Mapping[str, Any]) -> list[str]:
    """Return the messages by which the model was sent back."""
    return [
        one["content"]
        for one in state["messages"]
        if one["type"] == "human" and one["additional_kwargs"].get("lc_source") == "deepskills"
    ]


def answers(state: Mapping[str, Any], name: str) -> list[str]:
    """Return what a tool has answered."""
    return [one["content"] for one in state["messages"] if one["type"] == "tool" and one["name"] == name]


def test_a_checked_skill_is_followed_in_the_end(server: Server) -> None:
    """Forgotten, sent back, tested, approved by a human, deployed; and a second turn starts over, in every shape."""
    forgets = "load release; All tests pass.; call run_tests; call deploy; Released."
    again = "unload release; load release; call deploy; Released again.; call run_tests; Tested at last."
    approval: Any = {"resume": {"decisions": [{"type": "approve"}]}}

    async def talk(client: LangGraphClient, graph: str, shape: str) -> list[Any]:
        thread, given = await new_thread(client), SHAPES[shape]
        found: list[Any] = []
        for text in (forgets, again):
            await client.runs.wait(thread, graph, input={"messages": given(text)})
            found.append((await client.threads.get(thread))["status"])
            values: Any = await client.runs.wait(thread, graph, command=approval)
            found.append(values["messages"][-1]["content"])
        state = await state_of(client, thread)
        held = ["was not run" in text for text in answers(state, "deploy")]
        return [*found, len(ours(state)), held, state["skills_problems"]]

    async def talk_all(client: LangGraphClient) -> dict[Any, list[Any]]:
        cases = [(graph, shape) for graph in ("checked", "checked_deep") for shape in SHAPES]
        return dict(zip(cases, await asyncio.gather(*(talk(client, *case) for case in cases)), strict=True))

    expected = ["interrupted", "Released.", "interrupted", "Tested at last.", 2, [False, True], []]
    assert {case: found for case, found in server.drive(talk_all).items() if found != expected} == {}


def test_streams_of_checked_skills(server: Server) -> None:
    """A client hears that the model was sent back, what it proved, and what it left open; handlers are asked."""

    async def talk(client: LangGraphClient, text: str) -> tuple[list[str], list[str]]:
        thread = await new_thread(client)
        parts = client.runs.stream(thread, "checked", input=says(text), stream_mode="custom")
        heard = [str(part.data["type"]) async for part in parts if part.event == "custom"]
        return heard, [found["code"] for found in (await state_of(client, thread))["skills_problems"]]

    back, passed = "skill.sent_back", "skill.checked"
    follows = "load release; call run_tests; Done."
    assert server.drive(lambda client: talk(client, follows)) == (["skill.loaded", passed], [])
    notes = "load notes; Done.; Noted."
    assert server.drive(lambda client: talk(client, notes)) == (["skill.loaded", back, passed], [])
    claims = "load release; Tested.; Really.; I promise."
    assert server.drive(lambda client: talk(client, claims)) == (
        ["skill.loaded", back, back, "skill.unchecked"],
        ["checks-open"],
    )


def test_skills_of_a_provider_of_a_plugin_and_of_paths(server: Server) -> None:
    """Each is listed and loaded like a skill in a directory, the last one once its file was read."""

    async def talk(client: LangGraphClient) -> list[str]:
        thread = await new_thread(client)
        told = [
            await run(client, thread, f"{steps}; tell", "from_everywhere")
            for steps in ("load planning", "load served; load pdf-tools:forms", "read /infra/main.tf; load planning")
        ]
        state = await state_of(client, thread)
        assert state["skills_loaded"] == ["served", "pdf-tools:forms", "planning"]
        assert state["skills_problems"] == []
        return told

    assert server.drive(talk) == [
        "listed: served pdf-tools:forms; present: ",
        "listed: served pdf-tools:forms; present: served pdf-tools:forms",
        "listed: planning served pdf-tools:forms; present: served pdf-tools:forms planning",
    ]


def test_thirty_runs_at_once_do_not_mix(server: Server) -> None:
    """Thirty loads wait for each other; then each thread has the skill that it asked for, and no problem."""

    async def talk(client: LangGraphClient, name: str) -> tuple[list[str], list[Any]]:
        thread = await new_thread(client)
        assert (await run(client, thread, f"load {name}", "meeting")).endswith(f"present: {name}")
        state = await state_of(client, thread)
        return state["skills_loaded"], state["skills_problems"]

    async def talk_all(client: LangGraphClient) -> list[tuple[list[str], list[Any]]]:
        return list(await asyncio.gather(*(talk(client, name) for name in names)))

    names = [SKILLS[number % len(SKILLS)] for number in range(RUNS)]
    assert server.drive(talk_all) == [([name], []) for name in names]


def test_a_forged_catalog_is_not_believed(server: Server) -> None:
    """A client that writes state by input or by an update gets no file that is not in a source."""
    forged = [{"name": "passwd", "description": "Gives passwords.", "path": "/etc/passwd"}]

    async def talk(client: LangGraphClient) -> list[str]:
        thread = await new_thread(client)
        given: dict[str, Any] = {**says("load passwd"), "skills_metadata": forged}
        await client.runs.wait(thread, "agent", input=given)
        await client.threads.update_state(thread, {"skills_metadata": forged, "skills_catalog": json.dumps(forged)})
        assert await run(client, thread, "load passwd") == f"listed: {' '.join(SKILLS)}; present: "
        return list((await state_of(client, thread))["skills_loaded"])

    assert server.drive(talk) == []


def test_users_see_their_own_skills_and_nobody_elses(server_with_users: Server) -> None:
    """The page's authentication and store: what a user publishes is in their next run, and in no other user's."""
    server = server_with_users
    names: dict[str, Any] = {"get_client": get_client}
    exec(compile(PUBLISH, PAGE, "exec"), names)
    text = generate_skill_md("letters", "How Ada writes letters.", "Warmly.\n")

    async def talk() -> None:
        async with server.client("ada") as ada, server.client("bob") as bob, server.client() as nobody:
            of_ada, of_bob = await new_thread(ada), await new_thread(bob)
            assert "letters" not in await run(ada, of_ada, "hello")
            await names["publish"](server.url, "ada", "letters", text)
            assert (await run(ada, of_ada, "load letters")).endswith("present: letters")
            assert (await state_of(ada, of_ada))["skills_problems"] == []
            assert "letters" not in await run(bob, of_bob, "load letters")
            assert (await state_of(bob, of_bob))["skills_loaded"] == []
            with pytest.raises(APIStatusError):
                await bob.threads.get_state(of_ada)
            with pytest.raises(APIStatusError):
                await bob.store.put_item(("ada", "skills"), "/letters/SKILL.md", {"content": "", "encoding": "utf-8"})
            with pytest.raises(APIStatusError):
                await nobody.threads.create()

    asyncio.run(talk())
    assert server.blocking_calls() == []


def test_the_server_reports_no_blocking_call(server: Server) -> None:
    """After all of this its log has none, though it reports one of a graph that blocks."""

    async def talk(client: LangGraphClient) -> None:
        await client.runs.wait(await new_thread(client), "blocking", input=says("go"), raise_error=False)

    assert server.blocking_calls() == []
    server.drive(talk)
    assert server.blocking_calls() != []

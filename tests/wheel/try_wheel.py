"""Build the wheel, install it into an empty environment, and try it, also with each extra alone.

`make test-wheel` runs this; it needs the package index. Nothing of this checkout is importable in those environments.
Dependencies are installed once: the environment of an extra sees them and gets only what the extra adds, so that a
package which an extra forgot to name is missing there.
"""

import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]

AGENT = """
import importlib.metadata, pathlib
import deepskills
from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from deepskills import SkillsMiddleware, generate_skill_md
from deepskills.extensions import Preload, SkillScripts, SkillSuggestions
from deepskills.testing import ScriptedChatModel, call_tools

file = pathlib.Path("skills/minutes/SKILL.md")
file.parent.mkdir(parents=True)
file.write_text(generate_skill_md("minutes", "Writes minutes.", "Be brief."))
backend = FilesystemBackend(root_dir=".", virtual_mode=True)
skills = SkillsMiddleware(backend=backend, sources=["/skills"], extensions=[SkillSuggestions()])
model = ScriptedChatModel(replies=[call_tools(("load_skill", {"skill_name": "minutes"})), "Done."])
create_deep_agent(model, backend=backend, middleware=[skills]).invoke({"messages": [("user", "Minutes, please.")]})
assert "Be brief." in model.requests[1].text
said = importlib.metadata.metadata("deepskills")
assert said["Version"] == deepskills.__version__
assert "deepskills" in said.get_payload()
for extra, module in (("store", "deepskills.store"), ("mcp", "deepskills.mcp")):
    try:
        __import__(module)
    except ImportError as error:
        assert f"deepskills[{extra}]" in str(error), error
    else:
        raise AssertionError(f"{module} works without its extra")
"""

STORE = """
import asyncio
from deepskills.store import SkillCreate, SkillService, create_store_engine, migrations
from sqlalchemy.ext.asyncio import async_sessionmaker

async def main():
    engine = create_store_engine("sqlite:///skills.db")
    await migrations.upgrade(engine)
    async with async_sessionmaker(engine)() as session:
        skill = await SkillService(session).create_skill(SkillCreate(name="a", description="Does."), "alice")
    await engine.dispose()
    return skill.name

assert asyncio.run(main()) == "a"
"""

PAGE = (
    STORE
    + """
from deepskills.store import create_store_app

app, sent = create_store_app("sqlite:///skills.db"), []

async def ask():
    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http"}
    scope |= {"path": "/", "raw_path": b"/", "root_path": "", "query_string": b"", "headers": [(b"host", b"localhost")]}
    await app({**scope, "client": ("127.0.0.1", 1), "server": ("localhost", 80)}, receive, send)

asyncio.run(ask())
assert sent[0]["status"] == 200, sent
assert b"<title>" in b"".join(message.get("body", b"") for message in sent)
"""
)

TRIED: dict[str, str] = {
    "store": STORE,
    "postgres": STORE + "\ncreate_store_engine('postgresql://user:secret@localhost/skills')\n",
    "api": STORE
    + "\nfrom deepskills.store import create_store_app\nassert create_store_app('sqlite:///a.db').routes\n",
    "page": PAGE,
    "otel": "from deepskills.extensions import OpenTelemetryRecorder\nOpenTelemetryRecorder()\n",
    "mcp": "from deepskills.mcp import McpSkills\nMcpSkills({}).close()\n",
}
"""Python that shows what each extra is for; the commands of `cli` are tried by themselves."""

COMMANDS = (
    ["create", "minutes", "-s", "skills", "-d", "Writes minutes. Use it after a meeting."],
    ["validate", "skills"],
    ["doctor"],
    ["show", "minutes"],
    ["list"],
    ["--version"],
)


def make_environment(place: Path, base: Path | None = None) -> Path:
    """Make an empty environment, or one that sees the packages of another, pip among them; return its Python."""
    venv.create(place, with_pip=base is None)
    [packages] = place.glob("lib/python*/site-packages")
    if base is not None:
        [below] = base.glob("lib/python*/site-packages")
        (packages / "base.pth").write_text(f"{below}\n", encoding="utf-8")
    return place / "bin" / "python"


def run(*command: str | Path, place: Path, fails: bool = False) -> str:
    """Run a command in an empty directory; return what it printed."""
    place.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [*map(str, command)], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if (done.returncode != 0) is not fails:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def main() -> None:
    """Try everything; the first thing that fails ends it."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(declared["optional-dependencies"])
    untried = extras - TRIED.keys() - {"cli"}
    if untried:
        sys.exit(f"Nothing here tries the extras {', '.join(sorted(untried))}: add a few lines to TRIED.")
    start = time.monotonic()
    pip = ("-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check")
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        base = make_environment(place / "base")
        run(base, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", place / "dist", ROOT, place=place)
        [wheel] = (place / "dist").glob("deepskills-*.whl")
        run(base, *pip, wheel, place=place)
        run(base, "-c", AGENT, place=place / "empty")
        said = run(base.parent / "deepskills", "list", place=place / "empty", fails=True)
        if 'pip install "deepskills[cli]"' not in said:
            sys.exit(f"Without its extra the command says: {said}")
        print(f"{wheel.name}: works in an empty environment, after {time.monotonic() - start:.0f} s", flush=True)
        for extra in sorted(extras):
            python = make_environment(place / extra, place / "base")
            run(python, *pip, f"{wheel}[{extra}]", place=place)
            if extra == "cli":
                for command in COMMANDS:
                    run(python, "-m", "deepskills", *command, place=place / "empty-cli")
            else:
                run(python, "-c", TRIED[extra], place=place / f"empty-{extra}")
            print(f"{wheel.name}[{extra}]: works, after {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()

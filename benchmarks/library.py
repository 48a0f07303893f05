"""Skill libraries of any size, for measuring."""

from pathlib import Path

from deepagents.backends import BackendProtocol

TOPICS = (
    "reports",
    "releases",
    "incidents",
    "databases",
    "contracts",
    "travel",
    "hiring",
    "invoices",
    "charts",
    "tests",
)


def skill_text(number: int) -> str:
    """Return a `SKILL.md` of about two kilobytes, as authors write them."""
    topic = TOPICS[number % len(TOPICS)]
    body = "\n".join(f"{step}. Do step {step} for {topic} and check the result before you go on." for step in range(24))
    return (
        f"---\nname: skill-{number:05d}\n"
        f"description: Handles {topic} of kind {number} from the first draft to the final check, with templates and "
        f"examples for common cases. Use it when somebody asks for {topic}, or sends files about them.\n"
        "license: MIT\ncompatibility: needs network access\n"
        f'metadata:\n  author: example\n  version: "1.{number}"\n'
        "allowed-tools: read_file search\n---\n\n"
        f"# Skill {number}\n\n{body}\n"
    )


def write_library(root: Path, count: int) -> Path:
    """Write `count` skills below `root` and return `root`."""
    for number in range(count):
        directory = root / f"skill-{number:05d}"
        directory.mkdir(parents=True)
        (directory / "SKILL.md").write_text(skill_text(number), encoding="utf-8")
    return root


def list_and_read(backend: BackendProtocol, source: str) -> object:
    """Make the calls of the backend alone by which a library is read."""
    entries = backend.ls(source).entries or []
    return backend.download_files([f"{entry['path']}SKILL.md" for entry in entries])

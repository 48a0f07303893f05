"""`deepskills gate`: what a change does to a library of skills, without a model, for pull requests.

The working tree is compared with a commit: problems and dead references that are new, tokens that were added, and
requests (from the skills' own `evals/triggers.json`) that another skill would take because of the change. Without a
commit everything that is wrong is reported.
"""

import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypedDict

from deepskills._cli.commands.catalog import Found, LocalCatalog, read_catalog
from deepskills._cli.commands.validate import validate_paths
from deepskills._cli.files import UsageError, find_named_sources, find_usual_sources
from deepskills._cli.output import Output, prose
from deepskills._files.paths import find_named_paths
from deepskills._install.git import make_environment
from deepskills._loading.budget import count_tokens
from deepskills._skillmd.problems import problem, quoted
from deepskills._skillmd.text import counted
from deepskills._types import RESOURCE_DIRECTORIES, SkillProblem

SHOWN = 5
"""How many skills a note suggests: a request is lost to a skill that falls behind them."""

MAX_TRIGGERS_BYTES = 1024 * 1024
"""Largest file of queries that is read."""

GIT_SECONDS = 120
"""How long git may take to hand out a commit's files."""


class TakenRow(TypedDict):
    """A request that another skill takes."""

    query: str
    meant: str
    by: str | None
    """The skill that ranks first for it now; null if none does."""

    wanted: bool
    """Whether the request should load its skill; if not, the skill itself is what takes it."""


class Report(TypedDict):
    """What a gate found, as JSON."""

    base: str | None
    skills: int
    """How many skills of the working tree can be used."""

    findings: list[SkillProblem]
    tokens: dict[str, int]
    """Tokens of a load by skill, where they changed: how many more."""

    tokens_added: int
    section_tokens_added: int
    requests: int
    """How many requests were ranked."""

    taken: list[TakenRow]


@dataclass(frozen=True)
class Query:
    """A request of a skill's own, and whether it should load the skill."""

    text: str
    skill: str
    is_wanted: bool


@dataclass
class State:
    """The library at one moment: the working tree, or a commit."""

    catalog: LocalCatalog
    roots: Mapping[str, str] = field(default_factory=dict)
    """What the paths of sources begin with here, and what stands for it in the working tree."""

    def path(self, path: str) -> str:
        """Return a path as the working tree has it."""
        for own, working in self.roots.items():
            if path == own or path.startswith(f"{own}/"):
                return working + path[len(own) :]
        return path

    @cached_property
    def texts(self) -> dict[str, str]:
        """Return the text of each usable skill, by name."""
        return {found.row["name"]: found.text for found in self.catalog.usable}

    @cached_property
    def tokens(self) -> dict[str, int]:
        """Return what the text of each usable skill costs, by name; not its path, which differs by place."""
        return {name: count_tokens(text) for name, text in self.texts.items()}

    @cached_property
    def section_tokens(self) -> int:
        """Return what every request of an agent with these skills holds of them."""
        return count_tokens(self._words(self.catalog.prompt()))

    @cached_property
    def queries(self) -> list[Query]:
        """Return the requests that skills name in their `evals/triggers.json`."""
        return [query for found in self.catalog.usable for query in _read_queries(found)]

    @cached_property
    def problems(self) -> list[SkillProblem]:
        """Return what is wrong with the skills and their sources, dead references among it, by working paths."""
        found = [noted for noted in self.catalog.problems if noted["code"] != "skill-shadowed"]
        # A path that is not text is a problem already, and nothing can be read by it.
        unread = {noted["path"] for noted in found if noted["code"] == "skill-path-not-text"}
        strict = [str(Path(path)) for each in self.catalog.found if (path := each.row["path"]) not in unread]
        found += validate_paths(strict).problems if strict else []
        found += [dead for each in self.catalog.usable for dead in _dead_references(each)]
        shown: list[SkillProblem] = [
            {**noted, "path": self.path(noted["path"]), "message": self._words(noted["message"])} for noted in found
        ]
        return list({(each["path"], each["code"], each["message"]): each for each in shown}.values())

    def _words(self, message: str) -> str:
        for own, working in self.roots.items():
            message = message.replace(own, working)
        return message

    def rank(self, query: str) -> list[str]:
        """Return the names of the skills that fit a request, best first."""
        return [found.row["name"] for found in self.catalog.search(query, SHOWN)]


def run_gate(base: str | None, given: Sequence[str]) -> Report:
    """Compare the working tree with a commit, or judge it alone.

    Raises:
        UsageError: If there is no such commit, no repository, or no source.
    """
    sources = find_named_sources(given) if given else find_usual_sources()
    if not sources:
        raise UsageError("There are no skills here. Name a directory: deepskills gate --source DIR")
    head = State(read_catalog([source.path for source in sources]))
    if base is None:
        return _judge(head, None, None)
    with _check_out(base, [Path(source.path) for source in sources]) as roots:
        there = [own for own in roots if Path(own).is_dir()]
        before = State(read_catalog(there), roots) if there else None
        return _judge(head, before, base)


def _judge(head: State, before: State | None, base: str | None) -> Report:
    known = {(each["path"], each["code"], each["message"]) for each in before.problems} if before is not None else set()
    findings = [each for each in head.problems if (each["path"], each["code"], each["message"]) not in known]
    requests, taken = _compare_requests(head, before)
    places = {found.row["name"]: found.row["path"] for found in head.catalog.usable}
    findings += [_word_taken(row, places) for row in taken]
    old = before.tokens if before is not None else {}
    changed = {
        name: head.tokens.get(name, 0) - old.get(name, 0)
        for name in sorted({*head.tokens, *old})
        if head.tokens.get(name, 0) != old.get(name, 0)
    }
    section = head.section_tokens - (before.section_tokens if before is not None else 0)
    return Report(
        base=base,
        skills=len(head.catalog.usable),
        findings=findings,
        tokens=changed,
        tokens_added=sum(changed.values()),
        section_tokens_added=section,
        requests=requests,
        taken=taken,
    )


def _compare_requests(head: State, before: State | None) -> tuple[int, list[TakenRow]]:
    """Return how many requests were ranked, and those that go wrong and did not before."""
    # A change of one skill moves others as well, for it changes how rare words are.
    if before is not None and (head.texts, head.queries) == (before.texts, before.queries):
        return 0, []
    taken: list[TakenRow] = []
    for query in head.queries:
        now = head.rank(query.text)
        if _is_right(query, now):
            continue
        was = before.rank(query.text) if before is not None and query.skill in before.texts else None
        if was is None or _is_right(query, was) or (query.skill in was and query.skill not in now):
            first = now[0] if now else None
            taken.append(TakenRow(query=query.text, meant=query.skill, by=first, wanted=query.is_wanted))
    return len(head.queries), taken


def _is_right(query: Query, ranked: Sequence[str]) -> bool:
    return (ranked[:1] == [query.skill]) == query.is_wanted


def _word_taken(row: TakenRow, places: Mapping[str, str]) -> SkillProblem:
    path = places.get(row["meant"], row["meant"])
    if not row["wanted"]:
        return problem(path, "request-unwanted", query=quoted(row["query"]))
    by = quoted(row["by"]) if row["by"] is not None else "no skill"
    return problem(path, "request-taken", query=quoted(row["query"]), by=by)


def _read_queries(found: Found) -> Iterator[Query]:
    file = Path(found.row["path"]).parent / "evals" / "triggers.json"
    try:
        if file.stat().st_size > MAX_TRIGGERS_BYTES:
            return
        items = json.loads(file.read_text(encoding="utf-8"))
    # What is wrong with such a file, `deepskills eval` says.
    except (OSError, ValueError, RecursionError):
        return
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and isinstance(item.get("query"), str):
            yield Query(item["query"], found.row["name"], item.get("should_trigger") is not False)


def _dead_references(found: Found) -> Iterator[SkillProblem]:
    """Yield the files that instructions name and that are not there."""
    directory = Path(found.row["path"]).parent
    for relative in sorted(set(find_named_paths(found.text))):
        first = relative.partition("/")[0]
        # Instructions name paths of the user's project as well: only what lies below a directory of the skill counts.
        is_own = first in RESOURCE_DIRECTORIES or (directory / first).is_dir()
        if is_own and "/" in relative and not _exists(directory / relative):
            yield problem(found.row["path"], "reference-dead", reference=quoted(relative))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


# The commit to compare with.


@contextmanager
def _check_out(base: str, sources: Sequence[Path]) -> Iterator[dict[str, str]]:
    """Give the sources as they were at a commit, as directories of their own: where each lies, and what it is here."""
    top = Path(_git(sources[0], "rev-parse", "--show-toplevel").decode("utf-8", "replace").strip())
    commit = _git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}").decode().strip()
    with tempfile.TemporaryDirectory(prefix="deepskills-gate-") as place:
        roots: dict[str, str] = {}
        for source in sources:
            try:
                inside = source.resolve().relative_to(top.resolve()).as_posix()
            except ValueError:
                continue  # Outside the repository nothing was different at a commit of it.
            if inside == "." or _git(top, "ls-tree", "-d", "--name-only", commit, "--", inside).strip():
                packed = io.BytesIO(_git(top, "archive", "--format=tar", commit, "--", inside))
                with tarfile.open(fileobj=packed) as tree:
                    _unpack(tree, Path(place))
            roots[(Path(place) / inside).as_posix()] = source.as_posix()
        yield roots


def _unpack(tree: tarfile.TarFile, place: Path) -> None:
    """Write the files of a commit; by hand, for not every Python 3.11 has filters of archives."""
    for member in tree:
        content = tree.extractfile(member) if member.isfile() else None
        # Links are left out: they may lead anywhere, and a skill behind one is read where it lies.
        if content is None or member.name.startswith("/") or ".." in member.name.split("/"):
            continue
        target = place / member.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.read())


def _git(place: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(  # noqa: S603 - git, with arguments of ours and a ref that cannot be an option
            ["git", "-C", str(place), *arguments],  # noqa: S607 - the git of this machine
            capture_output=True,
            timeout=GIT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            # A git hook is given variables that name its own repository and index.
            env=make_environment(),
        )
    except FileNotFoundError:
        raise UsageError("git is not installed. Install it, or leave --base out.") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"git did not answer within {GIT_SECONDS} seconds. Try again, or leave --base out.") from None
    if done.returncode == 0:
        return done.stdout
    if arguments[:2] == ("rev-parse", "--show-toplevel"):
        raise UsageError(f"{place} is in no git repository. Leave --base out, or run this in a clone.")
    if arguments[:2] == ("rev-parse", "--verify"):
        base = arguments[-1].removesuffix("^{commit}")
        raise UsageError(f"There is no commit {quoted(base)}. Fetch it first, such as by `git fetch origin {base}`.")
    raise UsageError(f"git failed: {done.stderr.decode('utf-8', 'replace').strip()[:300]}")


# What is printed.


def show_report(output: Output, report: Report) -> None:
    """Print what a gate found, for a person."""
    findings, base = report["findings"], report["base"]
    output.problems(findings)
    compared = f"compared with {base}" if base is not None else "in the working tree"
    for name, added in report["tokens"].items() if base is not None else ():
        output.line(f"{prose(name)}: {added:+,} tokens a load")
    if base is not None:
        output.line(f"every request: {report['section_tokens_added']:+,} tokens")
    output.remark(
        f"{counted(len(findings), 'finding') if findings else 'Nothing'} {compared}; "
        f"{counted(report['requests'], 'request')} ranked.",
        "red" if findings else "green",
    )


def show_annotations(output: Output, report: Report) -> None:
    """Print findings as annotations of GitHub's, at the files they are about."""
    working = Path.cwd()
    for found in report["findings"]:
        path = Path(found["path"])
        file = path.relative_to(working).as_posix() if path.is_absolute() and path.is_relative_to(working) else path
        level = "error" if found["severity"] == "error" else "warning"
        name = _escape(str(file), is_value=True)
        output.line(f"::{level} file={name},line=1,title={found['code']}::{_escape(found['message'], is_value=False)}")


def _escape(text: str, *, is_value: bool) -> str:
    # A line break would end the command and begin another, which a skill's author would have written.
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if is_value else text

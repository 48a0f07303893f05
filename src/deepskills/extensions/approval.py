"""`SkillApproval`: a human approves each skill's content once, and no other content reaches the model or runs.

Theory of operation
-------------------

An approval is for a digest over all files of a skill, not for a name. Anybody who could change a file between two reads
would have the second content approved by the first, so every read is bound to the digest:

- *Asking* (`before_read`) takes the manifest of the files as they are and interrupts with its digest.
- *At the resume* LangGraph executes the call again from its beginning, perhaps in another process, and hands out the
  answers that the call has got so far by position. Neither the files nor who asks are what they were: another extension
  may have asked first and no longer does. So no answer is taken for what `interrupt` returns. Each question says at
  which position its answer will stand and, in `history`, which were asked before it; it waits in the checkpoint, so any
  process knows them all. The answer at that position counts, for the digest that was shown. If the digest is another
  one now, a human is asked again. A question that waits is repeated before any store is asked: somebody else's approval
  must not overrule the answer to it. A rejection refuses the call, whatever its name stands for by then.
- *Reading* (`change_text`): a text enters the conversation only if it was made from bytes whose SHA-256 is in the
  approved set. This holds for loads, pins, commands, forks and for texts that are put back.
- *Acting* (`before_file`, and the agent's file tools): each file is compared with the approved set at every read, all
  of them before a script runs. That does not end with the load: it holds as long as the files can be reached.

The thread's private state keeps only the digests that are approved; which files a digest stands for is remembered in
the process or in the store, or computed again from the files. A digest proves its files, so it does not matter who kept
them: files that do not hash to it are not used (`_files_of`).
"""

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.types import interrupt

from deepskills import Refuse, SkillEntry, SkillLoad, SkillManifest, SkillRun, SkillsError
from deepskills._files.manifest import digest_over
from deepskills._io.cache import ENTRY_BYTES, BoundedCache
from deepskills._loading.budget import count_tokens
from deepskills._prompt.messages import (
    APPROVAL_NO_CHECKPOINTER,
    APPROVAL_NOT_UNDERSTOOD,
    APPROVAL_REJECTED,
    CHANGED_SINCE_APPROVAL,
    CHANGES_WHILE_ASKED,
    NOT_APPROVED,
)
from deepskills._types import SKILL_FILE
from deepskills.extensions._guard import FileGuard, name_files
from deepskills.extensions._shared import call_either, tidy_source, tidy_sources

logger = logging.getLogger("deepskills")

GRANTS = ("tools", "hooks", "scripts", "model")
"""The powers of a skill that can be made to need a separate approval."""

INTERRUPT_TYPE = "skill_approval"
"""The `type` in the interrupt's value."""

AppliesTo: TypeAlias = Callable[[SkillEntry], bool] | Iterable[str]
"""Which skills need an approval: a function of the entry, or paths of sources."""

MAX_ASKED = 20
"""How often one load asks if the files change again after each answer."""

MAX_REMEMBERED_BYTES = 16 * 1024 * 1024
"""How much memory the process spends on the files of approved skills, and on questions."""

_BYTES_PER_TOKEN = 4

NO_CHECKPOINTER_CODE = "approval-needs-checkpointer"
STORE_CODE = "approval-store-failed"
UNREADABLE = "The question that an approval answers could not be read from the checkpoint, so it is asked again"


class SkillApproval(FileGuard):
    """Asks a human before a skill is used whose content nobody has approved, and holds the skill to that content.

    The first load interrupts with the skill's name, source, files, digest and token cost. Resume with `{"type":
    "approve"}` or `{"type": "reject", "message": "..."}`. An approval is kept in the graph's store by origin and digest
    so that it holds for other threads, users and processes that share it; without one, the thread remembers.
    Any changed byte of any file asks again.

    Needs a checkpointer: without one, a skill that nobody approved is refused.

    Args:
        namespace: Where approvals are kept in the store; or a function that is given the run's runtime and returns it,
            for approvals of one user each. If it fails, only the thread remembers.
        applies_to: Which skills need an approval: a function of the `SkillEntry`, or paths of sources; `None` for all.
        grants: Any of `"tools"`, `"hooks"`, `"scripts"` and `"model"`: what has no effect unless it was approved with
            the load, by `{"type": "approve", "grants": [...]}`.

    Raises:
        ValueError: If a grant is unknown, or a single text was given where several are expected.
    """

    def __init__(
        self,
        namespace: Sequence[str] | Callable[[Any], Sequence[str]] = ("deepskills", "approvals"),
        applies_to: AppliesTo | None = None,
        *,
        grants: Iterable[str] = (),
    ) -> None:
        if isinstance(namespace, str) or isinstance(grants, str):
            raise ValueError("SkillApproval takes sequences for `namespace` and `grants`, not a single text.")  # noqa: TRY004
        self._namespace = namespace if callable(namespace) else tuple(namespace)
        self._grants = tuple(dict.fromkeys(grants))
        unknown = [grant for grant in self._grants if grant not in GRANTS]
        if unknown:
            raise ValueError(f"SkillApproval has no grant {unknown[0]!r}; choose from {', '.join(GRANTS)}.")
        is_rule = applies_to is None or callable(applies_to)
        self._rule: Any = applies_to if is_rule else tidy_sources("applies_to", applies_to)  # type: ignore[arg-type]
        self._files: BoundedCache[str, dict[str, str]] = BoundedCache(MAX_REMEMBERED_BYTES)
        self._asked: BoundedCache[str, list[_Question]] = BoundedCache(MAX_REMEMBERED_BYTES, _weigh_questions)

    def withholds(self, entry: SkillEntry, memory: Mapping[str, Any]) -> Collection[str]:
        """Withhold what was not granted with the load."""
        if not self._grants or not self.guards(entry):
            return ()
        given = self._given(entry, memory)
        return [grant for grant in self._grants if grant not in (given or ())]

    def granted(self, entry: SkillEntry, run: SkillRun) -> frozenset[str] | None:
        """Return what was granted to a skill on this thread; `None` if it was not approved here. No I/O."""
        return self._given(entry, run.memory)

    def _given(self, entry: SkillEntry, memory: Mapping[str, Any]) -> frozenset[str] | None:
        """Return what was granted to this very content of a skill; `None` if it was not approved here."""
        approved = self._approved(entry, memory)
        # A path alone would pass a grant on to whatever lies there later.
        known = {entry.sha256, entry.digest} - {""}
        if approved is None or known.isdisjoint({approved.get("text"), approved.get("listed")}):
            return None
        return frozenset(approved.get("grants", ()))

    def guards(self, entry: SkillEntry) -> bool:
        """Whether a skill needs an approval; a rule that fails says yes."""
        if self._rule is None:
            return True
        if not callable(self._rule):
            return tidy_source(entry.source) in self._rule
        try:
            return bool(self._rule(entry))
        except Exception:
            logger.exception(
                "`applies_to` of SkillApproval failed for the skill %r, which needs an approval", entry.name
            )
            return True

    def guards_source(self, source: str) -> bool:
        """Whether files of a source need an approval; a function of the entry cannot tell, so then they do not."""
        return self._rule is None or (not callable(self._rule) and tidy_source(source) in self._rule)

    async def expected(self, entry: SkillEntry, run: SkillRun) -> Mapping[str, str] | Refuse:
        """Return the approved files; for a skill that this thread has not loaded, those that the store knows."""
        approved = self._approved(entry, run.memory)
        if approved is None:
            try:
                manifest = await run.manifest(entry)
            except SkillsError as error:
                return Refuse(str(error))
            approved = await self._recalled(entry, manifest, run)
        if approved is None:
            return Refuse(NOT_APPROVED.format(name=f'"{entry.name}"'))
        # An approval is for a digest; find out first which files it stands for.
        files = await self._files_of(approved, entry, run)
        return files if files is not None else self.complaint(entry, ["its files"], run)

    def complaint(self, entry: SkillEntry, differences: Sequence[str], run: SkillRun) -> Refuse:  # noqa: ARG002
        """Refuse files that differ from what was approved."""
        return Refuse(CHANGED_SINCE_APPROVAL.format(name=f'"{entry.name}"', files=name_files(differences)))

    async def before_read(self, entry: SkillEntry, run: SkillRun) -> Refuse | None:
        """Ask a human about content that nobody approved."""
        if not self.guards(entry):
            return None
        place = _Place.current()
        asked = await self._asked_before(place, run)
        # A call of a tool is one load, whatever its name stood for when a human was asked. Pins ask about several.
        is_one_load = getattr(run.runtime, "tool_call_id", None) is not None
        own = [question for question in asked if is_one_load or question.path == entry.path]
        answered = [question for question in own if place is not None and question.position < len(place.answers)]
        decisions = [self._take(question, asked, place, run) for question in answered if place is not None]
        rejected = next((decision for decision in decisions if isinstance(decision, Refuse)), None)
        if rejected is not None:
            return rejected
        try:
            manifest = await run.manifest(entry)
        except SkillsError as error:
            return Refuse(str(error))
        # The newest first: who was asked again about the same content may grant less.
        for question, decision in reversed([*zip(answered, decisions, strict=True)]):
            # A digest in the answer is stronger: it says what the human saw.
            if not isinstance(decision, Refuse) and manifest.digest == (decision.digest or question.digest_for(entry)):
                self._remember(entry, manifest, decision.grants, run)
                # An earlier answer, with another one or a question after it, was stored when it came, for the user who
                # gave it; this run may be another user's.
                is_new = question == asked[-1] and place is not None and question.position == len(place.answers) - 1
                if is_new:
                    await self._store(entry, manifest, decision.grants, run)
                return None
        # Approved before, by this thread or in the store: nobody is asked twice about the same bytes. But who was asked
        # and has not answered yet decides.
        if len(answered) == len(own) and (await self._recalled(entry, manifest, run)) is not None:
            return None
        return self._ask(entry, manifest, asked, len(answered), place, run)

    def _ask(
        self,
        entry: SkillEntry,
        manifest: SkillManifest,
        asked: Sequence["_Question"],
        rounds: int,
        place: "_Place | None",
        run: SkillRun,
    ) -> Refuse:
        """Ask a human about the content that is there now, or refuse where that is impossible."""
        if place is None:
            run.report(entry.path, NO_CHECKPOINTER_CODE, APPROVAL_NO_CHECKPOINTER, "error")
            logger.error("The skill %r needs an approval, and the agent has no checkpointer", entry.name)
            return Refuse(APPROVAL_NO_CHECKPOINTER)
        if rounds < MAX_ASKED:
            history = [question for question in asked if question.position < len(place.answers)]
            question = _Question(entry.path, manifest.digest, len(place.answers))
            # The checkpoint knows it too, for other processes; but not once another extension asks after us.
            self._asked.put(place.task, [*history, question])
            place.ask(_content_of(entry, manifest, self._grants) | question.as_dict(history))
        return Refuse(CHANGES_WHILE_ASKED.format(name=f'"{entry.name}"'))

    async def before_load(self, load: SkillLoad, run: SkillRun) -> Refuse | None:
        """Refuse a load that came by a way on which nobody was asked."""
        entry = load.entry
        if not self.guards(entry):
            return None
        if self._approved(entry, run.memory) is None:
            return Refuse(NOT_APPROVED.format(name=f'"{entry.name}"'))
        # Another call of the turn may have read the file before this one asked, and it may have changed since.
        expected = await self.expected(entry, run)
        if isinstance(expected, Refuse):
            return expected
        return self._judge_digest(entry, expected, run)

    def _judge_digest(self, entry: SkillEntry, expected: Mapping[str, str], run: SkillRun) -> Refuse | None:
        # Where only a summary is known here, the backend compares the bytes itself. What may change with every read was
        # approved as it was shown, too.
        is_same = not entry.sha256 or expected.get(SKILL_FILE) == entry.sha256
        return None if is_same else self.complaint(entry, [f"`{SKILL_FILE}`"], run)

    async def change_text(self, load: SkillLoad, run: SkillRun) -> str | Refuse:
        """Keep out a text that was not made from the approved file."""
        entry = load.entry
        if not self.guards(entry):
            return load.text
        if self._approved(entry, run.memory) is None and load.trigger == "model":
            # A sibling call may prepare this load to know its cost; the load itself is judged by `before_load`.
            return load.text
        expected = await self.expected(entry, run)
        if isinstance(expected, Refuse):
            return expected
        return self._judge_digest(entry, expected, run) or load.text

    async def _asked_before(self, place: "_Place | None", run: SkillRun) -> list["_Question"]:
        """Return what this task asked, with and without an answer, before it was executed again."""
        if place is None:
            return []
        asked = await place.read_asked(run)
        # If another extension has asked since, the last answer is to its question, perhaps in the place of ours.
        remembered = self._asked.get(place.task) or []
        return asked or [question for question in remembered if question.position < len(place.answers) - 1]

    def _take(
        self, question: "_Question", asked: Sequence["_Question"], place: "_Place", run: SkillRun
    ) -> "_Approval | Refuse":
        """Return the answer to a question, and let LangGraph count it: who asks after us gets the next."""
        count = asked.index(question) + 1
        if _position(run.memory, place.task) < count:
            place.skip()
            run.remember("asked", {"task": place.task, "count": count})
        return _decide(place.answers[question.position], self._grants)

    async def _recalled(self, entry: SkillEntry, manifest: SkillManifest, run: SkillRun) -> Mapping[str, Any] | None:
        """Return an approval of the content that the thread or the store remembers."""
        # Content that changes with every read is asked about every time.
        if not manifest.remembered:
            return None
        approved = self._approved(entry, run.memory)
        if approved is not None and (approved["digest"], approved["origin"]) == (manifest.digest, manifest.origin):
            self._files.put(manifest.digest, _plain(manifest))
            return approved
        value = await self._stored(entry, manifest.origin, manifest.digest, run)
        if value is None:
            return None
        return self._remember(entry, manifest, [g for g in value.get("grants", ()) if g in self._grants], run)

    async def _stored(self, entry: SkillEntry, origin: str, digest: str, run: SkillRun) -> Mapping[str, Any] | None:
        store = getattr(run.runtime, "store", None)
        if store is None:
            return None
        key = _key(origin, digest)
        try:
            item = await call_either(run, store.get, store.aget, self._place_of(run), key)
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001 - a store may raise anything; nothing is approved by that
            self._report_store(entry, error, run)
            return None
        value = getattr(item, "value", None)
        # The key is a hash of both; the value must match as well, because a store may be shared.
        is_ours = isinstance(value, Mapping) and (value.get("origin"), value.get("digest")) == (origin, digest)
        return value if is_ours else None

    async def _store(self, entry: SkillEntry, manifest: SkillManifest, grants: list[str], run: SkillRun) -> None:
        """Remember an approval in the store, if there is one."""
        store = getattr(run.runtime, "store", None)
        if store is None or not manifest.remembered:
            return
        key, value = (
            _key(manifest.origin, manifest.digest),
            {
                "name": entry.name,
                "origin": manifest.origin,
                "digest": manifest.digest,
                "files": _plain(manifest),
                "grants": grants,
            },
        )
        try:
            await call_either(run, store.put, store.aput, self._place_of(run), key, value)
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001 - a store may raise anything; the thread remembers
            self._report_store(entry, error, run)

    def _place_of(self, run: SkillRun) -> tuple[str, ...]:
        if not callable(self._namespace):
            return self._namespace
        found = self._namespace(run.runtime)
        # A coroutine, or a text that would count as a list of letters, must not become a place that users share.
        if (
            not isinstance(found, list | tuple)
            or not found
            or not all(isinstance(part, str) and part for part in found)
        ):
            raise ValueError("`namespace` of SkillApproval must return a sequence of texts")
        return tuple(found)

    def _report_store(self, entry: SkillEntry, error: Exception, run: SkillRun) -> None:
        logger.warning("Approvals cannot be read from or kept in the store: %s: %s", type(error).__name__, error)
        message = f"Approvals are remembered only by this thread: the store failed ({type(error).__name__})."
        run.report(entry.path, STORE_CODE, message)

    def _remember(
        self, entry: SkillEntry, manifest: SkillManifest, grants: list[str], run: SkillRun
    ) -> Mapping[str, Any]:
        text = _plain(manifest).get(SKILL_FILE, "")
        approved = {"digest": manifest.digest, "origin": manifest.origin, "grants": grants}
        # Which content of the `SKILL.md` the grants are for: its own digest, and the one that its source lists for it.
        # A file that has changed since it was listed is another content.
        approved |= {"text": text, "listed": entry.digest if entry.sha256 in {"", text} else ""}
        self._files.put(manifest.digest, _plain(manifest))
        run.remember(entry.path, approved)
        return approved

    def _approved(self, entry: SkillEntry, memory: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return what this thread approved of a skill."""
        found = memory.get(entry.path)
        is_ours = isinstance(found, Mapping) and isinstance(found.get("digest"), str) and "origin" in found
        return found if is_ours else None

    async def _files_of(
        self, approved: Mapping[str, Any], entry: SkillEntry, run: SkillRun
    ) -> Mapping[str, str] | None:
        """Return the files that a digest stands for; `None` if that is unknown because they have changed since."""
        digest = approved["digest"]
        known = self._files.get(digest)
        if known is not None:
            return known
        value = await self._stored(entry, approved["origin"], digest, run)
        files = value.get("files") if value is not None else None
        # No matter who wrote them: they prove themselves.
        if isinstance(files, Mapping) and digest_over(files) == digest:
            self._files.put(digest, dict(files))
            return files
        try:
            manifest = await run.manifest(entry)
        except SkillsError:
            return None
        if manifest.digest != digest:
            return None
        self._files.put(digest, _plain(manifest))
        return _plain(manifest)


def _plain(manifest: SkillManifest) -> dict[str, str]:
    return {path: file.sha256 for path, file in manifest.files.items()}


def _key(origin: str, digest: str) -> str:
    return hashlib.sha256(f"{origin}\0{digest}".encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class _Question:
    """What a human was asked about."""

    path: str
    digest: str
    position: int
    """How many answers the task had when this was asked, and so the place of the answer to it."""

    def digest_for(self, entry: SkillEntry) -> str | None:
        """Return the digest that was shown, if it was shown for this skill."""
        return self.digest if self.path == entry.path else None

    def as_dict(self, history: Sequence["_Question"] = ()) -> dict[str, Any]:
        """Return it as plain data, with what was asked before it."""
        fields = {"path": self.path, "digest": self.digest, "position": self.position}
        return {**fields, "history": [question.as_dict() for question in history]} if history else fields

    @classmethod
    def of(cls, value: object) -> "_Question | None":
        """Return the question in plain data; `None` if it is none of ours."""
        if not isinstance(value, Mapping) or not isinstance(value.get("position"), int):
            return None
        return cls(str(value.get("path")), str(value.get("digest")), value["position"])


def _weigh_questions(questions: Sequence[_Question]) -> int:
    return sum(ENTRY_BYTES + 4 * len(question.path) for question in questions)


@dataclass(frozen=True)
class _Approval:
    """An answer that approves."""

    grants: list[str]
    digest: str | None
    """The digest that it names, if any."""


def _content_of(entry: SkillEntry, manifest: SkillManifest, grants: Sequence[str]) -> dict[str, Any]:
    """Return everything that a human needs to decide, as plain data for a user interface."""
    size = manifest.files[SKILL_FILE].size if SKILL_FILE in manifest.files else 0
    return {
        "type": INTERRUPT_TYPE,
        "name": entry.name,
        "description": entry.description,
        "source": manifest.origin,
        "tokens": count_tokens(manifest.text) if manifest.text else size // _BYTES_PER_TOKEN,
        "files": {path: {"sha256": file.sha256, "size": file.size} for path, file in sorted(manifest.files.items())},
        "grants": list(grants),
    }


def _decide(answer: object, grants: Sequence[str]) -> _Approval | Refuse:
    """Return the approval in an answer, or the refusal."""
    # The envelope that LangChain's own human review uses, so that one user interface serves both.
    if isinstance(answer, Mapping) and isinstance(answer.get("decisions"), list) and len(answer["decisions"]) == 1:
        answer = answer["decisions"][0]
    kind = answer.get("type") if isinstance(answer, Mapping) else None
    if isinstance(answer, Mapping) and kind == "approve":
        given, digest = answer.get("grants"), answer.get("digest")
        wanted = given if isinstance(given, list | tuple | set) else ()
        return _Approval([grant for grant in grants if grant in wanted], digest if isinstance(digest, str) else None)
    if isinstance(answer, Mapping) and kind == "reject":
        message = answer.get("message")
        said = f": {message}" if isinstance(message, str) and message.strip() else "."
        return Refuse(APPROVAL_REJECTED.format(message=said if said.endswith((".", "!", "?")) else f"{said}."))
    logger.error(
        "An approval was answered with %r; use {'type': 'approve'} or {'type': 'reject'}", type(answer).__name__
    )
    return Refuse(APPROVAL_NOT_UNDERSTOOD)


def _position(memory: Mapping[str, Any], task: str) -> int:
    """Return how many questions of this execution have been answered: several skills may be pinned at once."""
    asked = memory.get("asked")
    is_now = isinstance(asked, Mapping) and asked.get("task") == task
    return int(asked["count"]) if is_now else 0  # type: ignore[index]


class _Place:
    """The task that is being executed: what it asked before it was interrupted, and the answers."""

    def __init__(self, saver: Any, config: Mapping[str, Any], task: str, answers: list[Any]) -> None:  # noqa: ANN401 - a checkpointer
        self.task = task
        self.answers = answers
        """Every answer that the task has got, to us and to others, by position."""
        self._saver = saver
        self._config = config

    @classmethod
    def current(cls) -> "_Place | None":
        """Return the place of this execution; `None` if an interrupt would be lost."""
        try:
            given: Mapping[str, Any] = get_config().get("configurable") or {}
        # Outside a graph.
        except RuntimeError:
            return None
        # LangGraph hands these down under these keys, to sub-graphs too; there are no public names for them.
        saver, answers = given.get("__pregel_checkpointer"), given.get("__pregel_scratchpad")
        if not hasattr(saver, "get_tuple") or answers is None:
            return None
        namespace = str(given.get("checkpoint_ns") or "")
        # The task's own checkpoint namespace; its pending writes are kept one level up.
        above, _, own = namespace.rpartition("|")
        config = {"thread_id": given.get("thread_id"), "checkpoint_ns": above}
        checkpoint = (given.get("checkpoint_map") or {}).get(above)
        if checkpoint:
            config["checkpoint_id"] = checkpoint
        # An answer without an id is for the only question that waits; `False` leaves it there.
        single = answers.get_null_resume(False)  # noqa: FBT003 - LangGraph's signature
        got = list(answers.resume)
        if single is not None and all(single is not answer for answer in got):
            got.append(single)
        return cls(saver, {"configurable": config}, own.rpartition(":")[2], got)

    async def read_asked(self, run: SkillRun) -> list[_Question]:
        """Return what this task asked, as the question that waits in the checkpoint tells."""
        try:
            found = await call_either(run, self._saver.get_tuple, self._saver.aget_tuple, self._config)
            for task, channel, value in (found.pending_writes or ()) if found is not None else ():
                if task == self.task and channel == "__interrupt__":
                    return _questions_in(value)
        except Exception:
            logger.exception(UNREADABLE)
        return []

    def skip(self) -> None:
        """Count a question of ours that has its answer."""
        # If others asked more than before, nothing is left at this position; our answer is known all the same.
        with suppress(GraphInterrupt):
            interrupt({"type": INTERRUPT_TYPE})

    def ask(self, question: dict[str, Any]) -> None:
        """Ask a question that has no answer: whatever comes back was meant for others."""
        for _ in range(len(self.answers) + 1):
            interrupt(question)


def _questions_in(value: object) -> list[_Question]:
    """Return our question among the interrupts that wait in a checkpoint, after those that were asked before it."""
    for item in value if isinstance(value, list | tuple) else (value,):
        asked = getattr(item, "value", None)
        if isinstance(asked, Mapping) and asked.get("type") == INTERRUPT_TYPE:
            found = [_Question.of(one) for one in (*asked.get("history", ()), asked)]
            return [question for question in found if question is not None]
    return []

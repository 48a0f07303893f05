"""Suggests skills beside each user message, so that a library of any size costs as much as a few entries.

The note goes to the end of the user's message and stays there: a note at the end of the request would move with every
call and break the provider's prompt cache. So it is recorded once, with the lines as they were sent, and shown again in
every later request, except for lines of skills that this run's user may not see.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from langchain.agents.middleware.types import ModelRequest
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AnyMessage

from deepskills import SkillEntry, SkillExtension, SkillMissed, SkillRun, SkillShadow
from deepskills._catalog.lookup import find_index
from deepskills._catalog.ranking import SECONDS, Ranker, Ranking
from deepskills._catalog.search import SearchIndex
from deepskills._io.drivers import adrive, drive
from deepskills._io.plan import Plan, in_worker
from deepskills._prompt.messages import NOTE_HEADING, suggestion_line, suggestion_note, word_replaced_list
from deepskills._types import DEFAULT_SUGGESTIONS
from deepskills.extensions._shared import MaybeAwaitable

CatalogForm: TypeAlias = Literal["full", "none"]
"""Whether the section lists all skills, or only says how many there are."""

TROUBLE = "embeddings-failed"
"""Code of the problem that suggestions use only words."""

FIRST_NOTE, EACH_NOTE = 500, 350
"""How many characters the notes of a thread have for descriptions and names: some at once, and more with each message.

After fifteen messages that makes 5,750 at most, about 1,440 tokens."""

_NOTE = "note:"
_ASKED = "asked"
_RANKED = "ranked"
_AHEAD = "ahead"
_SHADOW = "shadow"


class SkillSuggestions(SkillExtension):
    """Puts the skills that fit the newest user message best into a note at its end, in requests only.

    The note is recorded once and stays the same in all later requests of the thread, so that prompt caches hold.
    If nothing fits, there is no note. Skills that this run may not see are left out, even of older notes.

    Args:
        k: How many skills are suggested at most; 5 by default.
        embeddings: LangChain embeddings, to suggest by meaning as well as by words. Vectors are kept in the graph's
            store if there is one.
        catalog: `"full"` also lists all skills in the system prompt; `"none"` replaces the list with one line and turns
            on `search_skills`, so that the size of the prompt no longer depends on the library.
        timeout: Seconds that a run waits for embeddings; after that, only words are used.
        shadow: Show no notes, and emit `skill.shadow` at a run's end for each skill that would have been suggested and
            each that the model loaded: try suggestions on real conversations before the model sees any.

    Raises:
        TypeError: If `embeddings` is not embeddings.
        ValueError: If another argument has a value that it cannot have.
    """

    ranks_skills = True

    def __init__(
        self,
        k: int = DEFAULT_SUGGESTIONS,
        embeddings: Embeddings | None = None,
        catalog: CatalogForm = "full",
        *,
        timeout: float = SECONDS,
        shadow: bool = False,
    ) -> None:
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise ValueError(f"k must be a whole number of at least 1, got {k!r}")
        if catalog not in get_args(CatalogForm):
            raise ValueError(f"catalog must be 'full' or 'none', got {catalog!r}")
        if not isinstance(timeout, int | float) or not timeout > 0:
            raise ValueError(f"timeout must be a number of seconds above 0, got {timeout!r}")
        self._k = k
        self._catalog = catalog
        self._is_shadow = shadow
        self._ranker = Ranker(embeddings, seconds=timeout)
        self._has_meaning = embeddings is not None
        if catalog == "none":
            self.extra_tools = ("search_skills",)

    def catalog_list(self, skills: Sequence[SkillEntry]) -> str | None:
        """Return the line in place of the list, with `catalog="none"`."""
        return word_replaced_list(len(skills)) if self._catalog == "none" and skills else None

    def change_request(self, request: ModelRequest[Any], run: SkillRun) -> MaybeAwaitable[ModelRequest[Any]]:
        """Show the notes at the ends of their messages; skills are ranked once for each message."""
        message = _find_unanswered(run)
        # Here and not when the run starts: now what the user started with the same message is loaded.
        return self._show_notes(request, run) if message is None else _perform(self._rank(message, request, run), run)

    async def _rank(self, message: AnyMessage, request: ModelRequest[Any], run: SkillRun) -> ModelRequest[Any]:
        # Some more than needed, because loaded ones are left out afterwards.
        count, hidden = self._k + len(run.loaded), await _find_hidden(run)
        ranking = await self._ranker.rank(
            _index_of(run), str(message.text), count, store=_get_store(run), hidden=hidden
        )
        self._record_note(message, ranking, run)
        return self._show_notes(request, run)

    def _show_notes(self, request: ModelRequest[Any], run: SkillRun) -> ModelRequest[Any]:
        if self._is_shadow:
            return request
        notes = {message_id: lines for message_id, lines in _notes(run.memory) if lines}
        if not notes:
            return request
        present = [line for message in request.messages for line in notes.get(message.id or "", ())]
        shown = _format_lines({line.name for line in present}, run)
        messages = [
            _append_note(
                message, [line.text for line in notes.get(message.id or "", ()) if _may_show(line, shown, run)]
            )
            for message in request.messages
        ]
        return request.override(messages=messages)

    def search(self, query: str, n: int, run: SkillRun) -> MaybeAwaitable[Sequence[str] | None]:
        """Return what `search_skills` finds by words and meaning; without embeddings the core searches by words."""
        if not self._has_meaning:
            return None
        return _perform(self._search(query, n, run), run)

    async def _search(self, query: str, n: int, run: SkillRun) -> Sequence[str]:
        hidden = await _find_hidden(run)
        ranking = await self._ranker.search(_index_of(run), query, n, store=_get_store(run), hidden=hidden)
        _report(ranking, run)
        return ranking.names

    def at_end(self, run: SkillRun) -> None:
        """Report the skill that was clearly right if none was loaded, and what a shadow would have shown."""
        _report_shadow(run)
        ahead = run.memory.get(_AHEAD)
        if not isinstance(ahead, Mapping):
            return
        run.remember(_AHEAD, None)
        message = run.user_message
        if message is None or message.id != ahead.get("message") or any(loaded.is_recent for loaded in run.loaded):
            return
        entry = next((entry for entry in run.visible if entry.name == ahead.get("skill")), None)
        if entry is not None:
            run.emit(SkillMissed(skill=entry.name, source=entry.source, digest=entry.digest))

    def _record_note(self, message: AnyMessage, ranking: Ranking, run: SkillRun) -> None:
        """Record what is suggested for a message."""
        in_use = {loaded.entry.name for loaded in run.loaded if not loaded.is_lost}
        names = [name for name in ranking.fitting if name not in in_use][: self._k]
        present = {known.id for known in run.state.get("messages", ())}
        earlier = {known: lines for known, lines in _notes(run.memory) if known in present}
        if self._is_shadow:
            run.remember(_SHADOW, {"message": message.id, "skills": names})
        else:
            run.remember(f"{_NOTE}{message.id}", [list(line) for line in _choose_lines(names, earlier, run)])
        run.remember(_ASKED, message.id)
        run.remember(_RANKED, {"message": message.id, "names": list(ranking.names)})
        is_ahead = ranking.is_clear and names[:1] == ranking.fitting[:1]
        run.remember(_AHEAD, {"message": message.id, "skill": names[0]} if is_ahead else None)
        _report(ranking, run)
        # Otherwise notes of messages that are gone would stay in the thread's state forever.
        for message_id, _ in _notes(run.memory):
            if message_id not in present:
                run.remember(f"{_NOTE}{message_id}", None)


def _report_shadow(run: SkillRun) -> None:
    """Compare what would have been suggested with what the model loaded for the same message."""
    recorded, message = run.memory.get(_SHADOW), run.user_message
    if not isinstance(recorded, Mapping):
        return
    run.remember(_SHADOW, None)
    names = recorded.get("skills")
    if message is None or message.id != recorded.get("message") or not isinstance(names, list):
        return
    ranks = {name: rank for rank, name in enumerate(names, 1) if isinstance(name, str)}
    loaded = {use.entry.name for use in run.loaded if use.is_recent and use.trigger == "model"}
    for entry in run.visible:
        if entry.name in ranks or entry.name in loaded:
            run.emit(
                SkillShadow(
                    skill=entry.name,
                    source=entry.source,
                    digest=entry.digest,
                    rank=ranks.get(entry.name),
                    loaded=entry.name in loaded,
                )
            )


ResultT = TypeVar("ResultT")


def _perform(plan: Plan[ResultT], run: SkillRun) -> MaybeAwaitable[ResultT]:
    return adrive(plan) if run.is_async else drive(plan)


def _index_of(run: SkillRun) -> Callable[[], SearchIndex]:
    """Return what finds the index of all skills."""
    entries, bare = tuple(run.skills), run.name_only
    return lambda: find_index(entries, bare)


async def _find_hidden(run: SkillRun) -> frozenset[str]:
    """Return the names of the skills that the model may not see."""
    skills, visible = run.skills, run.visible
    return await in_worker(lambda: frozenset({e.name for e in skills} - {e.name for e in visible}), len(skills))


def _find_unanswered(run: SkillRun) -> AnyMessage | None:
    """Return the user's newest message, if nothing was suggested for it yet."""
    message = run.user_message
    if message is None or not message.id or message.id == run.memory.get(_ASKED):
        return None
    return message if str(message.text).strip() else None


def _report(ranking: Ranking, run: SkillRun) -> None:
    if ranking.trouble is not None:
        run.report("embeddings", TROUBLE, f"Skills are not, or not yet, found by their meaning. {ranking.trouble}")


def _get_store(run: SkillRun) -> Any:  # noqa: ANN401 - LangGraph's store
    return getattr(run.runtime, "store", None)


class _Line(NamedTuple):
    """The line of a note about one skill."""

    name: str
    text: str
    source: str = ""
    """Path of the source that gave it."""


def _format_lines(names: set[str], run: SkillRun) -> dict[str, _Line]:
    """Return the lines of those skills that this run may see."""
    bare = run.name_only
    return {
        entry.name: _Line(entry.name, suggestion_line(entry, shows_description=entry.name not in bare), entry.source)
        for entry in run.visible
        if entry.name in names
    }


def _choose_lines(names: Sequence[str], earlier: Mapping[str, list[_Line]], run: SkillRun) -> list[_Line]:
    """Return the lines of a new note: names alone where the thread has the description, or no room for it."""
    shown = _format_lines(set(names), run)
    by_name = {entry.name: entry for entry in run.visible if entry.name in shown}
    known = {line.text for lines in earlier.values() for line in lines}
    used = sum(len(suggestion_note(line.text for line in lines)) for lines in earlier.values() if lines)
    room = FIRST_NOTE + EACH_NOTE * (len(earlier) + 1) - used - len(NOTE_HEADING)
    full = [shown[name] for name in names if name in shown]
    bare = [line._replace(text=suggestion_line(by_name[line.name], shows_description=False)) for line in full]
    # What the names alone take, so that a description crowds out no skill.
    room -= sum(len(line.text) + 1 for line in bare)
    chosen = []
    for line, short in zip(full, bare, strict=True):
        more = len(line.text) - len(short.text)
        has_description = line.text not in known and more <= room
        chosen.append(line if has_description else short)
        room -= more if has_description else 0
    return chosen


def _may_show(line: _Line, shown: Mapping[str, _Line], run: SkillRun) -> bool:
    """Whether a recorded line is shown in this run.

    It stays as it was sent, so that prompt caches hold, even after its skill was edited or removed, unless this run
    belongs to a user who may not see the skill.
    """
    now = shown.get(line.name)
    # A name alone tells nothing that the present line does not.
    is_same = now is not None and (now.text == line.text or now.text.startswith(f"{line.text}: "))
    return is_same or run.may_still_show(line.name, line.source)


def _notes(memory: Mapping[str, Any]) -> Iterator[tuple[str, list[_Line]]]:
    """Return what was suggested for each message; anything of another shape is skipped."""
    for key, value in memory.items():
        if key.startswith(_NOTE) and isinstance(value, list):
            lines = [
                _Line(*item)
                for item in value
                if isinstance(item, list | tuple)
                and len(item) in (2, 3)
                and all(isinstance(part, str) for part in item)
            ]
            yield key.removeprefix(_NOTE), lines


def _append_note(message: AnyMessage, lines: list[str]) -> AnyMessage:
    """Return a message with a note at its end, also one whose content is made of blocks."""
    if not lines:
        return message
    note, content = suggestion_note(lines), message.content
    if isinstance(content, str):
        return message.model_copy(update={"content": f"{content}\n\n{note}"})
    return message.model_copy(update={"content": [*content, {"type": "text", "text": note}]})

"""Search by words: the right skill first, in any script, with word forms and small typing slips.

**What is ranked.** Five fields of a skill: name, tags, description, headings and the beginning of the instructions.
What a description says the skill is *not* for is left out. A word counts more in the name or the description than in
the instructions, but the instructions bring most of the words that people use in requests.

**How.** BM25 over weighted fields: the more often and the more prominently a skill has a word the more it counts,
with less and less gain, and rare words of the library count more than common ones. Words of the request that stand
side by side and do so in a skill as well count extra. Lengths are compared with those of a typical skill, not with
the average of the library. So what a word says of a skill depends on that skill alone, is counted once, and stays
right when other skills come and go; only how rare a word is depends on the library, and that is looked up with each
query.

**An edited library is not counted again.** An index consists of segments that never change. The index of a library
that shares most skills with an indexed one takes over its segment, leaves out what is gone, and counts only what is
new. `counts` keeps segments of large libraries in a graph's store, for other processes.

**Whether anything fits** is another question than which skill is best. `SearchIndex.rank` answers both; see `Match`.

NumPy adds up scores where it is installed, plain Python elsewhere: the same sums in the same order, so the same
result.
"""

import bisect
import functools
import heapq
import importlib
import math
import operator
import re
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any, NamedTuple, Self, TypeVar

from deepskills._catalog.words import (
    GRAMMAR_WORDS,
    STOP_WORDS,
    is_grammar,
    is_unspaced,
    new_stem,
    plain_text,
    split_words,
    stem,
    worth,
)

MAX_RESULTS = 10_000
"""How many matches are given at most."""

MAX_BEGINNING = 6_000
"""How many characters of a skill's instructions are searched, code blocks not counted."""

MAX_LATER_HEADINGS = 600
"""How many characters of headings behind that beginning are searched as well."""

MAX_BODY_READ = 16_000
"""How many characters of the instructions are looked at to find their beginning and headings."""

QUERY_BEGINNING, QUERY_END = 1_400, 600
"""How many characters of a long request count: people say what they want first, or last."""

WEIGHTS = {"name": 8.0, "tags": 6.0, "description": 5.0, "headings": 1.2, "beginning": 0.5}
"""What a word counts in each field.

Names and tags say in a few words what a skill is for, descriptions when to use it. Instructions say so much that a
word in them says little, but they bring most of the words that people use: without them the right skill of 10,000 is
first in 45 of 100 requests, with them in 57. Around these weights hardly anything changes."""

TYPICAL_WORDS = {"name": 3, "tags": 8, "description": 35, "headings": 25, "beginning": 400}
"""How many words each field of a typical public skill has."""

LENGTH_MATTERS = 0.35
"""How much less a word counts in a longer field, from 0 for not at all to 1 for in proportion.

Long descriptions are mostly better ones, so this is less than the usual 0.75."""

SATURATION = 2.5
"""The weighted count at which a word has half of its effect."""

REPEATED = 1.0
"""How much a word counts more that is repeated in a request; at most twice as much."""

FAR_FROM_ENDS = 80
"""At how many words from the nearer end of a request a word counts half."""

SAYS_LITTLE = 0.3
"""What a number counts in a request, or letters that only inflect a word."""

NAMED = 0.2
"""What the words of a skill's name count extra if they stand together in a request."""

SIDE_BY_SIDE = 0.25
"""What two words count extra that stand side by side in request and skill, of what the commoner one counts."""

IN_INSTRUCTIONS = 0.8
"""What that counts if it is in the instructions."""

RERANKED = 15
"""For how many of the best skills it is looked at which words stand side by side."""

OTHER_FORM = 0.7
"""What a word counts that a skill has only in another form or spelling."""

MAX_FORMS = 8
"""How many forms and corrections of one word are searched for."""

MAX_CORRECTED = 12
"""How many unknown words of a query are corrected."""

MAX_WORD_LENGTH = 32
"""Longest word whose slips are corrected."""

MIN_PREFIX_LENGTH = 5
"""How many first letters two forms of a word share at least."""

SHARED_BEGINNING = 0.65
"""How much of a word its other forms share with it."""

CONVINCES = (1.9, 1.9, 2.6, 0.2, -1.0, -2.0, 0.4)
"""What each kind of evidence counts; see `Evidence`. Fitted to public requests, with skills of 100 to 10,000."""

ENOUGH = 1.4
"""How much evidence is enough."""

MOST_WORDS = 6.0
"""How many shared words are evidence: a long request shares more with any skill."""

NO_SCORE, NO_LEAD = 0.1, 0.05
"""What is added to a score and to a lead before the logarithm, which small ones would otherwise make endlessly low."""

NEARLY_ALL = 0.75
"""How much of a request is nearly everything that it says."""

SOME = 0.55
"""How much must be shared then, counted in words that no skill of the library has."""

FEWEST_SKILLS = 100
"""How large a library is at least taken to be when it is judged how rare a word is."""

MAX_NEW = 0.05
"""How much of a library may be new for its index to be made from another one's."""

FEW = 200
"""Libraries smaller than this are indexed at once; to look for a similar one would take as long."""

_LEVELS = 255
_DOCUMENT_SHIFT = 8
_POSTING_BITS = 32
_PARTS = 512
_HALF_EFFECT = round(SATURATION * _PARTS)
_WEIGHT_SHIFT = 16
_MOST_WEIGHT = (1 << _WEIGHT_SHIFT) - 1
_SLOT_SHIFT = 40
_WORDS_AT_ONCE = 250_000
_CORE = frozenset(["name", "tags", "description"])
COUNTED_BY = repr((1, WEIGHTS, TYPICAL_WORDS, LENGTH_MATTERS, SATURATION, _PARTS, _LEVELS))
"""What counts of words depend on besides the texts; the first number stands for how texts are split into words."""

_FENCE = "```"
_MARKS_OF_EXCLUSION = ("n't", "n\u2019t", "never", "不", "勿", "使わない")
_EXCLUSION = re.compile(
    r"(?:\b(?:do\s+not|don['\u2019]t|never|not)\s+(?:use|trigger|invoke|activate|for)\b"
    r"|\bnot\s+(?:intended|meant|suitable|applicable)\s+for\b"
    r"|不(?:要|用于|适用|适合|触发)|請勿|请勿|使わない)[^.。;；\n]*[.。;；\n]?",
    re.IGNORECASE,
)


KeyT = TypeVar("KeyT")


@dataclass(frozen=True)
class Document:
    """What is searched of a skill."""

    name: str
    description: str
    tags: str = ""
    beginning: bytes = b""
    """Headings and the beginning of the instructions, as `beginning_of` gives them."""


MAX_LIBRARY_BYTES = 256_000_000
"""How much memory the libraries take that a cache remembers, over all catalogs: tens of thousands of usual skills."""

_DOCUMENT_BYTES = 400
"""What a skill takes in a library beside its texts."""


class Library(tuple[Document, ...]):  # noqa: SLOT001 - it remembers
    """A catalog to rank, which remembers what it is known by; for callers that rank the same one again."""

    @functools.cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or super().__eq__(other)

    @property
    def weight(self) -> int:
        """How many bytes it takes, for caches, which are bounded in bytes."""
        # Not a cached property: on Python 3.11 one that is slow to compute holds up all others of the class.
        known: int | None = self.__dict__.get("_weight")
        if known is None:
            known = self.__dict__["_weight"] = self._weighed()
        return known

    def _weighed(self) -> int:
        texts = (sum(map(getsizeof, (d.name, d.description, d.tags, d.beginning))) for d in self)
        return _DOCUMENT_BYTES * (1 + len(self)) + sum(texts)

    @functools.cached_property
    def vectors(self) -> dict[tuple[str, int], Any]:
        """The skills' vectors, by model and length, once there are all of them."""
        return {}


class Evidence(NamedTuple):
    """What speaks for a skill being what a request asks for, each measured against the library at hand."""

    score: float
    """Its score, counted in words that no skill of the library has; as a logarithm."""

    coverage: float
    """How much of what the request says the skill has somewhere, from 0 to 1."""

    in_name: float
    """How much of it is in the name, counted like the score, at most 1."""

    words: float
    """How many words are shared with name, tags and description, at most 6."""

    lead: float
    """How far the score stands out from those of all skills, for a library of this size; as a logarithm.

    That speaks against a skill: a score that stands far out comes from a single rare word, a request's from several.
    """

    excluded: float
    """How much of the request the description says the skill is not for, counted like the score, at most 1."""

    unspaced: float
    """How much of the request is in a script without spaces, from 0 to 1: its words are pairs of characters, of which
    many join two words by chance and are found nowhere, so that less is covered."""


@dataclass(frozen=True)
class Match:
    """A skill that shares words with a request, and how much speaks for its being meant."""

    name: str
    place: int
    score: float
    evidence: Evidence
    names_it: bool
    """Whether nearly all that the request says is in the skill's name, tags or description."""

    shared: Mapping[str, float] = field(default_factory=dict)
    """The words of the request that are there, each with how much it says."""

    @property
    def fits(self) -> bool:
        """Whether the skill is about what was asked for, rather than the best of those that are not."""
        return self.names_it or math.fsum(map(operator.mul, self.evidence, CONVINCES)) >= ENOUGH


@dataclass(frozen=True)
class Ranked:
    """The skills that share words with a request, best first."""

    matches: list[Match]
    says_something: bool
    """Whether the request has a word that is more than talk."""


class Fields(NamedTuple):
    """The texts of a skill by field, as they are searched; a database may keep them in columns of its own."""

    name: str
    tags: str
    description: str
    headings: str
    beginning: str


def beginning_of(body: str) -> bytes:
    """Return what is kept of a skill's instructions: their beginning without code, and the headings that follow."""
    text = body[:MAX_BODY_READ]
    if _FENCE in text:
        # Every other piece between fences is code; one that is never closed goes to the end, as Markdown has it.
        text = "\n".join(text.split(_FENCE)[::2])
    if len(text) > MAX_BEGINNING:
        later = "\n".join(line for line in text[MAX_BEGINNING:].split("\n")[1:] if line[:1] == "#")
        text = f"{text[:MAX_BEGINNING]}\n{later[:MAX_LATER_HEADINGS]}"
    return text.encode("utf-8", "replace")


def searchable_fields(document: Document) -> Fields:
    """Return the texts by which a skill is found: what it is not for is left out, headings stand apart."""
    description, _excluded = split_description(document.description)
    headings, beginning = (text.decode("utf-8", "replace") for text in _without_headings(document.beginning))
    return Fields(document.name, document.tags, description, headings, beginning)


def _without_headings(instructions: bytes) -> tuple[bytes, bytes]:
    """Return the headings, and the text without them."""
    first, *parts = (b"\n" + instructions).split(b"\n#")
    headings, texts = [], [first]
    for part in parts:
        heading, _, text = part.partition(b"\n")
        headings.append(heading)
        texts.append(text)
    return b"\n".join(headings), b"\n".join(texts)


def split_description(description: str) -> tuple[str, str]:
    """Return what a skill is for, and what its description says it is not for."""
    if "not" not in (lowered := description.lower()) and not any(mark in lowered for mark in _MARKS_OF_EXCLUSION):
        return description, ""
    excluded = " ".join(match[0] for match in _EXCLUSION.finditer(description))
    return (_EXCLUSION.sub(" ", description), excluded) if excluded else (description, "")


class _Words(dict[str, int]):
    """The slot of each word of a segment in the making; words of one stem share theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.stems: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        term = new_stem(word)
        slot = self.stems.setdefault(term, len(self.stems))
        self[word] = slot
        return slot


class Segment:
    """Skills whose words are counted, by numbers from `first` on; never changes.

    A posting is a number: the skill's in the upper bits, and in the lowest eight how much the word says of it.
    """

    def __init__(self, documents: Iterable[Document], first: int = 0) -> None:
        words = _Words()
        core: set[str] = set()
        counts = _Counts(first) if installed_numpy() is None else _CountsByNumPy(first)
        for document in documents:
            _count(document, words, core, counts)
        self.stop = first + counts.skills
        self._slots = words.stems
        self._core: Collection[str] = core
        self._postings: Any
        self._starts: Sequence[int]
        self._postings, self._starts = counts.postings(len(words.stems))

    @classmethod
    def of_counts(cls, counted: "Counted") -> "Segment":
        """Return the segment that gave these counts, numbered from 0."""
        self = cls(())
        self.stop = counted.skills
        self._slots = dict(zip(counted.stems, range(len(counted.stems)), strict=True))
        self._core = frozenset(counted.core)
        numpy = installed_numpy()
        # An array of NumPy gives its parts without copying them.
        self._postings = counted.postings if numpy is None else numpy.frombuffer(counted.postings, dtype="u4")
        self._starts = counted.starts
        return self

    def counts(self) -> "Counted":
        """Return all that was counted, to keep it elsewhere."""
        postings = array("I")
        postings.frombytes(memoryview(self._postings).cast("B"))
        return Counted(self.stop, list(self._slots), sorted(self._core), postings, array("I", self._starts))

    def has_all(self, number: int, counted: "Counted") -> bool:
        """Whether the skill of a number has all words that were counted for it alone, each with what it says."""
        for stem_, posting in zip(counted.stems, counted.postings, strict=True):
            postings = self.postings(stem_)
            wanted = number << _DOCUMENT_SHIFT | posting & _LEVELS
            place = 0 if postings is None else bisect.bisect_left(postings, wanted)
            if postings is None or place == len(postings) or postings[place] != wanted:
                return False
        return True

    @functools.cached_property
    def core(self) -> list[str]:
        """The words of names, tags and descriptions, in order: what other forms and corrections are looked for in."""
        return sorted(word for word in self._core if not is_unspaced(word) or len(word) > 1)

    def has(self, word: str) -> bool:
        """Whether a name, a tag or a description has this very word."""
        return word in self._core

    def postings(self, term: str) -> "array[int] | None":
        """Return the postings of a stem."""
        slot = self._slots.get(term)
        return None if slot is None else self._postings[self._starts[slot] : self._starts[slot + 1]]


class Counted(NamedTuple):
    """What a segment consists of: plain lists of words and numbers."""

    skills: int
    stems: list[str]
    core: list[str]
    """The words of names, tags and descriptions."""

    postings: "array[int]"
    """The postings of all stems, one after the other."""

    starts: "array[int]"
    """Where those of each stem begin, and where the last ones end."""


def _count(document: Document, words: _Words, core: set[str], counts: "_Counts") -> None:
    """Count the words of a skill, each by the field it stands in."""
    description, _excluded = split_description(document.description)
    headings, beginning = _without_headings(document.beginning)
    fields: tuple[str | bytes, ...] = (document.name, document.tags, description, headings, beginning)
    for name, text in zip(WEIGHTS, fields, strict=True):
        if text:
            found = split_words(text, indexing=True)
            # Counting first spares most of the lookups in a dictionary of all words, which is slow for its size.
            counted = Counter(found)
            if name in _CORE:
                core.update(counted)
            counts.add(map(words.__getitem__, counted), counted.values(), _each(name, len(found)))
    counts.next_skill()


class _Counts:
    """What words say of skills, added up to postings. All sums are of whole numbers: the same in any order."""

    def __init__(self, first: int) -> None:
        self.skills = 0
        self._first = first
        self._weights: Counter[int] = Counter()
        self._found: list[array[int]] = []

    def add(self, slots: Iterable[int], counts: Iterable[int], each: int) -> None:
        """Add the words of a field of the next skill, how often it has each, and what a word there counts."""
        for slot, count in zip(slots, counts, strict=True):
            self._weights[slot] += min(count * each, _MOST_WEIGHT)

    def next_skill(self) -> None:
        """Close a skill."""
        owner = (self._first + self.skills) << _DOCUMENT_SHIFT
        for slot, weight in self._weights.items():
            while slot >= len(self._found):
                self._found.append(array("I"))
            self._found[slot].append(owner | _level(weight))
        self._weights.clear()
        self.skills += 1

    def postings(self, slots: int) -> tuple[Any, list[int]]:
        """Return the postings of all stems, one after the other, and where each begins."""
        starts = [0]
        joined = array("I")
        for slot in range(slots):
            joined += self._found[slot]
            starts.append(len(joined))
        return joined, starts


class _CountsByNumPy(_Counts):
    """The same by sorting numbers, several thousand skills at once: what takes long in plain Python."""

    def __init__(self, first: int) -> None:
        super().__init__(first)
        self._numpy = installed_numpy()
        self._slots = array("I")
        self._counts = array("I")
        self._lengths = array("I")
        self._owners = array("I")
        self._each = array("I")
        self._batches: list[Any] = []

    def add(self, slots: Iterable[int], counts: Iterable[int], each: int) -> None:
        """Add the words of a field of the next skill, how often it has each, and what a word there counts."""
        before = len(self._slots)
        # From lists: an array takes those over several times faster than what it must iterate over.
        self._slots.fromlist(list(slots))
        self._counts.fromlist(list(counts))
        self._lengths.append(len(self._slots) - before)
        self._owners.append(self._first + self.skills)
        self._each.append(each)

    def next_skill(self) -> None:
        """Close a skill."""
        self.skills += 1
        if len(self._slots) > _WORDS_AT_ONCE:
            self._close_batch()

    def _close_batch(self) -> None:
        """Sort the words of a batch by stem and skill, and add up what they count."""
        numpy = self._numpy
        slots, counts, lengths, owners, each = (
            numpy.frombuffer(kept, dtype="u4").astype("u8")
            for kept in (self._slots, self._counts, self._lengths, self._owners, self._each)
        )
        # Stem, skill and weight in one number: sorting those is many times faster than sorting by keys.
        lengths = lengths.astype("i8")
        keys = numpy.minimum(counts * numpy.repeat(each, lengths), _MOST_WEIGHT)
        keys |= numpy.repeat(owners << _WEIGHT_SHIFT, lengths)
        keys |= slots << _SLOT_SHIFT
        keys.sort()
        pairs = keys >> _WEIGHT_SHIFT
        begins = numpy.flatnonzero(numpy.concatenate(([True], pairs[1:] != pairs[:-1])))
        keys &= _MOST_WEIGHT
        weights = numpy.add.reduceat(keys, begins)
        levels = _level(weights, numpy.maximum)
        self._batches.append(pairs[begins] << _DOCUMENT_SHIFT | levels)
        for kept in (self._slots, self._counts, self._lengths, self._owners, self._each):
            del kept[:]

    def postings(self, slots: int) -> tuple[Any, list[int]]:
        """Return the postings of all stems, one after the other, and where each begins."""
        numpy = self._numpy
        if self._slots:
            self._close_batch()
        if not self._batches:
            return array("I"), [0] * (slots + 1)
        keys = numpy.concatenate(self._batches)
        self._batches.clear()
        keys.sort()
        starts = numpy.searchsorted(keys, numpy.arange(slots + 1, dtype="u8") << _POSTING_BITS).tolist()
        return (keys & ((1 << _POSTING_BITS) - 1)).astype("u4"), starts


def _each(name: str, length: int) -> int:
    """Return what each word of a field with so many words counts, in whole parts."""
    each = WEIGHTS[name] / (1 - LENGTH_MATTERS + LENGTH_MATTERS * length / TYPICAL_WORDS[name])
    return max(1, round(each * _PARTS))


def _level(weight: Any, larger: Callable[[Any, Any], Any] = max) -> Any:  # noqa: ANN401 - a number, or NumPy's array
    """Return how much a word says of a skill in which it has a weight, from 1 to 255."""
    whole = weight + _HALF_EFFECT
    return larger((2 * _LEVELS * weight + whole) // (2 * whole), 1)


@dataclass(frozen=True, slots=True)
class _Term:
    """A word of a query, as it is searched for."""

    word: str
    weight: float
    """How much it counts for being repeated."""

    stems: tuple[tuple[str, float], ...]
    """The stems by which it is found, each with what it counts."""


class _Shared(NamedTuple):
    """What an index takes over from another one."""

    base: Sequence[Document]
    segment: Segment
    places: list[int]
    """The place of each skill of the segment in the new library, -1 for those that are not in it."""

    new: list[int]
    """The places of skills that the segment does not have."""


_GONE = Document("", "")


def shared_places(
    numbers: Mapping[KeyT, int], count: int, keys: Collection[KeyT]
) -> tuple[list[int], list[int]] | None:
    """Return where the skills of a segment stand in another library, -1 for those that do not, and which are new there.

    `None` if the library has too many others, or too few of the segment's, for the segment to be of use.

    Args:
        numbers: The number that a skill has in the segment, by what it is known by.
        count: How many skills the segment has.
        keys: What each skill of the library is known by.
    """
    if 2 * len(keys) < count:
        return None
    most_new = max(1, int(len(keys) * MAX_NEW))
    places, new = [-1] * count, []
    for place, key in enumerate(keys):
        number = numbers.get(key)
        if number is not None and places[number] < 0:
            places[number] = place
        else:
            new.append(place)
            if len(new) > most_new:
                return None
    return places, new


class SearchIndex:
    """An index over one catalog; safe to share by threads.

    Args:
        documents: The skills, each in its place.
        shared: What another index gives of its counts, see `derived`.
    """

    def __init__(self, documents: Sequence[Document], shared: "_Shared | None" = None) -> None:
        self.documents = documents
        self.base = documents if shared is None else shared.base
        """The skills of the first segment."""
        if shared is None:
            self.segments: tuple[Segment, ...] = (Segment(documents),)
            self._places = list(range(len(documents)))
        else:
            new, first = shared.new, shared.segment
            self.segments = (first, Segment((documents[place] for place in new), first.stop)) if new else (first,)
            self._places = [*shared.places, *new]
        self._is_whole = min(self._places, default=0) >= 0

    def __len__(self) -> int:
        return len(self.documents)

    def derived(self, documents: Sequence[Document]) -> "SearchIndex | None":
        """Return the index of a library that shares most of its skills with this one; only new ones are counted.

        `None` if it has too many others, or too few of ours, for our counts to be of use.
        """
        if len(documents) < FEW:
            return None
        found = shared_places(self._numbers, len(self.base), documents)
        return None if found is None else SearchIndex(documents, _Shared(self.base, self.segments[0], *found))

    @classmethod
    def of_kept(cls, documents: Sequence[Document], segment: Segment, places: list[int], new: list[int]) -> Self:
        """Return the index of a library from counts that were kept elsewhere; see `shared_places`."""
        # Nobody asks for skills that are gone, so nothing needs to be known about them.
        base = [documents[place] if place >= 0 else _GONE for place in places]
        return cls(documents, _Shared(base, segment, places, new))

    @functools.cached_property
    def _numbers(self) -> dict[Document, int]:
        """The numbers of the first segment's skills."""
        return {document: number for number, document in enumerate(self.base)}

    def search(self, query: str, limit: int = 5) -> list[str]:
        """Return the names of the best matches, best first; none if nothing fits."""
        return [self.documents[place].name for place in self.places(query, limit)]

    def places(self, query: str, limit: int = 5) -> list[int]:
        """Return the places of the best matches, best first."""
        return [place for place, _score in self.scored(query, limit)]

    def scored(self, query: str, limit: int = 5) -> list[tuple[int, float]]:
        """Return the places of the best matches with their scores, best first."""
        return self._best(_Asked(self, query), limit)

    def rank(self, request: str, limit: int = 5) -> Ranked:
        """Return the best matches, best first, each with what speaks for it; none for small talk."""
        asked = _Asked(self, request)
        judge = _Judge(self, asked)
        if not judge.says_something:
            return Ranked([], says_something=False)
        best = self._best(asked, limit)
        return Ranked([judge.match(place, score) for place, score in best], says_something=True)

    def _best(self, asked: "_Asked", limit: int) -> list[tuple[int, float]]:
        """Return the places of the best matches with their scores."""
        if limit < 1 or not asked.terms:
            return []
        found = _highest(asked.scores, self._places, max(min(limit, MAX_RESULTS), RERANKED))
        nearby = found[:RERANKED]
        nearby = sorted(
            ((place, score + asked.in_order(self.documents[place])) for place, score in nearby),
            key=lambda item: (-item[1], item[0]),
        )
        return [*nearby, *found[RERANKED:]][:limit]

    def live(self, term: str) -> "list[Any]":
        """Return the postings of a stem, as NumPy arrays or plain ones, without skills that are not in the library."""
        numpy = installed_numpy()
        found: list[Any] = []
        for segment in self.segments:
            postings: Any = segment.postings(term)
            if postings is None:
                continue
            if numpy is not None:
                postings = numpy.frombuffer(postings, dtype="u4")
                if not self._is_whole:
                    postings = postings[self._alive[postings >> _DOCUMENT_SHIFT]]
            elif not self._is_whole:
                postings = [posting for posting in postings if self._places[posting >> _DOCUMENT_SHIFT] >= 0]
            if len(postings) > 0:
                found.append(postings)
        return found

    @functools.cached_property
    def _alive(self) -> Any:  # noqa: ANN401 - an array of NumPy
        return installed_numpy().array(self._places) >= 0

    def no_scores(self) -> Any:  # noqa: ANN401 - an array of NumPy, or a list
        """Return a score of nothing for each number."""
        numpy = installed_numpy()
        return [0.0] * len(self._places) if numpy is None else numpy.zeros(len(self._places))

    def rarity_of(self, term: str, have: int) -> float:  # noqa: ARG002 - an index of some of many skills needs it
        """Return how much a stem says that so many skills have."""
        return self.rarity(have)

    def rarity(self, have: int) -> float:
        """Return how much a word says that so many skills have."""
        count = max(len(self.documents), FEWEST_SKILLS)
        return math.log(1 + (count - have + 0.5) / (have + 0.5))

    def forms(self, word: str, *, corrects: bool) -> Iterator[tuple[str, float]]:
        """Return the stems by which a word is found, each with what it counts: its own, or the nearest there are."""
        own = stem(word)
        if len(word) == 1 and is_unspaced(word):
            for segment in self.segments:
                found = _starting_with(segment.core, word, 4 * MAX_FORMS)
                yield from ((term, 1.0) for term in found if term != word and self._has(term))
        if self._has(own):
            yield own, 1.0
            return
        if is_unspaced(word) or len(word) < 4:  # noqa: PLR2004 - short words have too many neighbours
            return
        near: dict[str, float] = {}
        shared = max(MIN_PREFIX_LENGTH, round(len(word) * SHARED_BEGINNING))
        for segment in self.segments:
            if len(word) > shared:
                # More than are taken: some may be of skills that are not in this library.
                alike = map(stem, _starting_with(segment.core, word[:shared], 8 * MAX_FORMS))
                near.update((form, OTHER_FORM) for form in [form for form in alike if self._has(form)][:MAX_FORMS])
            if corrects and len(word) <= MAX_WORD_LENGTH:
                near.update(
                    (stem(form), OTHER_FORM)
                    for form in _slips(word, self._letters.get(_alphabet(word[-1]), ()))
                    if segment.has(form)
                )
        yield from [(term, likeness) for term, likeness in near.items() if self._has(term)][: 2 * MAX_FORMS]

    def holds(self, place: int, term: str) -> bool:
        """Whether the skill at a place has a word of this stem; looked up, for to read its instructions takes long."""
        number = self._numbers_by_place[place]
        least = number << _DOCUMENT_SHIFT
        for segment in self.segments:
            postings = segment.postings(term)
            if postings is not None:
                found = bisect.bisect_left(postings, least)
                if found < len(postings) and postings[found] >> _DOCUMENT_SHIFT == number:
                    return True
        return False

    @functools.cached_property
    def _numbers_by_place(self) -> dict[int, int]:
        return {place: number for number, place in enumerate(self._places)}

    def _has(self, term: str) -> bool:
        """Whether a skill of the library has a word of this stem."""
        if self._is_whole:
            return any(segment.postings(term) is not None for segment in self.segments)
        return bool(self.live(term))

    @functools.cached_property
    def _letters(self) -> dict[int, list[str]]:
        """All letters of names, tags and descriptions, by alphabet."""
        found: dict[int, list[str]] = {}
        for letter in sorted({letter for segment in self.segments for word in segment.core for letter in word}):
            found.setdefault(_alphabet(letter), []).append(letter)
        return found


class _Asked:
    """A query as an index understands it, and the scores it gives."""

    def __init__(self, index: SearchIndex, query: str) -> None:
        self._index = index
        self.words = query_words(query)
        counts = Counter(self.words)
        telling = {word: count for word, count in counts.items() if word not in STOP_WORDS}
        # Where there are no others, words that say little are searched for as they stand.
        telling = telling or {word: count for word, count in counts.items() if word not in GRAMMAR_WORDS}
        self.terms: list[_Term] = []
        corrected = 0
        # Forms of one word are one word: "days" and "day" do not count twice.
        forms: dict[str, list[str]] = {}
        for word in telling:
            forms.setdefault(stem(word), []).append(word)
        places = {word: place for place, word in reversed(list(enumerate(self.words)))}
        for own, (word, *others) in forms.items():
            stems = tuple(index.forms(word, corrects=corrected < MAX_CORRECTED))
            corrected += stems[:1] != ((own, 1.0),)
            count = telling[word] + sum(telling[other] for other in others)
            weight = count * (REPEATED + 1) / (count + REPEATED) * _told(word, places[word], len(self.words))
            self.terms.append(_Term(word, weight, stems))
        self.rarities: dict[str, float] = {}
        """How much each known stem of the query says."""
        self.scores = index.no_scores()
        numpy = installed_numpy()
        levels = _levels(numpy)
        for term in self.terms:
            for known, likeness in term.stems:
                postings = index.live(known)
                rarity = self.rarities[known] = index.rarity_of(known, sum(map(len, postings)))
                value = term.weight * likeness * rarity
                for some in postings:
                    _add(self.scores, some, levels, value, numpy)
        self._pairs = self._neighbours()
        self._stems = f" {' '.join(map(stem, self.words))} "

    def _neighbours(self) -> list[tuple[bytes, float]]:
        """Return how words look that stand side by side in the query, with what it counts if they do so in a skill.

        The second may have another ending; a word of a script without spaces shares a character with the next.
        """
        found: dict[bytes, float] = {}
        for one, other in zip(self.words, self.words[1:], strict=False):
            first, second = stem(one), stem(other)
            if first != second and first in self.rarities and second in self.rarities:
                looks = f"{one}{other[1:]}" if is_unspaced(one) and one[1:] == other[:1] else f" {one} {second}"
                found[looks.encode("utf-8", "replace")] = SIDE_BY_SIDE * min(
                    self.rarities[first], self.rarities[second]
                )
        return list(found.items())

    def in_order(self, document: Document) -> float:
        """Return what counts extra for words in the same order in the query and in a skill."""
        return self._names(document) + self._side_by_side(document)

    def _names(self, document: Document) -> float:
        """Return what counts extra for the query having the skill's name in it."""
        name = list(map(stem, split_words(document.name)))
        if not name or f" {' '.join(name)} " not in self._stems:
            return 0.0
        return NAMED * math.fsum(self.rarities.get(word, 0.0) for word in sorted(set(name)))

    def _side_by_side(self, document: Document) -> float:
        description, _excluded = split_description(document.description)
        about = b" " + plain_text(f"{document.name}. {description}. {document.tags}")
        instructions = b" " + plain_text(document.beginning)
        found = []
        for looks, value in self._pairs:
            if looks in about:
                found.append(value)
            elif looks in instructions:
                found.append(IN_INSTRUCTIONS * value)
        return math.fsum(found)


class _Judge:
    """Tells what speaks for skills being what a request asks for."""

    def __init__(self, index: SearchIndex, asked: _Asked) -> None:
        self._index = index
        self._rarest = index.rarity(0)
        size = len(index)
        # A small library knows few words, so that one it does not know says little about what is asked for.
        unknown = self._rarest * size / (size + FEWEST_SKILLS)
        self._said: list[tuple[str, frozenset[str], float, float]] = []
        for term in asked.terms:
            value = worth(term.word)
            if value > 0:
                rarity = max((asked.rarities[known] * likeness for known, likeness in term.stems), default=unknown)
                self._said.append((term.word, frozenset(known for known, _ in term.stems), value, value * rarity))
        self.says_something = bool(self._said)
        self._all = math.fsum(value for *_, value in self._said) or 1.0
        self._unspaced = sum(is_unspaced(term.word) for term in asked.terms) / max(len(asked.terms), 1)
        self._mean, self._spread = _mean_and_spread(asked.scores, size)

    def match(self, place: int, score: float) -> Match:
        """Return a skill with what speaks for it."""
        document = self._index.documents[place]
        description, excluded = split_description(document.description)
        name = _stems(document.name)
        about = name | _stems(f"{document.tags} . {description}")
        against = _stems(excluded) - about if excluded else frozenset[str]()
        in_name = in_about = in_instructions = words = in_against = 0.0
        shared: dict[str, float] = {}
        for word, stems, value, rarity in self._said:
            if not stems.isdisjoint(name):
                in_name += rarity
            if not stems.isdisjoint(about):
                in_about += rarity
                words += value
                shared[word] = rarity
            elif any(self._index.holds(place, known) for known in stems):
                in_instructions += rarity
            if not stems.isdisjoint(against):
                in_against += rarity
        size = max(len(self._index), 2)
        lead = max(0.0, score - self._mean) / (self._spread or 1.0) / math.log(size)
        evidence = Evidence(
            score=math.log(NO_SCORE + score / self._rarest),
            coverage=(in_about + in_instructions) / self._all,
            in_name=min(in_name / self._rarest, 1.0),
            words=min(words, MOST_WORDS),
            lead=math.log(NO_LEAD + lead),
            excluded=min(in_against / self._rarest, 1.0),
            unspaced=self._unspaced,
        )
        names_it = in_about >= NEARLY_ALL * self._all and in_about >= SOME * self._rarest
        return Match(document.name, place, score, evidence, names_it, shared)


def _told(word: str, place: int, count: int) -> float:
    """Return how much a word of a query counts for what it is and where it stands."""
    from_end = min(place, count - 1 - place)
    near_end = 1 / (1 + from_end / FAR_FROM_ENDS)
    return near_end * (SAYS_LITTLE if word.isdigit() or is_grammar(word) else 1.0)


def _stems(text: str | bytes) -> frozenset[str]:
    return frozenset(map(stem, split_words(text, indexing=True)))


def _mean_and_spread(scores: Any, size: int) -> tuple[float, float]:  # noqa: ANN401 - see `_add`
    """Return the mean and the standard deviation of a library's scores; skills that are not in it have none."""
    # As plain numbers: iterating over an array of NumPy takes several times as long.
    plain = scores if isinstance(scores, list) else scores.tolist()
    total, squares = math.fsum(plain), math.fsum(map(operator.mul, plain, plain))
    mean = total / max(size, 1)
    return mean, math.sqrt(max(squares / max(size, 1) - mean * mean, 0.0))


def query_words(query: str) -> list[str]:
    """Return the words of a query in order; of a long one, those at its beginning and at its end."""
    if len(query) > QUERY_BEGINNING + QUERY_END:
        query = f"{query[:QUERY_BEGINNING]}\n{query[-QUERY_END:]}"
    return split_words(query)


def _add(scores: Any, postings: Any, levels: Any, value: float, numpy: Any) -> None:  # noqa: ANN401 - NumPy's, or plain
    """Add what a word counts to the skills that have it. A skill has one posting per word."""
    if numpy is not None:
        scores[postings >> _DOCUMENT_SHIFT] += levels[postings & _LEVELS] * value
        return
    for posting in postings:
        scores[posting >> _DOCUMENT_SHIFT] += levels[posting & _LEVELS] * value


@functools.cache
def _levels(numpy: Any) -> Any:  # noqa: ANN401 - an array of NumPy, or a list
    """Return what each level of a posting counts."""
    levels = [level / _LEVELS for level in range(_LEVELS + 1)]
    return levels if numpy is None else numpy.array(levels)


def _highest(scores: Any, places: Sequence[int], count: int) -> list[tuple[int, float]]:  # noqa: ANN401 - see `_add`
    """Return the places with the highest scores above nothing, best first; of equal ones the earlier place."""
    numpy = installed_numpy()
    if numpy is not None and len(scores) > 4 * count:
        least = max(float(numpy.partition(scores, len(scores) - count)[len(scores) - count]), 1e-12)
        held = [(number, float(scores[number])) for number in numpy.flatnonzero(scores >= least).tolist()]
    else:
        held = [(number, score) for number, score in enumerate(map(float, scores)) if score > 0]
    found = ((places[number], score) for number, score in held if places[number] >= 0)
    return heapq.nsmallest(count, found, key=lambda item: (-item[1], item[0]))


def _starting_with(words: Sequence[str], beginning: str, most: int) -> list[str]:
    """Return the first of sorted words that start so."""
    start = bisect.bisect_left(words, beginning)
    found = []
    for word in words[start : start + most]:
        if not word.startswith(beginning):
            break
        found.append(word)
    return found


def _slips(word: str, letters: Sequence[str]) -> Iterator[str]:
    """Return what one letter dropped, added, swapped or changed makes of a word; its first letter stays."""
    for place in range(1, len(word) + 1):
        before, after = word[:place], word[place:]
        if after:
            yield before + after[1:]
            if len(after) > 1:
                yield before + after[1] + after[0] + after[2:]
        for letter in letters:
            yield before + letter + after
            if after:
                yield before + letter + after[1:]


def _alphabet(letter: str) -> int:
    """Return what letters of one alphabet have in common, roughly."""
    return ord(letter) >> 8


@functools.cache
def installed_numpy() -> Any:  # noqa: ANN401 - a module that may be missing
    """Return NumPy, or `None` where it is not installed."""
    try:
        return importlib.import_module("numpy")
    except ImportError:
        return None

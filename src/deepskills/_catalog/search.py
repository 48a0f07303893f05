"""Search by words: the right skill first, in any script, with word forms and small typing slips.

**What is ranked.** Five fields of a skill: name, tags, description, headings and the beginning of the instructions.
What a description says the skill is *not* for is left out. A word counts more in the name or the description than in
the instructions, but the instructions bring most of the words that people use in requests.

**How.** BM25 over weighted fields: the more often and the more prominently a skill has a word the more it counts,
with less and less gain, and rare words of the library count more than common ones. Words of the request that stand
side by side and do so in a skill as well count extra. Lengths are compared with those of a typical skill, not with
the average of the library.

**Whether anything fits** is another question than which skill is best. `SearchIndex.rank` answers both; see `Match`.
"""

import bisect
import functools
import heapq
import math
import operator
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Any, NamedTuple

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

CONVINCES = (2.0, 1.9, 2.4, 0.2, -0.75, -2.2, 0.35)
"""What each kind of evidence counts; see `Evidence`. Fitted to public requests, with skills of 100 to 10,000."""

ENOUGH = 1.1
"""How much evidence is enough for a skill to fit.

With 0.8 the right skill is shown for 2 more requests of 100, and a wrong one for 8 more of 100 that come near."""

ENOUGH_BESIDE = 0.8
"""How much is enough beside a skill that fits: where one is shown, another costs little."""

MOST_WORDS = 6.0
"""How many shared words are evidence: a long request shares more with any skill."""

NO_SCORE, NO_LEAD = 0.1, 0.25
"""What is added to a score and to a lead before the logarithm, which small ones would otherwise make endlessly low."""

NEARLY_ALL = 0.75
"""How much of a request is nearly everything that it says."""

SOME = 0.55
"""How much must be shared then, counted in words that no skill of the library has."""

FEWEST_SKILLS = 100
"""How large a library is at least taken to be when it is judged how rare a word is."""

_WORD_BYTES = 250
_DOCUMENT_BYTES = 400
_WEIGHT_BITS = 16
_MOST_WEIGHT = (1 << _WEIGHT_BITS) - 1
_PARTS = 512
_HALF_EFFECT = SATURATION * _PARTS
_CORE = frozenset(["name", "tags", "description"])
_FENCE = "```"
_MARKS_OF_EXCLUSION = ("n't", "n\u2019t", "never", "不", "勿", "使わない")
_EXCLUSION = re.compile(
    r"(?:\b(?:do\s+not|don['\u2019]t|never|not)\s+(?:use|trigger|invoke|activate|for)\b"
    r"|\bnot\s+(?:intended|meant|suitable|applicable)\s+for\b"
    r"|不(?:要|用于|适用|适合|触发)|請勿|请勿|使わない)[^.。;；\n]*[.。;；\n]?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class SearchDocument:
    """What is searched of a skill."""

    name: str
    description: str
    tags: str = ""
    beginning: bytes = b""
    """Headings and the beginning of the instructions, as `beginning_of` gives them."""


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

    @property
    def fits(self) -> bool:
        """Whether the skill is about what was asked for, rather than the best of those that are not."""
        return self._has(ENOUGH)

    @property
    def fits_beside(self) -> bool:
        """Whether the skill may be shown beside one that fits."""
        return self._has(ENOUGH_BESIDE)

    def _has(self, enough: float) -> bool:
        return self.names_it or math.fsum(map(operator.mul, self.evidence, CONVINCES)) >= enough


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


def searchable_fields(document: SearchDocument) -> Fields:
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


class SearchIndex:
    """An index over one catalog; safe to share by threads.

    A posting is a number: the skill's place in the upper bits, and in the lowest sixteen what the word weighs there.
    """

    def __init__(self, documents: Sequence[SearchDocument]) -> None:
        self.documents = documents
        self._core: set[str] = set()
        by_word: defaultdict[str, array[int]] = defaultdict(_new_postings)
        for place, document in enumerate(documents):
            owner = place << _WEIGHT_BITS
            for word, weight in self._weigh_words(document).items():
                by_word[word].append(owner | min(weight, _MOST_WEIGHT))
        self._postings: dict[str, list[array[int]]] = {}
        for word, postings in by_word.items():
            self._postings.setdefault(new_stem(word), []).append(postings)
        self.vectors: dict[str, Any] = {}
        """The vectors of all skills by model, once there are all of them."""
        texts = (sum(map(getsizeof, (d.name, d.description, d.tags, d.beginning))) for d in documents)
        words = sum(map(getsizeof, by_word.values())) + len(by_word) * _WORD_BYTES
        self.weight = words + sum(texts) + len(documents) * _DOCUMENT_BYTES
        """How many bytes it takes, for caches, which are bounded in bytes."""

    def __len__(self) -> int:
        return len(self.documents)

    def _weigh_words(self, document: SearchDocument) -> dict[str, int]:
        """Return the words of a skill, each with what it weighs by the fields it stands in."""
        description, _excluded = split_description(document.description)
        headings, beginning = _without_headings(document.beginning)
        # From the longest field on, whose words make up most of the result without a lookup for each.
        fields: dict[str, str | bytes] = {
            "beginning": beginning,
            "headings": headings,
            "description": description,
            "tags": document.tags,
            "name": document.name,
        }
        found: dict[str, int] = {}
        for name, text in fields.items():
            if not text:
                continue
            words = split_words(text, indexing=True)
            each = _word_weight(name, len(words))
            counted = Counter(words)
            if name in _CORE:
                self._core.update(counted)
            if found:
                for word, count in counted.items():
                    found[word] = found.get(word, 0) + count * each
            else:
                found = {word: count * each for word, count in counted.items()}
        return found

    def search(self, query: str, limit: int = 5, hidden: Collection[str] = ()) -> list[str]:
        """Return the names of the best matches, best first; none if nothing fits."""
        return [self.documents[place].name for place, _score in self.score(query, limit, hidden)]

    def score(self, query: str, limit: int = 5, hidden: Collection[str] = ()) -> list[tuple[int, float]]:
        """Return the places of the best matches with their scores, best first, without skills of hidden names."""
        return self._find_best(_Query(self, query), limit, hidden)

    def rank(self, request: str, limit: int = 5, hidden: Collection[str] = ()) -> Ranked:
        """Return the best matches, best first, each with what speaks for it; none for small talk."""
        query = _Query(self, request)
        judge = _Judge(self, query)
        if not judge.says_something:
            return Ranked([], says_something=False)
        best = self._find_best(query, limit, hidden)
        return Ranked([judge.match(place, score) for place, score in best], says_something=True)

    def _find_best(self, query: "_Query", limit: int, hidden: Collection[str]) -> list[tuple[int, float]]:
        """Return the places of the best matches with their scores."""
        if limit < 1 or not query.terms:
            return []
        scores = query.scores
        held = (place for place, score in enumerate(scores) if score > 0)
        if hidden:
            held = (place for place in held if self.documents[place].name not in hidden)
        best = heapq.nsmallest(max(min(limit, MAX_RESULTS), RERANKED), held, key=lambda place: (-scores[place], place))
        nearby = [(place, scores[place] + query.in_order(self.documents[place])) for place in best[:RERANKED]]
        nearby.sort(key=lambda item: (-item[1], item[0]))
        return [*nearby, *((place, scores[place]) for place in best[RERANKED:])][:limit]

    def weights_of(self, term: str) -> dict[int, int]:
        """Return the places of the skills that have a stem, each with what it weighs there."""
        first, *others = self._postings.get(term, [()])
        found = {posting >> _WEIGHT_BITS: posting & _MOST_WEIGHT for posting in first}
        for postings in others:
            for posting in postings:
                place = posting >> _WEIGHT_BITS
                found[place] = found.get(place, 0) + (posting & _MOST_WEIGHT)
        return found

    def rarity(self, have: int) -> float:
        """Return how much a word says that so many skills have."""
        count = max(len(self.documents), FEWEST_SKILLS)
        return math.log(1 + (count - have + 0.5) / (have + 0.5))

    def forms(self, word: str, *, corrects: bool) -> Iterator[tuple[str, float]]:
        """Return the stems by which a word is found, each with what it counts: its own, or the nearest there are."""
        own = stem(word)
        if len(word) == 1 and is_unspaced(word):
            found = _starting_with(self._words, word, 4 * MAX_FORMS)
            yield from ((term, 1.0) for term in found if term != word)
        if own in self._postings:
            yield own, 1.0
            return
        if is_unspaced(word) or len(word) < 4:  # noqa: PLR2004 - short words have too many neighbours
            return
        near: dict[str, float] = {}
        shared = max(MIN_PREFIX_LENGTH, round(len(word) * SHARED_BEGINNING))
        if len(word) > shared:
            alike = map(stem, _starting_with(self._words, word[:shared], MAX_FORMS))
            near.update((form, OTHER_FORM) for form in alike)
        if corrects and len(word) <= MAX_WORD_LENGTH:
            slips = _slips(word, self._letters.get(_alphabet(word[-1]), ()))
            near.update((stem(form), OTHER_FORM) for form in slips if form in self._core)
        yield from list(near.items())[: 2 * MAX_FORMS]

    @functools.cached_property
    def _words(self) -> list[str]:
        """The words of names, tags and descriptions, in order: what other forms and corrections are looked for in."""
        return sorted(word for word in self._core if not is_unspaced(word) or len(word) > 1)

    @functools.cached_property
    def _letters(self) -> dict[int, list[str]]:
        """All letters of names, tags and descriptions, by alphabet."""
        found: dict[int, list[str]] = {}
        for letter in sorted({letter for word in self._words for letter in word}):
            found.setdefault(_alphabet(letter), []).append(letter)
        return found


def _new_postings() -> "array[int]":
    return array("Q")


def _word_weight(field_name: str, length: int) -> int:
    """Return what each word of a field with so many words weighs, in whole parts."""
    length_factor = 1 - LENGTH_MATTERS + LENGTH_MATTERS * length / TYPICAL_WORDS[field_name]
    return max(1, round(WEIGHTS[field_name] / length_factor * _PARTS))


@dataclass(frozen=True, slots=True)
class _Term:
    """A word of a query, as it is searched for."""

    word: str
    weight: float
    """How much it counts for being repeated."""

    stems: tuple[tuple[str, float], ...]
    """The stems by which it is found, each with what it counts."""


class _Query:
    """A query as an index understands it, and the scores it gives."""

    def __init__(self, index: SearchIndex, query: str) -> None:
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
            weight = count * (REPEATED + 1) / (count + REPEATED)
            self.terms.append(_Term(word, weight * position_weight(word, places[word], len(self.words)), stems))
        self.rarities: dict[str, float] = {}
        """How much each known stem of the query says."""
        self.weights: dict[str, dict[int, int]] = {}
        """What each known stem weighs, by the places of the skills that have it."""
        self.scores = [0.0] * len(index)
        for term in self.terms:
            for known, likeness in term.stems:
                if known not in self.weights:
                    self.weights[known] = index.weights_of(known)
                    self.rarities[known] = index.rarity(len(self.weights[known]))
                value = term.weight * likeness * self.rarities[known]
                for place, weight in self.weights[known].items():
                    self.scores[place] += value * weight / (weight + _HALF_EFFECT)
        self._pairs = self._find_pairs()
        self._stems = f" {' '.join(map(stem, self.words))} "

    def _find_pairs(self) -> list[tuple[bytes, float]]:
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

    def in_order(self, document: SearchDocument) -> float:
        """Return what counts extra for words in the same order in the query and in a skill."""
        return self._score_name(document) + self._score_pairs(document)

    def _score_name(self, document: SearchDocument) -> float:
        """Return what counts extra for the query having the skill's name in it."""
        name = list(map(stem, split_words(document.name)))
        if not name or f" {' '.join(name)} " not in self._stems:
            return 0.0
        return NAMED * math.fsum(self.rarities.get(word, 0.0) for word in sorted(set(name)))

    def _score_pairs(self, document: SearchDocument) -> float:
        """Return what counts extra for words that stand side by side in both."""
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

    def __init__(self, index: SearchIndex, query: _Query) -> None:
        self._index = index
        self._weights = query.weights
        self._rarest = index.rarity(0)
        size = len(index)
        # A small library knows few words, so that one it does not know says little about what is asked for.
        unknown = self._rarest * size / (size + FEWEST_SKILLS)
        self._said: list[tuple[frozenset[str], float, float]] = []
        for term in query.terms:
            value = worth(term.word)
            if value > 0:
                rarity = max((query.rarities[known] * likeness for known, likeness in term.stems), default=unknown)
                self._said.append((frozenset(known for known, _ in term.stems), value, value * rarity))
        self.says_something = bool(self._said)
        self._all = math.fsum(rarity for _, _, rarity in self._said) or 1.0
        self._unspaced = sum(is_unspaced(term.word) for term in query.terms) / max(len(query.terms), 1)
        self._mean, self._spread = _measure_spread(query.scores)

    def match(self, place: int, score: float) -> Match:
        """Return a skill with what speaks for it."""
        document = self._index.documents[place]
        description, excluded = split_description(document.description)
        name = _stems(document.name)
        about = name | _stems(f"{document.tags} . {description}")
        against = _stems(excluded) - about if excluded else frozenset[str]()
        in_name = in_about = in_instructions = words = in_against = 0.0
        for stems, value, rarity in self._said:
            if not stems.isdisjoint(name):
                in_name += rarity
            if not stems.isdisjoint(about):
                in_about += rarity
                words += value
            elif any(place in self._weights[known] for known in stems):
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
        return Match(document.name, place, score, evidence, names_it)


def position_weight(word: str, place: int, count: int) -> float:
    """Return how much a word of a query counts for what it is and where it stands."""
    from_end = min(place, count - 1 - place)
    near_end = 1 / (1 + from_end / FAR_FROM_ENDS)
    return near_end * (SAYS_LITTLE if word.isdigit() or is_grammar(word) else 1.0)


def _stems(text: str | bytes) -> frozenset[str]:
    return frozenset(map(stem, split_words(text, indexing=True)))


def _measure_spread(scores: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation of a library's scores."""
    count = max(len(scores), 1)
    mean = math.fsum(scores) / count
    return mean, math.sqrt(max(math.fsum(map(operator.mul, scores, scores)) / count - mean * mean, 0.0))


def query_words(query: str) -> list[str]:
    """Return the words of a query in order; of a long one, those at its beginning and at its end."""
    if len(query) > QUERY_BEGINNING + QUERY_END:
        query = f"{query[:QUERY_BEGINNING]}\n{query[-QUERY_END:]}"
    return split_words(query)


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

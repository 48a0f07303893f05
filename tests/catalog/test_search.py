"""Search: the right skill first, in any script, with word forms and typing slips, and never an exception."""

import importlib
import json
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

from deepskills import SkillMetadata, SkillsManager, SkillsMiddleware
from deepskills._catalog import search as search_module
from deepskills._catalog.catalog import Catalog, SkillEntry
from deepskills._catalog.lookup import find_index
from deepskills._catalog.search import SearchDocument, SearchIndex, beginning_of
from deepskills._catalog.words import split_words
from deepskills.testing import ScriptedChatModel, call_tools
from support import Mode, both_modes, disk, run, scaled, skill_md, tool_messages, write_files
from support.tables import ask

benchmark: Any = importlib.import_module("search")

repeatable = settings(
    deadline=None,
    derandomize=True,
    max_examples=scaled(100, 1_000),
    suppress_health_check=[HealthCheck.too_slow],
)

both_halves = pytest.mark.parametrize("half", benchmark.HALVES)


# Quality, on the labelled set.


@pytest.fixture(scope="module")
def quality() -> dict[str, dict[str, dict[str, float]]]:
    """Return, for each half and each ranker, how often it is right."""
    return {half: benchmark.quality(half) for half in benchmark.HALVES}


@both_halves
def test_the_right_skill_is_found(half: str, quality: dict[str, Any]) -> None:
    """On each half of the labelled set the right skill is first in 85 of 100 queries, and in five in 96."""
    ours = quality[half]["deepskills"]
    assert ours["first"] >= 0.85
    assert ours["in five"] >= 0.96


@both_halves
@pytest.mark.parametrize("other", ["keyword count", "rank-bm25"])
def test_other_rankers_are_behind(half: str, other: str, quality: dict[str, Any]) -> None:
    """On each half no plain ranker has the right skill first as often, nor in five more often."""
    ours, theirs = quality[half]["deepskills"], quality[half][other]
    assert ours["first"] > theirs["first"]
    assert ours["in five"] >= theirs["in five"]
    assert ours["nothing"] >= theirs["nothing"]


@both_halves
def test_the_set_is_large_and_honest(half: str) -> None:
    """The labelled set has enough skills, queries and languages, and expects only skills that it has."""
    names = {skill["name"] for skill in benchmark.load("skills")}
    cases = benchmark.load(half)
    assert len(names) >= 80
    assert len(benchmark.load("dev")) + len(benchmark.load("frozen")) >= 120
    assert {case["expect"] for case in cases} - {None} <= names
    assert any(case["expect"] is None for case in cases)
    assert any("\u3040" <= character <= "\u30ff" for case in cases for character in case["query"])
    assert any("\u4e00" <= character <= "\u9fff" for case in cases for character in case["query"])
    assert not {case["query"] for case in benchmark.load("dev")} & {case["query"] for case in benchmark.load("frozen")}


def test_the_manager_ranks_like_the_index(tmp_path: Path) -> None:
    """What the labelled set shows of the ranker holds for skills on a disk."""
    for skill in benchmark.load("skills"):
        lines = [f"{field}: {json.dumps(skill[field])}" for field in ("name", "description", "tags")]
        write_files(tmp_path, {f"{skill['name']}/SKILL.md": "\n".join(["---", *lines, "---", ""])})
    manager = SkillsManager.from_directory(tmp_path)
    cases = [case for half in benchmark.HALVES for case in benchmark.load(half) if case["expect"] is not None][::8]
    hits = [case["expect"] in [found["name"] for found in manager.search_skills(case["query"])] for case in cases]
    assert sum(hits) / len(hits) >= 0.9


# What a query finds.


def index(*documents: tuple[str, str] | tuple[str, str, str]) -> SearchIndex:
    return SearchIndex([SearchDocument(*document) for document in documents])


LIBRARY = index(
    ("pdf-forms", "Fill in PDF forms from a spreadsheet.", "acroform"),
    ("release-notes", "Writes notes for every release from the commits.", "changelog"),
    ("image-resizer", "Shrinks and crops pictures."),
    ("cafe-menu", "Lays out the menu of a café."),
    ("周报", "把零散的工作记录整理成周报。"),
    ("議事録", "会議の録音から議事録を作成する。"),
    ("보고서", "주간 보고서를 작성합니다."),
    ("отчёт", "Готовит недельный отчёт по продажам."),
    ("αναφορά", "Γράφει την εβδομαδιαία αναφορά."),
    ("تقرير", "يكتب التقرير الأسبوعي."),
    ("साप्ताहिक", "साप्ताहिक रिपोर्ट लिखता है।"),
    ("รายงาน", "เขียน รายงาน ประจำสัปดาห์"),
)

FOUND = {
    "name": ("release-notes", "release-notes"),
    "name with spaces": ("release notes", "release-notes"),
    "name in capitals": ("RELEASE_NOTES", "release-notes"),
    "part of the name": ("resizer", "image-resizer"),
    "description": ("spreadsheet", "pdf-forms"),
    "tag": ("acroform", "pdf-forms"),
    "plural": ("pictures of images", "image-resizer"),
    "singular": ("commit", "release-notes"),
    "another form": ("shrinking", "image-resizer"),
    "past tense": ("cropped", "image-resizer"),
    "letter dropped": ("relese note", "release-notes"),
    "letter doubled": ("spreaddsheet", "pdf-forms"),
    "letter changed": ("spreadshaet", "pdf-forms"),
    "letters swapped": ("changelgo", "release-notes"),
    "slip at the end": ("chanhelog", "release-notes"),
    "accent in the text": ("cafe menu", "cafe-menu"),
    "accent in the query": ("menu d'un café", "cafe-menu"),
    "full-width letters": ("ＰＤＦ", "pdf-forms"),
    "sentence": ("could you please fill in this form for me?", "pdf-forms"),
    "Chinese name": ("周报", "周报"),
    "Chinese sentence": ("帮我整理这周的工作记录", "周报"),
    "Chinese with English": ("用 pdf 表格", "pdf-forms"),
    "Japanese name": ("議事録", "議事録"),
    "Japanese sentence": ("会議の議事録を作りたい", "議事録"),
    "Korean": ("주간 보고서", "보고서"),
    "Russian": ("недельный отчёт", "отчёт"),
    "Russian in capitals": ("ОТЧЁТ", "отчёт"),
    "Greek": ("αναφορά", "αναφορά"),
    "Arabic": ("التقرير", "تقرير"),
    "Hindi": ("साप्ताहिक रिपोर्ट", "साप्ताहिक"),
    "Thai": ("รายงาน", "รายงาน"),
}


@pytest.mark.parametrize(("query", "name"), FOUND.values(), ids=FOUND)
def test_queries_find_their_skill(query: str, name: str) -> None:
    """A skill is found by its name, description and tags, in any script, form or case, slips included."""
    assert LIBRARY.search(query)[:1] == [name]


@pytest.mark.parametrize("query", ["猫", "税", "表"])
def test_one_character_is_a_word(query: str) -> None:
    """In Chinese and Japanese a single character is a word, wherever in a text it stands."""
    library = index(("a", "猫の写真を整理する"), ("b", "申報税"), ("c", "生成报表"), ("d", "无关"))
    assert library.search(query) == [{"猫": "a", "税": "b", "表": "c"}[query]]


@pytest.mark.parametrize(
    ("query", "name", "rival"),
    [
        pytest.param("posting", "Writes a post for a blog.", "Helps with posing for photos.", id="posting"),
        pytest.param("naive", "Trains a naïve Bayes model.", "Builds native apps.", id="naive"),
        pytest.param("tested", "Runs every test.", "Handles texted replies.", id="tested"),
    ],
)
def test_forms_are_not_taken_for_slips(query: str, name: str, rival: str) -> None:
    """A word of which a skill has another form finds that skill, though another skill has a word that looks like it."""
    assert "right" in index(("right", name), ("rival", rival)).search(query)


@pytest.mark.parametrize(
    ("query", "description"),
    [
        pytest.param("interplanetary travel", "Designs an interface.", id="interplanetary"),
        pytest.param("transatlantic flights", "Handles the translation of texts.", id="transatlantic"),
        pytest.param("transplant", "Handles every transfer.", id="transplant"),
    ],
)
def test_words_that_only_begin_alike_are_no_match(query: str, description: str) -> None:
    """A word is not taken for another because both start with the same few letters."""
    assert index(("demo", description)).search(query) == []


NOTHING = {
    "empty": "",
    "white space": " \t\n",
    "Chinese stop words": "的了在是",
    "punctuation": "?!.,;:-_()[]{}<>",
    "unknown words": "xyzzy plugh",
    "emoji": "🎉🎉",
    "unknown Chinese": "龍虎豹",
}


@pytest.mark.parametrize("query", NOTHING.values(), ids=NOTHING)
def test_no_match_is_nothing(query: str) -> None:
    """A query that fits no skill gives none, rather than a guess."""
    assert LIBRARY.search(query) == []


FORMS_ELSEWHERE = {
    "Russian plural": ("отчёты", "otchet"),
    "Russian case": ("отчёта", "otchet"),
    "Russian without dots": ("еженедельный отчет", "otchet"),
    "Russian slip": ("докумнты", "perevod"),
    "Russian singular": ("ошибка", "kod"),
    "Greek form": ("αναφορά", "anafora"),
    "Greek without accents": ("αναφορες", "anafora"),
    "Greek slip": ("εβδομαδιεες", "anafora"),
    "German umlaut form": ("übersetzen", "uebersetzung"),
    "German without umlaut": ("ubersetzt", "uebersetzung"),
    "German slip": ("Dokumnte", "uebersetzung"),
    "German slip beside an umlaut": ("Prüfft", "rechnung"),
    "Hindi": ("रिपोर्ट", "hindi"),
    "Hindi with a dot": ("दस्तावेज़", "hindi-two"),
    "Hindi, other vowel": ("रपट", None),
    "Arabic with vowels": ("تَرْجَمَة", "tarjama"),
    "Thai": ("รายงาน", "thai"),
    "Lao": ("ລາຍງານ", "lao"),
    "Khmer": ("របាយការណ៍", "khmer"),
    "Myanmar": ("အစီရင်ခံစာ", "myanmar"),
    "one Cyrillic letter": ("в", None),
}

ELSEWHERE = index(
    ("otchet", "Готовит еженедельные отчёты для руководства."),
    ("perevod", "Переводит документы на английский язык."),
    ("kod", "Проверяет код на ошибки, весь."),
    ("anafora", "Συντάσσει εβδομαδιαίες αναφορές"),
    ("uebersetzung", "Übersetzt Dokumente ins Englische."),
    ("rechnung", "Prüft Rechnungen und Belege."),
    ("hindi", "साप्ताहिक रिपोर्ट तैयार करता है।"),
    ("hindi-two", "दस्तावेज़ का अनुवाद करता है।"),
    ("tarjama", "ترجمة المستندات"),
    ("thai", "จัดทำรายงานประจำสัปดาห์"),
    ("thai-two", "แปลเอกสารเป็นภาษาอังกฤษ"),
    ("lao", "ເຮັດບົດລາຍງານປະຈໍາອາທິດ"),
    ("khmer", "រៀបចំរបាយការណ៍ប្រចាំសប្តាហ៍"),
    ("myanmar", "အပတ်စဉ်အစီရင်ခံစာပြုစုသည်"),
)


@pytest.mark.parametrize(("query", "name"), FORMS_ELSEWHERE.values(), ids=FORMS_ELSEWHERE)
def test_forms_and_slips_in_every_script(query: str, name: str | None) -> None:
    """Word forms, slips and missing accents are forgiven in every script, and words are found where none are spaced."""
    assert ELSEWHERE.search(query)[:1] == ([name] if name else [])


def test_words_that_say_little_are_kept_where_there_are_no_others() -> None:
    """A query of function words alone is searched for as it stands: a skill may be named so."""
    library = index(("make", "Builds things."), ("new", "Starts a project."), ("other", "Writes a letter."))
    assert library.search("make") == ["make"]
    assert library.search("new") == ["new"]
    assert library.search("make letter") == ["other"]


SYNTAX = {
    "quote": '"',
    "quotes": '"release" "',
    "doubled quotes": '""release""',
    "apostrophe": "release'; DROP TABLE skills; --",
    "asterisk": "release*",
    "only asterisks": "* ** ***",
    "near": "NEAR(release notes, 2)",
    "operators": "release AND OR NOT notes",
    "only operators": "AND OR NOT NEAR",
    "column": "name:release",
    "columns": "{name description} : release",
    "minus": "-release",
    "plus": "release + notes",
    "caret": "^release",
    "parentheses": "((release)",
    "backslash": "release\\",
    "percent": "%release%",
    "parameter": "? :a @b $c ?1",
    "nul": "release\x00notes",
    "nul first": "\x00release",
    "surrogate": "\ud800release",
    "control": "\x1b[31m release\x1b[0m",
    "bidirectional": "\u202erelease",
    "combining marks": "release" + "\u0301" * 500,
}


@pytest.mark.parametrize("query", SYNTAX.values(), ids=SYNTAX)
def test_queries_are_text_not_syntax(query: str) -> None:
    """What means something to a database is plain text here: nothing raises, and the words in it are searched."""
    found = LIBRARY.search(query)
    assert found == (["release-notes"] if "release" in query else [])
    assert LIBRARY.search("release notes") == ["release-notes"]


LONG = {
    "many words": "release " * 12_500,
    "many different words": " ".join(f"word{number}" for number in range(12_000)),
    "one word": "r" * 100_000,
    "one word almost known": "release" + "e" * 100_000,
    "Chinese": "周报" * 30_000,
    "quotes": '"' * 100_000,
    "spaces": " " * 100_000,
    "combining marks": "e" + "\u0301" * 100_000,
}


@pytest.mark.parametrize("query", LONG.values(), ids=LONG)
def test_long_queries_are_answered(query: str) -> None:
    """A query of a hundred thousand characters is answered like any other."""
    assert len(LIBRARY.search(query)) <= 5


def test_the_word_that_counts_may_come_late() -> None:
    """In a long and wordy request the words that say nothing do not crowd out the one that does."""
    polite = "I would like you to please help me with this and then use what you have so that we can do it for them "
    assert LIBRARY.search(f"{polite * 2} with a changelog") == ["release-notes"]


def test_long_words_of_skills_cost_little() -> None:
    """A skill whose tags are one endless word takes no memory beyond measure, and slips of other words are found."""
    tracemalloc.start()
    try:
        library = index(("long", "x", "tag" * 2_000), ("release-notes", "Writes notes."))
        found = library.search("relaese")
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == ["release-notes"]
    assert peak < 5_000_000


LETTERS = st.characters(categories=("L", "N", "M"))


@repeatable
@given(st.text() | st.text(LETTERS) | st.lists(st.sampled_from([*SYNTAX.values(), *NOTHING.values()])).map(" ".join))
def test_any_text_is_a_query(query: str) -> None:
    """Whatever the query, the answer is a list of names, the same each time."""
    found = LIBRARY.search(query)
    assert len(set(found)) == len(found) <= 5
    assert LIBRARY.search(query) == found


def test_every_character_may_stand_in_a_word() -> None:
    """No letter or digit of any script makes a query that the index cannot take."""
    letters = [chr(code) for code in range(0x20000) if chr(code).isalnum() and not 0x3400 <= code < 0xD7B0]
    library = index(("demo", "Does a demo."))
    for start in range(0, len(letters), 20):
        library.search(" ".join(f"a{letter}b" for letter in letters[start : start + 20]))


@repeatable
@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=40), st.text(max_size=20)), max_size=5), st.text())
def test_any_text_can_be_indexed(documents: list[tuple[str, str, str]], query: str) -> None:
    """Whatever a catalog holds, it is indexed, and only names of it are found."""
    found = index(*documents).search(query)
    assert set(found) <= {name for name, _, _ in documents}


@pytest.mark.parametrize(
    ("limit", "count"), [(0, 0), (-1, 0), (-(10**30), 0), (1, 1), (3, 3), (20, 20), (10**9, 20), (10**30, 20)]
)
def test_limits_bound_the_results(limit: int, count: int) -> None:
    """No more than asked for, none for none, and all for a number beyond all."""
    assert len(index(*((f"s{i}", "Makes reports.") for i in range(20))).search("report", limit)) == count


def test_an_empty_index_finds_nothing() -> None:
    """A catalog without skills has no match for anything."""
    assert index().search("anything") == []


def test_order_is_the_same_every_time() -> None:
    """The same query on the same catalog gives the same order, ties in the order of the catalog."""
    documents = [(f"s{i}", "Makes reports.") for i in range(30)]
    first, second = index(*documents), index(*documents)
    assert first.search("report", 30) == second.search("report", 30) == [name for name, _ in documents]
    queries = [case["query"] for case in benchmark.load("dev")]
    rankings = [
        [library.search(query) for query in queries] for library in map(SearchIndex, [benchmark.documents()] * 2)
    ]
    assert rankings[0] == rankings[1]


def test_names_weigh_most() -> None:
    """A word in the name counts more than one among the tags, and that more than one in a description."""
    library = index(
        ("described", "All about invoice matters."),
        ("tagged", "All about other matters.", "invoice"),
        ("invoice", "All."),
    )
    assert library.search("invoice") == ["invoice", "tagged", "described"]


def test_what_a_word_of_a_request_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forms of one word count as one, numbers little, words in the middle of a long request less than at its ends."""
    library = index(
        ("reports", "Writes reports for 2024."),
        ("invoices", "Sends invoices."),
        ("linear", "Other things."),
        ("others", "About something else."),
    )

    def scores(query: str) -> dict[str, float]:
        return {library.documents[place].name: score for place, score in library.score(query)}

    assert scores("invoice invoices") == scores("invoice invoice")
    assert scores("2024")["reports"] < 0.5 * scores("reports")["reports"]
    filler = " ".join(["whatever"] * 150)
    first, middle, last = f"invoice {filler} {filler}", f"{filler} invoice {filler}", f"{filler} {filler} invoice"
    assert scores(first)["invoices"] == scores(last)["invoices"] > 1.5 * scores(middle)["invoices"]
    named = scores("ask linear about it")["linear"]
    monkeypatch.setattr(search_module, "NAMED", 0.0)
    assert scores("ask linear about it")["linear"] < named


def test_the_instructions_are_read_to_a_limit() -> None:
    """A word counts up to some thousand characters into the instructions, later only in a heading, never in code."""
    filler = "filler text here. " * 300  # 5,400 characters
    body = f"# Start\n```\nincode\n```\n{filler}\nreachable\n{filler}\nunreachable\n## lateheading\n"
    library = SearchIndex(
        [SearchDocument("one", "Something.", "", beginning_of(body)), SearchDocument("two", "Other.")]
    )
    found = {word: library.search(word) for word in ("reachable", "lateheading", "incode", "unreachable")}
    assert found == {"reachable": ["one"], "lateheading": ["one"], "incode": [], "unreachable": []}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Release-Notes v2", ["release", "notes", "v2"]),
        ("snake_case", ["snake", "case"]),
        ("周报整理", ["周报", "报整", "整理"]),
        ("用PDF表格", ["pdf", "表格"]),
        ("报告，整理。（周报）：v2！", ["报告", "整理", "周报", "v2"]),
        ("使用python3开发", ["使用", "python3", "开发"]),
        ("々〆、〇々", ["々〆", "〇々"]),
        ("ＡＢＣ", ["abc"]),
        ("Straße", ["strasse"]),
        ("", []),
    ],
)
def test_texts_are_split_into_words(text: str, words: list[str]) -> None:
    """Words are split at what is not a letter, folded and normalized; Chinese becomes overlapping pairs."""
    assert [word for word in split_words(text) if len(word) > 1] == words


# Indexes are kept.


def catalog(*descriptions: str, beginning: bytes = b"", **frontmatter: str) -> Catalog:
    entries = []
    for number, description in enumerate(descriptions):
        skill = SkillMetadata(
            path=f"/skills/s{number}/SKILL.md",
            name=f"s{number}",
            description=description,
            license=None,
            compatibility=None,
            metadata={},
            allowed_tools=[],
        )
        entries.append(SkillEntry(skill, "/skills", description, frontmatter, beginning=beginning))
    return Catalog(entries)


def found(skills: Catalog, query: str, *hidden: str) -> list[str]:
    """Return the names of the skills that fit a query."""
    return find_index(skills.entries).search(query, 5, hidden)


def test_an_unchanged_catalog_is_indexed_once() -> None:
    """Queries on the same catalog share one index, and what is hidden from one is not from the next."""
    fruit = catalog("Sells apples.", "Sells pears.")
    assert [found(fruit, query) for query in ("apples", "pears", "apples")] == [["s0"], ["s1"], ["s0"]]
    index = find_index(fruit.entries)
    assert found(fruit, "sells", "s0") == ["s1"]
    assert found(fruit, "sells") == ["s0", "s1"]
    assert find_index(fruit.entries) is index
    assert find_index(Catalog(fruit.entries).entries) is index, "one index for all of a process"


def test_a_changed_catalog_is_indexed_again() -> None:
    """A change of a description, of tags, of the instructions or of the skills themselves is searched at once."""
    assert found(catalog("Sells apples."), "pears") == []
    assert found(catalog("Sells pears."), "pears") == ["s0"]
    assert found(catalog("Sells apples.", tags="pears"), "pears") == ["s0"]
    assert found(catalog("Sells apples.", tags="plums"), "pears") == []
    assert found(catalog("Sells apples.", "Sells pears."), "pears") == ["s1"]
    assert found(catalog("Sells apples.", beginning=b"Also pears."), "pears") == ["s0"]
    assert found(catalog("Sells apples.", beginning=b"Also plums."), "pears") == []


def test_threads_may_search_at_once() -> None:
    """Threads that search one catalog at the same moment each get the right answer."""
    fruit = catalog(*(f"Sells fruit{number}." for number in range(50)))
    start = threading.Barrier(8)

    def work(number: int) -> list[str]:
        start.wait()
        return [found(fruit, f"fruit{number + step}")[0] for step in range(10)]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(8)))
    assert results == [[f"s{number + step}" for step in range(10)] for number in range(8)]


def test_threads_may_correct_slips_at_once() -> None:
    """Threads that mistype at the same moment all get the skill they meant."""
    library = index(*((f"s{number}", f"Sells fruit{number:03}number.") for number in range(300)))
    start = threading.Barrier(8)

    def work(number: int) -> list[str]:
        start.wait()
        return library.search(f"fruit{number:03}numbre", 1)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [[f"s{number}"] for number in range(8)]


# Tags, through manager and agent.


def tagged(frontmatter: str, name: str = "demo") -> str:
    return f"---\nname: {name}\ndescription: Does a thing.\n{frontmatter}\n---\nBody.\n"


FIELDS = ("tags", "keywords", "triggers")
FORMS = {
    "top list": "{field}:\n  - zebra crossing\n  - {word}",
    "top flow list": "{field}: [zebra, {word}]",
    "top text": "{field}: zebra, {word}",
    "metadata list": "metadata:\n  {field}:\n    - zebra\n    - {word}",
    "metadata text": "metadata:\n  {field}: zebra {word}",
}


@both_modes
def test_tags_are_found_by_a_manager(mode: Mode, tmp_path: Path) -> None:
    """Tags, keywords and triggers, at the top or in the metadata, as list or text, lead to their skill."""
    write_files(tmp_path, {"other/SKILL.md": skill_md("other")})
    manager = SkillsManager.from_directory(tmp_path)
    for field in FIELDS:
        for case, form in FORMS.items():
            write_files(tmp_path, {"demo/SKILL.md": tagged(form.format(field=field, word="giraffe"))})
            for query in ("zebra", "giraffes", "a zebar"):
                found = [skill["name"] for skill in ask(mode, manager, "search_skills", query)]
                assert found == ["demo"], (field, case, query)


class Searching:
    """An agent with the search tool, on one checkpointed thread."""

    def __init__(self, mode: Mode, root: Path, saver: InMemorySaver, **options: Any) -> None:
        self._mode = mode
        middleware = SkillsMiddleware(backend=disk(root), sources=["/skills"], extra_tools=["search_skills"], **options)
        self._model = ScriptedChatModel(replies=[])
        self._agent: Any = create_agent(self._model, middleware=[middleware], checkpointer=saver)

    def ask(self, *queries: str) -> list[str]:
        """Have the model search in one turn, and return the answers."""
        calls = call_tools(*(("search_skills", {"query": query}) for query in queries))
        self._model.replies = [*(["Done."] * len(self._model.requests)), calls]
        result = run(self._mode, self._agent, "go", {"configurable": {"thread_id": "one"}})
        return [message.text for message in tool_messages(result)[-len(queries) :]]


@both_modes
def test_tags_are_found_by_an_agent(mode: Mode, tmp_path: Path) -> None:
    """In an agent tags lead to their skill too, also on a resumed thread whose middleware is another instance."""
    names = {}
    for number, (field, form) in enumerate((field, form) for field in FIELDS for form in FORMS.values()):
        word = chr(ord("a") + number) * 7
        names[word] = f"skill-{number}"
        text = tagged(form.format(field=field, word=word), names[word])
        write_files(tmp_path, {f"skills/{names[word]}/SKILL.md": text})
    saver = InMemorySaver()
    for _ in range(2):
        answers = Searching(mode, tmp_path, saver).ask(*names)
        found = {word: answer.splitlines() for word, answer in zip(names, answers, strict=True)}
        assert found == {word: [f"- **{name}**: Does a thing."] for word, name in names.items()}


@both_modes
def test_a_manager_searches_the_instructions(mode: Mode, tmp_path: Path) -> None:
    """Headings anywhere and the beginning of the instructions lead to a skill; code, the rest, and "not for" do not."""
    filler = "Fill in the gaps. " * 400
    body = f"Prune the roses.\n\n```python\nquokka = 1\n```\n\n{filler}\n## Wisteria\n\nAbout the platypus."
    text = f"---\nname: demo\ndescription: Looks after plants. Do not use for invoices.\n---\n{body}\n"
    write_files(tmp_path, {"demo/SKILL.md": text, "other/SKILL.md": skill_md("other")})
    manager = SkillsManager.from_directory(tmp_path)
    found = {word: bool(ask(mode, manager, "search_skills", word)) for word in ("roses", "wisteria", "plants")}
    missed = {word: bool(ask(mode, manager, "search_skills", word)) for word in ("quokka", "platypus", "invoices")}
    assert all(found.values()), found
    assert not any(missed.values()), missed
    write_files(tmp_path, {"demo/SKILL.md": text.replace("roses", "tulips")})
    assert ask(mode, manager, "search_skills", "roses") == []
    assert len(ask(mode, manager, "search_skills", "tulips")) == 1


@both_modes
def test_a_manager_searches_changed_tags(mode: Mode, tmp_path: Path) -> None:
    """Where nothing but the tags of a skill has changed, the next search goes by the new ones."""
    manager = SkillsManager.from_directory(tmp_path)
    for tag, gone in (("zebra", "giraffe"), ("giraffe", "zebra")):
        write_files(tmp_path, {"demo/SKILL.md": tagged(f"tags: [{tag}]")})
        assert len(ask(mode, manager, "search_skills", tag)) == 1
        assert ask(mode, manager, "search_skills", gone) == []


@both_modes
def test_an_agent_searches_changed_tags(mode: Mode, tmp_path: Path) -> None:
    """Where every run looks again, an agent's search goes by the tags of this run."""
    agent = Searching(mode, tmp_path, InMemorySaver(), refresh="run")
    for tag, gone in (("zebra", "giraffe"), ("giraffe", "zebra")):
        write_files(tmp_path, {"skills/demo/SKILL.md": tagged(f"tags: [{tag}]")})
        found, nothing = agent.ask(tag, gone)
        assert found.startswith("- **demo**")
        assert nothing.startswith("No skill matches")


@both_modes
def test_managers_give_as_many_as_asked_for(mode: Mode, tmp_path: Path) -> None:
    """A manager's search gives up to `n` results, none for none, and five unless asked."""
    write_files(tmp_path, {f"s{i}/SKILL.md": skill_md(f"s{i}", "Makes reports.") for i in range(12)})
    manager = SkillsManager.from_directory(tmp_path)
    for n, count in ((0, 0), (-3, 0), (1, 1), (7, 7), (10**30, 12)):
        assert len(ask(mode, manager, "search_skills", "report", n=n)) == count, n
    assert len(ask(mode, manager, "search_skills", "report")) == 5


@both_modes
def test_managers_take_any_query(mode: Mode, tmp_path: Path) -> None:
    """A hostile or endless query gives a manager's caller a list."""
    write_files(tmp_path, {"release-notes/SKILL.md": skill_md("release-notes", "Writes notes.")})
    manager = SkillsManager.from_directory(tmp_path)
    for case, query in [*SYNTAX.items(), *LONG.items()]:
        assert len(ask(mode, manager, "search_skills", query)) <= 1, case

"""Text as words: split in any script, and known by how little they say. Pure."""

import functools
import operator
import re
import unicodedata

_ASCII = 128
_PLAIN = bytes(
    code if code >= _ASCII else ord(chr(code).lower()) if chr(code).isalnum() else ord(" ") for code in range(256)
)
_SIGNS = re.compile(
    rb"\xe2[\x80-\x9f].|\xef\xb8\x8f|\xf0\x9f.."
    rb"|\xe3\x80[\x80-\x84\x88-\xa0\xb0]|\xef\xbc[\x81-\x8f\x9a-\xa0\xbb-\xbf]|\xef\xbd[\x80\x9b-\xa5]",
    re.DOTALL,
)
"""Dashes, quotes, arrows, boxes and emoji in UTF-8, and the marks that Chinese and Japanese put between sentences:
most texts that are not ASCII have nothing else beside letters."""
_SHORT = 24
_LAST_MARK = 0x1FFFF
_ACCENTS = re.compile("[\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670]+")
"""Accents of Latin, Greek and Cyrillic letters, vowel points of Hebrew and Arabic: people leave them out."""
_UNSPACED = re.compile(
    "["
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai and Lao, Myanmar, Khmer
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\uac00-\ud7af"  # Chinese, Japanese, Korean
    "]+"
)
"""Scripts that put no spaces between words, or join words to each other."""
_COMMON_UNSPACED = re.compile("[\u3041-\u3096\u30a1-\u30fa\u30fc\u4e00-\u9fff\uac00-\ud7a3]+")
"""Letters of these scripts that have one form only and need not be folded."""
_WITH_ASCII = re.compile(f"[a-z0-9]+|{_COMMON_UNSPACED.pattern}")
_ALL_WITH_ASCII = re.compile(f"[a-z0-9{_COMMON_UNSPACED.pattern[1:]}")
_GRAMMAR_ONLY = re.compile("[\u3041-\u309f]+")
"""Hiragana: what Japanese inflects words with, and seldom what they mean."""

_ENDINGS = {
    letter: tuple(
        ending
        for ending in ("ings", "ing", "ies", "ied", "ers", "er", "ed", "es", "s", "y", "e")
        if ending[-1] == letter
    )
    for letter in "sgdrye"
}
_SILENT_E = re.compile("[^aeiou][aeiou][^aeiouwxy]")
"""What is left of "coding" and "making": verbs without an `e` at their end double the last letter, as in "running"."""

_FUNCTION_WORDS = """
a about all an and any are as at be by can could do does for from get give has have help how i if in into is it its like
make me my need new of on or our out please should some so that the their them then there these they this to up us use
used user uses using want was we what when where which who will with would you your skill skills
"""
STOP_WORDS = frozenset(_FUNCTION_WORDS.split())
"""English words that are left out of a query that has others."""

_GRAMMAR = "a an and are as at be by for from if in is it its of on or that the this to with"
GRAMMAR_WORDS = frozenset(_GRAMMAR.split())
"""English words that say nothing even where a query has no others; a skill may be called `make`, and none `the`."""

_TALK = """
able actually after afternoon again ago ah almost already alright also although always am amazing another answer anybody
anymore anyone anything anyway apparently around ask asked asking asks away awesome awful back bad barely basically
became because become been before being believe best better between big bit boring both bye call called calling came
cannot care chat come comes coming completely cool couldn course currently cute d day days dear definitely did didn
different doesn doing don done down each easy either else enough especially even evening ever every everybody everyone
everything exactly expect fantastic far feel feels few finally fine first forget forgot friend friends fun funny gave
getting glad go goes going gone good got great guess guy guys had haha half happen happened happens happy hard hasn
hate haven having he hear heard hello her here hers hey hi him himself his hmm hope hour hours however idea ignore ill
im impressive including instead interesting isn ive job just keep keeps kind know known last late lately later least
left less let lets likely little live ll lol long look looking looks lot lots love lovely low luck lunch m made makes
making many matter may maybe mean means meant might mind mine minute minutes mom moment month months more morning most
mostly much must myself name near nearly needed needs never next nice night no nobody none nope nor normal not nothing
now o obviously off often oh ok okay old once one ones only other others otherwise ought ourselves over own part
people perfect perhaps person pm pretty probably problem put puts question quick quickly quite rather re ready real
really repeat right room s said same saw say saying says second see seem seems seen sent several she short shorter
show simple simpler simply since small so somebody somehow someone something sometimes somewhere soon sorry sort sound
sounds still stuff such super sure surely t take takes taking talk tell than thank thanks thing things think thinking
thinks though thought three through thx till time times tired today together told tomorrow tonight too took totally
tried true try trying turn two under understand unfortunately until usual usually ve very wait waiting wanted wants
wasn way ways week weekend weeks welcome well went were weren whatever whether while whole whom whose why win wish
within without won wonder wonderful wondering word words work working works world worry worse worst wouldn wow wrong
yeah year years yep yes yesterday yet young yours
"""
_SPOKEN = (
    "你好 您好 早上好 上午好 下午好 晚上好 晚安 谢谢 多谢 感谢 不客气 没关系 没问题 好的 好吧 可以 不可以 知道 "
    "不知道 今天 明天 昨天 现在 刚才 哈哈 嗯嗯 怎么样 怎么 什么 为什么 是不是 有没有 能不能 可不可以 一下 一个 "
    "一些 这个 那个 我们 你们 他们 大家 自己 已经 还是 但是 因为 所以 如果 觉得 喜欢 希望 需要 想要 麻烦 辛苦 "
    "帮忙 帮我 给我 告诉我 请问 时候 事情 东西 真的 非常 特别 有点 太好了 再见 周末 心情 聊聊 聊天 こんにちは "
    "こんばんは おはよう おやすみ ありがとう すみません ごめんなさい はじめまして よろしくお願いします お願い "
    "お願いし 元気 大丈夫 了解 今日 明日 昨日 今 本当 とても 少し 私 僕 自分 何か 思います 教えて ください "
    "もらえますか 助かり 助かる"
)
_CJK_STOP = frozenset(
    "的了在是我和有就不人都一把这那要给为请帮与及或等用时的中对将の をにはがでともやへする したいですます".replace(
        " ", ""
    )
)
_STOP_PAIRS = frozenset(one + other for one in _CJK_STOP for other in _CJK_STOP)


LONG_NUMBER, INFLECTION, PAIR = 0.3, 0.1, 0.6
"""How much a number such as a year says, letters that inflect a word, and a pair of characters; a word says 1.

A word of a script without spaces is spread over two or three pairs, of which some join it to the next by chance.
"""


def split_words(text: str | bytes, *, indexing: bool = False) -> list[str]:
    """Split text into words without accents; runs of a script without spaces become pairs of characters."""
    plain = plain_text(text)
    if not plain.isascii():
        plain = _SIGNS.sub(b" ", plain)
    runs = plain.decode().split()
    if plain.isascii():
        return runs
    words: list[str] = []
    for run in runs:
        if run.isascii():
            words.append(run)
        else:
            words += _short_run(run, indexing) if len(run) <= _SHORT else _split_run(run, indexing=indexing)
    return words


def plain_text(text: str | bytes) -> bytes:
    """Return text in UTF-8 with ASCII letters in lower case, and a space for each ASCII character that is no letter.

    Two words that stand side by side have one space between them here; what is not ASCII stays as it is.
    """
    return (text.encode("utf-8", "replace") if isinstance(text, str) else text).translate(_PLAIN)


@functools.lru_cache(maxsize=32_768)
def _short_run(run: str, indexing: bool) -> tuple[str, ...]:  # noqa: FBT001 - a cache tells apart what is by position
    return tuple(_split_run(run, indexing=indexing))


def _split_run(run: str, *, indexing: bool) -> list[str]:
    """Return the words of a run of letters and signs that are not all ASCII."""
    if _COMMON_UNSPACED.fullmatch(run):
        return _pairs(run, indexing=indexing)
    words: list[str] = []
    if _ALL_WITH_ASCII.fullmatch(run):
        for part in _WITH_ASCII.findall(run):
            words += [part] if part.isascii() else _pairs(part, indexing=indexing)
        return words
    for part in _word().findall(_fold(run)):
        position = 0
        for match in _UNSPACED.finditer(part):
            if match.start() > position:
                words.append(part[position : match.start()])
            words += _pairs(match[0], indexing=indexing)
            position = match.end()
        if position < len(part):
            words.append(part[position:])
    return words


def is_unspaced(word: str) -> bool:
    """Whether a word is of a script that puts no spaces between words."""
    return _UNSPACED.match(word) is not None


def new_stem(word: str) -> str:
    """Return what forms of an English word share; other words stay as they are."""
    if not word.isascii():
        return word
    for ending in _ENDINGS.get(word[-1:], ()):
        rest = word.removesuffix(ending)
        if rest == word or len(rest) < 3:  # noqa: PLR2004 - less says nothing
            continue
        if len(rest) > 3:  # noqa: PLR2004 - see above
            return rest[:-1] if rest[-1] == rest[-2] and ending[0] in "ei" else rest
        if ending[0] == "e":  # "notes" is not a form of "not"
            continue
        return f"{rest}e" if ending[:3] == "ing" and _SILENT_E.fullmatch(rest) else rest
    return word


stem = functools.lru_cache(maxsize=65_536)(new_stem)
"""The same, remembered: for words of requests, and of skills that are looked at again."""


def worth(word: str) -> float:
    """Return how much a word can say of what a user wants, from 0 for talk to 1.

    A word of a script without spaces is spread over several pairs of characters, so each counts less.
    """
    if word in STOP_WORDS or word in _talk():
        return 0.0
    if word.isdigit():
        return LONG_NUMBER if len(word) > 2 else 0.0  # noqa: PLR2004 - a count or a day; longer ones may name something
    if not is_unspaced(word):
        return 1.0 if len(word) > 1 else 0.0
    return INFLECTION if is_grammar(word) else PAIR


def is_grammar(word: str) -> bool:
    """Whether letters inflect words, and seldom mean something themselves."""
    return _GRAMMAR_ONLY.fullmatch(word) is not None


@functools.cache
def _talk() -> frozenset[str]:
    """Return words, and pairs of characters, of talk that is about nothing a skill does."""
    return frozenset([*_TALK.split(), *split_words(_SPOKEN)])


def _fold(text: str) -> str:
    """Return text in one case and without accents; marks that letters of other scripts need stay."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", folded)))


@functools.cache
def _word() -> re.Pattern[str]:
    """Return what a word is made of: letters and digits of any script, and the marks on them."""
    marks = "".join(chr(code) for code in range(0x300, _LAST_MARK) if unicodedata.category(chr(code))[0] == "M")
    return re.compile(rf"[^\W_]+(?:[{marks}]+[^\W_]*)*")


def _pairs(run: str, *, indexing: bool) -> list[str]:
    if len(run) == 1:
        return [] if run in _CJK_STOP else [run]
    words = [pair for pair in map(operator.add, run, run[1:]) if pair not in _STOP_PAIRS]
    # Of a skill the last character too, so that a query of one character meets every place it stands in.
    return [*words, run[-1]] if indexing and run[-1] not in _CJK_STOP else words

"""The default token counter: equal to LangChain's on most scripts, honest about Chinese, Japanese and Korean."""

import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import ToolMessage
from langchain_core.messages.utils import count_tokens_approximately

from deepskills._loading.budget import count_text_tokens, count_tokens

repeatable = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

OVERHEAD = count_tokens("")

NARROW = st.text(
    st.characters(exclude_categories=["Cs"], max_codepoint=0x2DFF).filter(lambda c: not 0x1100 <= ord(c) <= 0x11FF)
)
"""Texts without Chinese, Japanese or Korean, below the first of their blocks."""


def langchain_count(text: str) -> int:
    return count_tokens_approximately([ToolMessage(text, name="load_skill", tool_call_id="call_" + "x" * 25)])


@repeatable
@given(NARROW)
def test_a_text_of_other_scripts_counts_as_langchain_counts_it(text: str) -> None:
    """To the token, from the empty text on."""
    assert count_tokens(text) == langchain_count(text)


def test_scripts_and_signs_outside_the_three_languages_count_as_langchain_counts_them() -> None:
    """Emoji, Arabic forms, Yi and mathematical letters are not taken for Chinese."""
    texts = (
        "🚀🧪🤖" * 50,
        "ﷺﮩ" * 50,
        "ꀀꊈꌠ" * 50,
        "𝐀𝒃𝕔" * 50,
        "Größe, Привет, नमस्ते",
        "\ud800" * 8,
        "\x00" * 9,
    )
    assert [text for text in texts if count_tokens(text) != langchain_count(text)] == []


def test_a_character_of_chinese_japanese_or_korean_is_one_token() -> None:
    """Ideographs, kana, syllables, jamo, half and full width, and the punctuation between them."""
    texts = (
        "本周完成了什么",
        "ひらがなとカタカナ",
        "한국어텍스트",
        "ㄅㄆㄇ",
        "각",
        "ｱｲｳ",
        "，。！？「」",
        "𠮷𡃁𪚥",
        "㐀䶵",
        "豈﨩",
        "⼀⺀",
    )
    counted = {text: count_tokens(text * 40) - OVERHEAD for text in texts}
    assert counted == {text: len(text) * 40 for text in texts}


def test_a_mixed_text_is_the_sum_of_its_parts() -> None:
    """Each script by its own rule."""
    assert count_tokens("word" * 25 + "周报" * 10) == OVERHEAD + 25 + 20


def test_a_part_of_a_message_costs_its_characters_alone() -> None:
    """The prompt's section is not a message of its own."""
    texts = ("", "abc", "abcd", "周报", "word" * 25 + "周报" * 10)
    assert [count_text_tokens(text) for text in texts] == [0, 1, 1, 2, 45]


def test_ten_megabytes_are_counted_at_once() -> None:
    """No text makes counting slow: one script, scripts in turn, or rare ideographs only."""
    size = 10 * 1024 * 1024
    texts = {
        "ascii": "a" * size,
        "chinese": "周" * (size // 3),
        "mixed": "a周" * (size // 4),
        "rare": "𠮷" * (size // 4),
    }
    slow = {}
    for name, text in texts.items():
        start = time.process_time()
        count_tokens(text)
        spent = time.process_time() - start
        if spent > 0.5:
            slow[name] = spent
    assert slow == {}

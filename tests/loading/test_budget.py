"""The default token counter: near what tokenizers make of a text, of whatever kind."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import ToolMessage
from langchain_core.messages.utils import count_tokens_approximately

from deepskills._loading.budget import count_text_tokens, count_tokens

repeatable = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

OVERHEAD = count_tokens("")

_SAMPLES = Path(__file__).with_name("token_samples.json")

SAMPLES: dict[str, tuple[int, str]] = json.loads(_SAMPLES.read_text(encoding="utf-8"))
"""Texts, and how many tokens o200k_base makes of each."""


@repeatable
@given(st.text())
def test_no_text_counts_less_than_langchain_counts_it(text: str) -> None:
    """A budget that is kept by this counter is kept by LangChain's, whatever the text."""
    langchain = count_tokens_approximately([ToolMessage(text, name="load_skill", tool_call_id="call_" + "x" * 25)])
    assert count_tokens(text) >= langchain


def test_texts_of_many_kinds_count_near_what_a_tokenizer_makes_of_them() -> None:
    """Within 30 % for prose, code, tables, JSON and base64, alone and after each other."""
    counted = {name: count_text_tokens(text * 20) / (20 * tokens) for name, (tokens, text) in SAMPLES.items()}
    assert {name: ratio for name, ratio in counted.items() if not 0.7 <= ratio <= 1.3} == {}
    mixed = "\n\n".join(text * 5 for _, text in SAMPLES.values())
    assert count_text_tokens(mixed) == pytest.approx(5 * sum(tokens for tokens, _ in SAMPLES.values()), rel=0.3)


def test_odd_texts_are_counted_too() -> None:
    """Lone surrogates, control characters and spaces are no reason to fail."""
    texts = ("\ud800" * 8, "\x00" * 9, " " * 50, "\n" * 50, "🚀🧪🤖" * 50, "ﷺﮩ" * 50, "ꀀꊈꌠ" * 50, "𝐀𝒃𝕔" * 50)
    assert [text for text in texts if count_text_tokens(text) < len(text) / 4] == []


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

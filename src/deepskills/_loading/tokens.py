"""About how many tokens a text costs, without a tokenizer. Pure, and quick on texts of any size."""

CHARACTERS_PER_TOKEN = 4
"""How many characters of most scripts make one token, as LangChain's approximate counter has it."""

MESSAGE_TOKENS = 3
"""What a message costs besides its characters, as LangChain's approximate counter has it."""

MESSAGE_CHARACTERS = len("tool") + len("load_skill") + len("call_") + 25
"""The characters around a text that answers `load_skill`: its role, its name and a call's id of the usual length."""

_WIDE_BLOCKS = bytes([0x11, *range(0x2E, 0xA0), *range(0xAC, 0xD8), 0xF9, 0xFA, 0xFF])
"""High bytes of the UTF-16 units that write Chinese, Japanese and Korean, full-width punctuation included."""

_IDEOGRAPHIC_PLANES = (2, 3)
"""The planes beyond the first that hold nothing but ideographs."""


def count_tokens(text: str) -> int:
    """Return about how many tokens `text` costs as the answer to a call of `load_skill`.

    A character of Chinese, Japanese or Korean is one token; the rest counts as LangChain's approximate counter does.
    """
    return _count(text, MESSAGE_CHARACTERS) + MESSAGE_TOKENS


def count_text_tokens(text: str) -> int:
    """Return about how many tokens `text` costs as a part of a message that is there anyway, such as the prompt."""
    return _count(text, 0)


def _count(text: str, further_characters: int) -> int:
    wide = _count_wide(text)
    return wide + -(-(len(text) - wide + further_characters) // CHARACTERS_PER_TOKEN)


def _count_wide(text: str) -> int:
    """Return how many characters are Chinese, Japanese or Korean; no Python step per character."""
    if text.isascii():
        return 0
    high_bytes = text.encode("utf-16-be", "surrogatepass")[::2]
    wide = len(high_bytes) - len(high_bytes.translate(None, _WIDE_BLOCKS))
    if len(high_bytes) > len(text):
        planes = text.encode("utf-32-be", "surrogatepass")[1::4]
        wide += sum(map(planes.count, _IDEOGRAPHIC_PLANES))
    return wide

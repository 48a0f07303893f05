"""Shows a stranger's Markdown as HTML that can only be read. Pure.

Anybody can write a skill's text. It must never run a script, load anything, frame or restyle the page, or lead people
astray by looking like part of it. Three rules ensure that:

- HTML in a text is shown as plain characters; every element comes from the parser.
- A link leads to a file of the same skill, to a heading of the same text, or outside by `http`, `https` or `mailto`,
  and then it is marked. Any other link is plain text. An image is never loaded, only linked.
- No class, id or style in a text reaches the page: ids of headings have a prefix that nothing else has.

As a second barrier, the page's content security policy forbids the same.
"""

import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

from deepskills._skillmd.text import clean
from deepskills._types import SKILL_FILE

MAX_RENDERED = 60_000
"""Up to this many characters, a text is rendered; a longer one is shown as written.

A text can be made to take far more time than its length suggests, and this bounds it.
"""

HEADING_PREFIX = "part-"
"""The prefix of every heading's id, so that no text can take an id of the page."""

# With a host: a browser takes `http:/logout` for an address of the page's own site.
_OUTSIDE = re.compile(r"https?://[^/\\?#]|mailto:", re.IGNORECASE)
_NOT_IN_IDS = re.compile(r"[^\w\- ]+")
_ALIGNED = {"text-align:left": "left", "text-align:center": "center", "text-align:right": "right"}
_DEEPEST_HEADING = 6


@dataclass(frozen=True)
class Place:
    """Where a text is: what its relative links are relative to, and which files they may lead to."""

    files_address: str
    """The address below which the files of the skill are shown."""

    skill_address: str
    """The address of the skill itself, which shows its `SKILL.md`."""

    directory: str = ""
    """The directory of the text inside the skill."""

    paths: Collection[str] = field(default_factory=frozenset)
    """The files that the skill has."""

    def resolve(self, link: str) -> str | None:
        """Return the address that a relative link in the text leads to; `None` if it leads to no file of the skill."""
        path, _, fragment = link.partition("#")
        if not path:
            return f"#{HEADING_PREFIX}{_slug(unquote(fragment))}" if fragment else None
        inside = posixpath.normpath(posixpath.join(self.directory, unquote(path.partition("?")[0])))
        if inside == SKILL_FILE:
            return self.skill_address
        return f"{self.files_address}{quote(inside)}" if inside in self.paths else None


def render(text: str, place: Place) -> str | None:
    """Return a text as HTML with only elements that the parser made; `None` if it is too long to render."""
    if len(text) > MAX_RENDERED:
        return None
    tokens = _PARSER.parse(clean(text))
    _tame(tokens, place)
    html: str = _PARSER.renderer.render(tokens, _PARSER.options, {})
    # Code may be wider than the page; with the focus, it can be scrolled by keyboard.
    return html.replace("<pre>", '<pre tabindex="0">')


class _Parser(MarkdownIt):
    def validateLink(self, url: str) -> bool:  # noqa: N802 - the parser's name
        """Whether a link is allowed; others stay text."""
        return leads_outside(url) or _is_relative(url)


def leads_outside(link: str) -> bool:
    """Whether a link leads outside in an allowed way."""
    return _OUTSIDE.match(link) is not None


def _is_relative(link: str) -> bool:
    """Whether a link stays inside the skill: no scheme, host or absolute path, however a browser may read it."""
    first = link.partition("/")[0].partition("#")[0].partition("?")[0]
    return ":" not in first and "\\" not in link and not link.startswith("/")


_PARSER = _Parser("commonmark", {"html": False, "maxNesting": 20}).enable(["table", "strikethrough"])


def _tame(tokens: Sequence[Token], place: Place) -> None:
    seen: set[str] = set()
    for number, token in enumerate(tokens):
        if token.type in {"heading_open", "heading_close"}:
            # The page itself has the first-level heading.
            token.tag = f"h{min(int(token.tag[1:]) + 1, _DEEPEST_HEADING)}"
        if token.type == "heading_open":
            name = _slug(tokens[number + 1].content)
            if name and name not in seen:
                seen.add(name)
                token.attrs = {"id": f"{HEADING_PREFIX}{name}"}
        elif token.type in {"th_open", "td_open"}:
            # Style attributes are refused by the page's policy.
            side = _ALIGNED.get(str(token.attrs.get("style", "")))
            token.attrs = {"class": side} if side else {}
        elif token.type == "table_open":
            token.attrs = {"tabindex": "0"}
        elif token.type in {"fence", "code_block"}:
            token.info, token.attrs = "", {}
        elif token.type == "inline" and token.children:
            token.children = list(_inline(token.children, place))


def _inline(children: Sequence[Token], place: Place) -> Iterator[Token]:
    is_dropped, in_link = False, False
    for token in children:
        if token.type == "link_open":
            attributes = _link(str(token.attrs.get("href", "")), place)
            is_dropped, in_link = attributes is None, True
            if attributes is not None:
                token.attrs = attributes
                yield token
        elif token.type == "link_close":
            in_link = False
            if not is_dropped:
                yield token
        elif token.type == "code_inline" and not in_link and posixpath.normpath(token.content) in place.paths:
            # Skills often name their files as inline code: link those too.
            yield Token("link_open", "a", 1, attrs={"href": place.resolve(quote(token.content)) or ""})
            yield token
            yield Token("link_close", "a", -1)
        elif token.type == "image":
            yield from _image(token, None if in_link else _link(str(token.attrs.get("src", "")), place))
        else:
            yield token


def _link(href: str, place: Place) -> dict[str, str | int | float] | None:
    if leads_outside(href):
        return {"href": href, "rel": "noopener noreferrer nofollow"}
    address = place.resolve(href)
    return None if address is None else {"href": address}


def _image(token: Token, attributes: dict[str, str | int | float] | None) -> Iterator[Token]:
    """Yield a link in place of an image: its description, leading to a file of the skill or outside."""
    text = Token("text", "", 0, content=f"[image: {token.content or 'no description'}]")
    if attributes is None:
        yield text
        return
    yield Token("link_open", "a", 1, attrs=attributes)
    yield text
    yield Token("link_close", "a", -1)


def _slug(text: str) -> str:
    return _NOT_IN_IDS.sub("", text.strip().lower()).replace(" ", "-")

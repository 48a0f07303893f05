"""A browser without scripts for tests of the store's page: it reads forms as they are in the HTML, and sends them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from uuid import UUID

import httpx
from fastapi import FastAPI, Request
from store_support import Sessions

from deepskills.store import SkillService, StoreLimits, create_skills_page

GROUPS = {"ann": ["staff"], "bob": ["staff"], "cleo": ["readers"], "olga": []}
RULES: dict[str, Any] = {
    "groups_of": lambda user: GROUPS.get(user, []),
    "is_operator": lambda user: user == "olga",
    "approval": True,
    "limits": StoreLimits(file_bytes=50_000, skill_bytes=100_000, files=20, own_groups_only=False),
}
ORIGIN = "http://store.test"


def current_user(request: Request) -> str | None:
    return request.headers.get("x-user")


def page_app(sessions: Sessions, prefix: str = "", **options: Any) -> FastAPI:
    """Return an application with the page at a path."""
    app = FastAPI()
    app.mount(prefix or "/", create_skills_page(sessions, current_user, **{**RULES, **options}))
    return app


@dataclass
class Form:
    """A form as a page has it."""

    method: str
    action: str
    fields: dict[str, str] = field(default_factory=dict)
    buttons: list[str] = field(default_factory=list)


class Html(HTMLParser):
    """What a page holds: elements with their attributes, forms, and its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.forms: list[Form] = []
        self.words = ""
        self._open: Form | None = None
        self._area: str | None = None
        self._select: str | None = None
        self._in_button = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.elements.append((tag, given))
        if tag == "form":
            self._open = Form(given.get("method", "get"), given["action"])
            self.forms.append(self._open)
        if self._open is None:
            return
        is_chosen = given.get("type") not in {"radio", "checkbox", "file"} or "checked" in given
        if tag == "input" and "name" in given and is_chosen:
            self._open.fields[given["name"]] = given.get("value", "")
        if tag == "textarea":
            self._area = given["name"]
            self._open.fields[self._area] = ""
        if tag == "select":
            self._select = given["name"]
            self._open.fields[self._select] = ""
        if tag == "option" and "selected" in given and self._select is not None:
            self._open.fields[self._select] = given["value"]
        if tag == "button":
            self._in_button = True
            self._open.buttons.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._open = None
        self._area = None if tag == "textarea" else self._area
        self._in_button = self._in_button and tag != "button"

    def handle_data(self, data: str) -> None:
        self.words += data
        if self._open is not None and self._area is not None:
            self._open.fields[self._area] += data
        if self._open is not None and self._in_button:
            self._open.buttons[-1] += data.strip()

    def form(self, ending: str) -> Form:
        """Return the form whose address ends in a word."""
        [found] = [form for form in self.forms if form.action.partition("?")[0].endswith(ending)]
        if "text" in found.fields:
            # A browser drops the first line break of a text area, and sends all others as two characters.
            text = found.fields["text"].removeprefix("\n")
            found.fields["text"] = text.replace("\r\n", "\n").replace("\n", "\r\n")
        return found

    def has(self, ending: str) -> bool:
        """Whether the page has a form or a link to an address that ends in a word."""
        links = [given.get("href", "") for tag, given in self.elements if tag == "a"]
        actions = [form.action for form in self.forms]
        return any(address.partition("?")[0].endswith(ending) for address in [*links, *actions])


class Visitor:
    """A user with a browser of their own."""

    def __init__(self, app: Any, user: str | None, origin: str = ORIGIN) -> None:
        self.user = user
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url=origin, headers={"x-user": user} if user else {}
        )
        self.last: httpx.Response

    async def open(self, path: str, code: int = 200, **options: Any) -> Html:
        """Open an address and return its page."""
        self.last = await self.client.get(path, follow_redirects=True, **options)
        assert self.last.status_code == code, (self.last.status_code, Html(self.last.text).words)
        return Html(self.last.text)

    async def send(self, form: Form, code: int = 200, *, files: Mapping[str, Any] | None = None, **fields: str) -> Html:
        """Fill a form in, send it as a browser does, and return the page that it leads to."""
        values = {**form.fields, **fields}
        options: dict[str, Any] = {"data": values, "files": files} if files else {"data": values}
        self.last = await self.client.post(
            form.action,
            headers={"origin": str(self.client.base_url).rstrip("/"), "sec-fetch-site": "same-origin"},
            follow_redirects=True,
            **options,
        )
        assert self.last.status_code == code, (self.last.status_code, Html(self.last.text).words)
        return Html(self.last.text)

    async def token(self) -> str:
        """Return the token of this user's forms."""
        return (await self.open("/new")).form("/new").fields["token"]


@asynccontextmanager
async def service_for(sessions: Sessions, **options: Any) -> AsyncIterator[SkillService]:
    """Give a service by the rules of the page."""
    async with sessions() as session:
        yield SkillService(session, **{**RULES, **options})


def id_in(address: object) -> UUID:
    """Return the id of the skill that an address is about."""
    return UUID(str(address).partition("/skills/")[2][:36])


def skill_md(name: str, body: str = "# Steps\n\nDo it.\n", tags: str = "") -> str:
    """Return a `SKILL.md`."""
    lines = [f"name: {name}", f"description: Does {name} well.", *([f"metadata:\n  tags: {tags}"] if tags else [])]
    return "---\n" + "\n".join(lines) + f"\n---\n{body}"

"""The page where people keep their skills, with the example skills and three users to switch between.

    make page

Or by hand, with `deepskills[store,page]` and uvicorn:

    python examples/skills_page.py --port 8321
    python examples/skills_page.py --database sqlite:///skills.db    # kept; by default it is gone at the end

ann and bob write skills and are in the group `writers`; olga is an operator, who approves what others publish. Use the
menu at the top right to become one of them. As anyone who reaches the port can do so, it listens on loopback.
"""

import argparse
import asyncio
import datetime as dt
import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from deepskills.store import (
    SkillCreate,
    SkillService,
    SkillUpdate,
    create_skills_page,
    create_skills_router,
    create_store_engine,
    migrations,
)
from deepskills.store.db.models import DailyUsage

SKILLS = Path(__file__).parent / "skills"
USERS = {"ann": ["writers"], "bob": ["writers"], "olga": []}
COOKIE = "demo-user"

RULES: dict[str, Any] = {
    "groups_of": lambda user: USERS.get(user, []),
    "is_operator": lambda user: user == "olga",
    "approval": "by-others",
}


def current_user(request: Request) -> str | None:
    """Tell who asks: the user chosen in the menu. Your application knows its users in a better way."""
    user = request.cookies.get(COOKIE, "ann")
    return user if user in USERS else None


def build_app(database_url: str) -> FastAPI:
    """Return the page and the API on one database, which is filled at the first start."""
    engine = create_store_engine(database_url)
    sessions = async_sessionmaker(engine)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await migrations.upgrade(engine)
        async with sessions() as session:
            if not await SkillService(session).list_skills(None, everything=True, system=True):
                await fill(session)
        yield
        await engine.dispose()

    app = FastAPI(title="Skills", lifespan=lifespan)
    app.include_router(create_skills_router(sessions, current_user, **RULES), prefix="/api/v1")

    @app.get("/demo/as/{user}")
    async def become(user: str) -> Response:
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, user if user in USERS else "", httponly=True, samesite="lax")
        return answer

    links = {f"Become {user}": f"/demo/as/{user}" for user in USERS}
    # Last, because an application at `/` takes every address that is left.
    app.mount("/", create_skills_page(sessions, current_user, account_links=links, **RULES))
    return app


async def fill(session: AsyncSession) -> None:
    """Put the example skills into an empty store, and make them look used."""
    service = SkillService(session, **RULES)
    made = {}
    for place in sorted(SKILLS.iterdir()):
        draft = SkillCreate.from_directory(place)
        owner = {"incident-review": "bob", "api-design-review": None}.get(place.name, "ann")
        skill = await service.create_skill(draft, owner, system=owner is None)
        made[skill.name] = skill
    notes, review = made["release-notes"], made["incident-review"]
    public = await service.update_skill(notes.id, SkillUpdate(is_public=True), "ann")
    await service.approve_skill(public.id, public.revision, "olga")
    await service.update_skill(review.id, SkillUpdate(is_public=True, shared_with={"writers": "write"}), "bob")
    dice = random.Random(7)  # noqa: S311 - for looks
    today = dt.datetime.now(dt.UTC).date()
    for number, skill in enumerate(made.values(), 1):
        for back in range(30):
            for trigger, most in (("model", 9 // number), ("slash", 2), ("pin", 1)):
                if count := dice.randint(0, most):
                    day = today - dt.timedelta(days=back)
                    session.add(
                        DailyUsage(skill_id=skill.id, day=day, type="skill.loaded", trigger=trigger, count=count)
                    )
    await session.commit()


async def main() -> None:
    parser = argparse.ArgumentParser(description="The page where people keep their skills.")
    parser.add_argument("--database", help="a database URL; a temporary SQLite file by default")
    parser.add_argument("--port", type=int, default=8321)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        app = build_app(arguments.database or f"sqlite:///{directory}/skills.db")
        print(f"The page: http://127.0.0.1:{arguments.port}/  (Ctrl+C ends it)")
        config = uvicorn.Config(app, host="127.0.0.1", port=arguments.port, log_level="warning")
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(main())

"""`deepskills store import` and `export`: skills on disk into a database and back. Needs the extra `store`."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from deepskills._cli.files import UsageError
from deepskills._cli.result import FAILED, Result, prints

if TYPE_CHECKING:
    from deepskills._cli.output import Output
    from deepskills.store import SkillService
    from deepskills.store.directories import Done


@click.group("store")
def store() -> None:
    """Move skills between a directory and the skill store."""


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--system", is_flag=True, help="System skills, which everybody has, instead of a user's."),
        click.option("--user", metavar="ID", help="Whose skills they are."),
        click.option(
            "--database",
            metavar="URL",
            envvar="DEEPSKILLS_DATABASE_URL",
            required=True,
            help="The database, such as sqlite:///skills.db.",
        ),
    ):
        command = option(command)
    return command


@store.command("import")
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@_options
@prints
def import_(output: "Output", directory: str, database: str, user: str | None, *, system: bool) -> Result:
    """Bring the skill, or the tree of skills, in DIRECTORY into the store. Again, it updates what changed."""
    if (user is None) == (not system):
        raise click.UsageError("Say whose the skills are: --user ID, or --system.")

    async def work(service: "SkillService") -> "list[Done]":
        from deepskills.store.directories import import_skills  # noqa: PLC0415 - needs the extra

        return await import_skills(service, directory, user, system=system)

    return _run(output, database, work)


@store.command("export")
@click.argument("directory", type=click.Path(file_okay=False))
@click.option("--include-public", is_flag=True, help="The public skills of others too.")
@_options
@prints
def export(
    output: "Output", directory: str, database: str, user: str | None, *, include_public: bool, system: bool
) -> Result:
    """Write the skills that a user may see to DIRECTORY, each into a directory of its name."""

    async def work(service: "SkillService") -> "list[Done]":
        from deepskills.store.directories import export_skills  # noqa: PLC0415 - needs the extra

        return await export_skills(service, directory, user, include_public=include_public, system=system)

    return _run(output, database, work)


def _check_directory(file: str) -> None:
    # The driver would find out as well, and leave a thread behind that ends with a traceback.
    if not Path(file).absolute().parent.is_dir():
        raise UsageError(f"There is no directory for the database {file}. Create it, or name another.")


def _run(output: "Output", database: str, work: "Callable[[SkillService], Awaitable[list[Done]]]") -> Result:
    from deepskills._cli.output import prose  # noqa: PLC0415 - the help needs none

    try:
        import deepskills.store  # noqa: F401, PLC0415 - needs the extra
    except ModuleNotFoundError as error:
        raise click.ClickException(str(error)) from None
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - needs the extra
    from sqlalchemy.ext.asyncio import async_sessionmaker  # noqa: PLC0415 - needs the extra

    from deepskills.store import SkillService, create_store_engine, migrations  # noqa: PLC0415 - needs the extra

    async def run() -> "list[Done]":
        try:
            engine = create_store_engine(database)
            if engine.dialect.name == "sqlite":
                _check_directory(engine.url.database or "")
            try:
                # A new database has no tables, and an old one may be behind; where nothing is to be done this costs
                # little.
                await migrations.upgrade(engine)
                async with async_sessionmaker(engine)() as session:
                    return await work(SkillService(session))
            finally:
                await engine.dispose()
        except (SQLAlchemyError, OSError) as error:
            # A file of the directory has a name, a connection has none.
            if getattr(error, "filename", None):
                raise
            reason = getattr(error, "orig", None) or error
            raise UsageError(f"The database cannot be used: {reason}. Check --database, and that it runs.") from None

    done = asyncio.run(run())

    def show() -> None:
        for item in done:
            output.line(prose(f"{item.outcome}: {item.name}{f' ({item.reason})' if item.reason else ''}"))

    is_well = all(item.outcome != "failed" for item in done)
    return Result([vars(item) for item in done], show, 0 if is_well else FAILED)

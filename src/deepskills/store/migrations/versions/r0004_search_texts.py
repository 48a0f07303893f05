"""Adds headings and the beginning of the instructions to search."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

SKILLS = "deepskills_skills"
TAGS = "deepskills_tags"
SEARCH = "deepskills_search"
TERMS = "deepskills_search_terms"
FIELDS = ("name", "tags", "description", "headings", "beginning")
MARKS = "ABBCD"
LONGEST = 64
"""How many characters of a word are indexed."""

BATCH = 500
"""How many skills are filled in at a time."""


def upgrade() -> None:
    """Add the column for the beginning of instructions, and index all skills again."""
    op.add_column(SKILLS, sa.Column("beginning", sa.Text(), nullable=False, server_default=sa.text("''")))
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"DROP TABLE {SEARCH}")
        columns = ", ".join(FIELDS)
        op.execute(f"CREATE VIRTUAL TABLE {SEARCH} USING fts5({columns}, tokenize = 'unicode61 remove_diacritics 0')")
        op.execute(f"CREATE VIRTUAL TABLE {TERMS} USING fts5vocab({SEARCH}, 'row')")
    _fill()


def _fill() -> None:
    from deepskills._catalog.search import MAX_BODY_READ, beginning_of  # noqa: PLC0415 - migrations down need it not

    connection = op.get_bind()
    skills = sa.table(
        SKILLS,
        sa.column("id", sa.Uuid()),
        sa.column("number", sa.BigInteger()),
        sa.column("name", sa.String()),
        sa.column("description", sa.Text()),
        sa.column("content", sa.Text()),
    )
    tags = sa.table(TAGS, sa.column("skill_id", sa.Uuid()), sa.column("tag", sa.String()), sa.column("position"))
    read = sa.func.substr(skills.c.content, 1, MAX_BODY_READ).label("content")
    columns = (skills.c.id, skills.c.number, skills.c.name, skills.c.description, read)
    # In batches by id: the texts of a whole store do not fit into memory, and only the beginning of each is read.
    last = None
    while True:
        query = sa.select(*columns).order_by(skills.c.id).limit(BATCH)
        rows = connection.execute(query if last is None else query.where(skills.c.id > last)).all()
        if not rows:
            return
        last = rows[-1].id
        tagged: dict[object, list[str]] = {}
        found = sa.select(tags.c.skill_id, tags.c.tag).where(tags.c.skill_id.in_([row.id for row in rows]))
        for skill_id, tag in connection.execute(found.order_by(tags.c.skill_id, tags.c.position)):
            tagged.setdefault(skill_id, []).append(tag)
        values = []
        for row in rows:
            kept = beginning_of(row.content)
            words = _indexed(row.name, row.description, " ".join(tagged.get(row.id, [])), kept)
            beginning = kept.decode("utf-8", "replace")
            values.append({"skill": row.id, "number": row.number, "words": words, "beginning": beginning})
        _write(connection, values)


def _indexed(name: str, description: str, tags: str, beginning: bytes) -> str:
    """Return the stems of a skill's words, one line for each field of this revision.

    Fields are taken by name, and one that a later release drops stays empty: that release indexes all skills again.
    How words are cut and stemmed is not frozen here, because today's queries have to find them.
    """
    from deepskills._catalog.search import Document, searchable_fields  # noqa: PLC0415 - migrations down need it not
    from deepskills._catalog.words import split_words, stem  # noqa: PLC0415 - see above

    found = searchable_fields(Document(name, description, tags, beginning))
    texts = (getattr(found, field, "") for field in FIELDS)
    return "\n".join(" ".join(stem(word)[:LONGEST] for word in split_words(text, indexing=True)) for text in texts)


def _write(connection: sa.Connection, values: list[dict[str, object]]) -> None:
    skill = sa.bindparam("skill", type_=sa.Uuid())
    statement = sa.text(f"UPDATE {SKILLS} SET words = {_words(connection)}, beginning = :beginning WHERE id = :skill")  # noqa: S608 - constants
    connection.execute(statement.bindparams(skill), values)
    if connection.dialect.name == "sqlite":
        rows = [
            {"number": row["number"], **dict(zip(FIELDS, str(row["words"]).split("\n"), strict=True))} for row in values
        ]
        names = ", ".join(FIELDS)
        places = ", ".join(f":{name}" for name in FIELDS)
        connection.execute(sa.text(f"INSERT INTO {SEARCH}(rowid, {names}) VALUES (:number, {places})"), rows)  # noqa: S608 - constants


def _words(connection: sa.Connection) -> str:
    if connection.dialect.name != "postgresql":
        return ":words"
    return " || ".join(
        f"setweight(to_tsvector('simple', split_part(CAST(:words AS TEXT), E'\\n', {place})), '{mark}')"
        for place, mark in enumerate(MARKS, 1)
    )


def downgrade() -> None:
    """Go back to searching only names, tags and descriptions, in the words that are there."""
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"DROP TABLE {TERMS}")
        op.execute(f"DROP TABLE {SEARCH}")
        op.execute(f"CREATE VIRTUAL TABLE {SEARCH} USING fts5(words, tokenize = 'unicode61 remove_diacritics 0')")
        op.execute(f"INSERT INTO {SEARCH}(rowid, words) SELECT number, words FROM {SKILLS}")  # noqa: S608 - constants
    op.drop_column(SKILLS, "beginning")

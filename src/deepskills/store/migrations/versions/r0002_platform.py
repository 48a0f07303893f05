"""Adds revisions, versions, the log of changes, groups, deleted skills, search and usage counts."""

import hashlib
import secrets
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SKILLS = "deepskills_skills"
FILES = "deepskills_files"
TAGS = "deepskills_tags"
SHARES = "deepskills_shares"
TEXTS = "deepskills_former_texts"
FORMER_FILES = "deepskills_former_files"
CHANGES = "deepskills_changes"
USAGE = "deepskills_usage"
COUNTER = "deepskills_counter"
SEARCH = "deepskills_search"

LIVE = "deleted_at IS NULL"
WORDS = sa.Text().with_variant(TSVECTOR(), "postgresql")
NAME_INDEXES: dict[str, tuple[list[str], str | None]] = {
    f"uq_{SKILLS}_owner_id_name_key": (["owner_id", "name_key"], None),
    f"uq_{SKILLS}_system_name_key": (["name_key"], "owner_id IS NULL"),
}
NUMBERS = ("revision", "stamp", "number", "name_since", "text_since", "kept_since", "size")
STAMP_BITS = 40
BATCH = 500


def upgrade() -> None:
    """Add columns and tables, and give every skill its place in the order of changes."""
    # Indexes last: they are built once, over rows that are filled in.
    _add_columns()
    _create_tables()
    _fill()
    _create_indexes()


def _add_columns() -> None:
    for name in NUMBERS:
        op.add_column(SKILLS, sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0")))
    for name in ("is_hidden", "is_approved"):
        op.add_column(SKILLS, sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.text("false")))
    op.add_column(SKILLS, sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column(SKILLS, sa.Column("words", WORDS, nullable=False, server_default=sa.text("''")))
    op.add_column(FILES, sa.Column("digest", sa.String(64), nullable=False, server_default=sa.text("''")))
    op.add_column(FILES, sa.Column("since", sa.BigInteger(), nullable=False, server_default=sa.text("0")))


def _of_a_skill(table: str, *, primary: list[str]) -> list[Any]:
    return [
        sa.PrimaryKeyConstraint(*primary, name=op.f(f"pk_{table}")),
        sa.ForeignKeyConstraint(
            ["skill_id"], [f"{SKILLS}.id"], name=op.f(f"fk_{table}_skill_id_{SKILLS}"), ondelete="CASCADE"
        ),
    ]


def _create_tables() -> None:
    # Spelled out, not taken from `db/models.py`: the models change with each release, and this revision must not.
    op.create_table(
        SHARES,
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("group_id", sa.String(255), nullable=False),
        sa.Column("can_write", sa.Boolean(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        *_of_a_skill(SHARES, primary=["skill_id", "group_id"]),
    )
    op.create_table(
        TEXTS,
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("frontmatter", sa.Text(), nullable=True),
        sa.Column("encoding", sa.String(16), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        *_of_a_skill(TEXTS, primary=["skill_id", "since"]),
    )
    op.create_table(
        FORMER_FILES,
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("path", sa.String(512), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("is_text", sa.Boolean(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        *_of_a_skill(FORMER_FILES, primary=["id", "since"]),
    )
    op.create_table(
        CHANGES,
        sa.Column("revision", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("owner_id", sa.String(255), nullable=True),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("user_id", sa.String(255), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("revision", name=op.f(f"pk_{CHANGES}")),
    )
    op.create_table(
        USAGE,
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("type", sa.String(32), nullable=False),
        sa.Column("trigger", sa.String(32), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        *_of_a_skill(USAGE, primary=["skill_id", "day", "type", "trigger"]),
    )
    op.create_table(
        COUNTER,
        sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.Column("stamp", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{COUNTER}")),
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"CREATE VIRTUAL TABLE {SEARCH} USING fts5(words, tokenize = 'unicode61 remove_diacritics 0')")


def _fill() -> None:
    """Number the skills: by their last change, and for the right to a name by their age."""
    from deepskills.store.db.search import indexed_words  # noqa: PLC0415 - migrations that go down need it not

    connection = op.get_bind()
    skills = sa.table(
        SKILLS,
        *(sa.column(name, sa.BigInteger()) for name in NUMBERS),
        sa.column("id", sa.Uuid()),
        sa.column("owner_id", sa.String()),
        sa.column("name", sa.String()),
        sa.column("description", sa.Text()),
        sa.column("content", sa.Text()),
        sa.column("frontmatter", sa.Text()),
        sa.column("words", sa.Text()),
        sa.column("created_at", sa.DateTime(timezone=True)),
        sa.column("updated_at", sa.DateTime(timezone=True)),
    )
    files = sa.table(
        FILES,
        sa.column("id", sa.Uuid()),
        sa.column("skill_id", sa.Uuid()),
        sa.column("size", sa.Integer()),
        sa.column("digest", sa.String()),
        sa.column("since", sa.BigInteger()),
        sa.column("data", sa.LargeBinary()),
    )
    tags = sa.table(TAGS, sa.column("skill_id", sa.Uuid()), sa.column("tag", sa.String()))
    changes = sa.table(
        CHANGES,
        sa.column("revision", sa.BigInteger()),
        sa.column("skill_id", sa.Uuid()),
        sa.column("owner_id", sa.String()),
        sa.column("name", sa.String()),
        sa.column("action", sa.String()),
        sa.column("at", sa.DateTime(timezone=True)),
    )
    # Two orders: revisions follow the last change, the right to a name follows age.
    age = {row.id: n for n, row in enumerate(connection.execute(_ordered(skills, skills.c.created_at)), 1)}
    changed = [row.id for row in connection.execute(_ordered(skills, skills.c.updated_at))]
    # One skill, and below one file, at a time: the contents of a whole store do not fit into memory.
    for number, skill_id in enumerate(changed, 1):
        row = connection.execute(sa.select(skills).where(skills.c.id == skill_id)).one()
        tag_texts = list(connection.scalars(sa.select(tags.c.tag).where(tags.c.skill_id == skill_id)))
        size = connection.scalar(
            sa.select(sa.func.coalesce(sa.func.sum(files.c.size), 0)).where(files.c.skill_id == skill_id)
        )
        words = indexed_words(row.name, row.description, tag_texts)
        text_size = len(((row.frontmatter or "") + row.content).encode("utf-8", "replace"))
        connection.execute(
            skills.update()
            .where(skills.c.id == skill_id)
            .values(
                revision=number,
                stamp=secrets.randbits(STAMP_BITS),
                number=number,
                name_since=age[skill_id],
                text_since=number,
                size=text_size + int(size or 0),
                words=sa.func.to_tsvector("simple", words) if connection.dialect.name == "postgresql" else words,
            )
        )
        connection.execute(files.update().where(files.c.skill_id == skill_id).values(since=number))
        connection.execute(
            changes.insert().values(
                revision=number, skill_id=skill_id, owner_id=row.owner_id, name=row.name, action="migrated",
                at=row.updated_at,
            )
        )  # fmt: skip
        if connection.dialect.name == "sqlite":
            values = {"number": number, "words": words}
            connection.execute(sa.text(f"INSERT INTO {SEARCH}(rowid, words) VALUES (:number, :words)"), values)  # noqa: S608 - a constant
    for file_id in list(connection.scalars(sa.select(files.c.id))):
        data = connection.scalar(sa.select(files.c.data).where(files.c.id == file_id)) or b""
        digest = hashlib.sha256(data).hexdigest()
        connection.execute(files.update().where(files.c.id == file_id).values(digest=digest))
    counter = sa.table(COUNTER, sa.column("id"), sa.column("value"), sa.column("stamp"))
    connection.execute(counter.insert().values(id=1, value=len(changed), stamp=secrets.randbits(STAMP_BITS)))


def _ordered(skills: Any, moment: Any) -> Any:  # noqa: ANN401 - a table and a column
    return sa.select(skills.c.id).order_by(moment, skills.c.id)


def _create_indexes() -> None:
    for name, (columns, condition) in NAME_INDEXES.items():
        op.drop_index(name, SKILLS)
        _create_name_index(name, columns, " AND ".join(filter(None, [condition, LIVE])))
    op.drop_index(op.f(f"ix_{SKILLS}_is_public"), SKILLS)
    where = sa.text(f"is_public AND {LIVE}")
    op.create_index(
        f"ix_{SKILLS}_public", SKILLS, ["name_key", "name_since", "id"], sqlite_where=where, postgresql_where=where
    )
    op.create_index(op.f(f"ix_{SKILLS}_number"), SKILLS, ["number"])
    op.create_index(op.f(f"ix_{SKILLS}_owner_id_deleted_at"), SKILLS, ["owner_id", "deleted_at"])
    where = sa.text("deleted_at IS NOT NULL")
    op.create_index(op.f(f"ix_{SKILLS}_deleted_at"), SKILLS, ["deleted_at"], sqlite_where=where, postgresql_where=where)
    op.drop_index(op.f(f"ix_{TAGS}_tag_key"), TAGS)
    op.create_index(op.f(f"ix_{TAGS}_tag_key_skill_id"), TAGS, ["tag_key", "skill_id"])
    op.create_index(op.f(f"ix_{SHARES}_group_id_skill_id"), SHARES, ["group_id", "skill_id"])
    op.create_index(op.f(f"ix_{FORMER_FILES}_skill_id_until"), FORMER_FILES, ["skill_id", "until"])
    op.create_index(op.f(f"ix_{CHANGES}_skill_id_revision"), CHANGES, ["skill_id", "revision"])
    op.create_index(op.f(f"ix_{CHANGES}_owner_id_revision"), CHANGES, ["owner_id", "revision"])
    if op.get_bind().dialect.name == "postgresql":
        op.create_index(f"ix_{SKILLS}_words", SKILLS, ["words"], postgresql_using="gin")


def _create_name_index(name: str, columns: list[str], condition: str | None) -> None:
    where = sa.text(condition) if condition else None
    op.create_index(name, SKILLS, columns, unique=True, sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    """Drop what was added; deleted skills, former texts and files, groups and the log of changes are lost."""
    # The first release does not know deleted skills and would show them again.
    connection = op.get_bind()
    deleted = f"SELECT id FROM {SKILLS} WHERE deleted_at IS NOT NULL"  # noqa: S608 - constants
    for table in (FILES, TAGS):
        op.execute(f"DELETE FROM {table} WHERE skill_id IN ({deleted})")  # noqa: S608 - constants
    op.execute(f"DELETE FROM {SKILLS} WHERE deleted_at IS NOT NULL")  # noqa: S608 - constants
    if connection.dialect.name == "postgresql":
        op.drop_index(f"ix_{SKILLS}_words", SKILLS)
    else:
        op.execute(f"DROP TABLE {SEARCH}")
    for table in (COUNTER, USAGE, CHANGES, FORMER_FILES, TEXTS, SHARES):
        op.drop_table(table)
    op.drop_index(op.f(f"ix_{TAGS}_tag_key_skill_id"), TAGS)
    op.create_index(op.f(f"ix_{TAGS}_tag_key"), TAGS, ["tag_key"])
    for name in (f"ix_{SKILLS}_public", f"ix_{SKILLS}_number", f"ix_{SKILLS}_owner_id_deleted_at"):
        op.drop_index(name, SKILLS)
    op.drop_index(f"ix_{SKILLS}_deleted_at", SKILLS)
    for name, (columns, condition) in NAME_INDEXES.items():
        op.drop_index(name, SKILLS)
        _create_name_index(name, columns, condition)
    op.create_index(op.f(f"ix_{SKILLS}_is_public"), SKILLS, ["is_public"])
    for name in ("digest", "since"):
        op.drop_column(FILES, name)
    for name in (*NUMBERS, "is_hidden", "is_approved", "deleted_at", "words"):
        op.drop_column(SKILLS, name)

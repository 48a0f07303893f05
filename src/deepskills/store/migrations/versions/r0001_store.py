"""Creates the tables of the store."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

WORDS = sa.Text().with_variant(TSVECTOR(), "postgresql")
SEARCH = "deepskills_search"
TABLES = (
    "usage",
    "tags",
    "shares",
    "requires",
    "former_texts",
    "former_files",
    "files",
    "skills",
    "deliveries",
    "counter",
    "changes",
)


def upgrade() -> None:
    """Create the tables and the index for search."""
    # Spelled out, not taken from `db/models.py`: the models change with each release, and this revision must not.
    op.create_table(
        "deepskills_changes",
        sa.Column("revision", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("owner_id", sa.String(length=255), nullable=True),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("user_id", sa.String(length=255), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("audience", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("revision", name=op.f("pk_deepskills_changes")),
    )
    op.create_index(op.f("ix_deepskills_changes_owner_id_revision"), "deepskills_changes", ["owner_id", "revision"])
    op.create_index(op.f("ix_deepskills_changes_skill_id_revision"), "deepskills_changes", ["skill_id", "revision"])
    op.create_table(
        "deepskills_counter",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.Column("stamp", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deepskills_counter")),
    )
    op.create_table(
        "deepskills_deliveries",
        sa.Column("user_key", sa.String(length=255), nullable=False),
        sa.Column("directory_key", sa.String(length=64), nullable=False),
        sa.Column("directory", sa.Text(), nullable=False),
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("digests", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("user_key", "directory_key", name=op.f("pk_deepskills_deliveries")),
    )
    op.create_table(
        "deepskills_skills",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("owner_id", sa.String(length=255), nullable=True),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("name_key", sa.String(length=256), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("frontmatter", sa.Text(), nullable=True),
        sa.Column("encoding", sa.String(length=16), nullable=False),
        sa.Column("is_public", sa.Boolean(), nullable=False),
        sa.Column("is_hidden", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("is_approved", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revision", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("stamp", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("number", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("name_since", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("text_since", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("kept_since", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("size", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("words", WORDS, server_default=sa.text("''"), nullable=False),
        sa.Column("beginning", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deepskills_skills")),
    )
    op.create_index(
        op.f("ix_deepskills_skills_deleted_at"),
        "deepskills_skills",
        ["deleted_at"],
        sqlite_where=sa.text("deleted_at IS NOT NULL"),
        postgresql_where=sa.text("deleted_at IS NOT NULL"),
    )
    op.create_index(op.f("ix_deepskills_skills_name_key"), "deepskills_skills", ["name_key"])
    op.create_index(op.f("ix_deepskills_skills_number"), "deepskills_skills", ["number"])
    op.create_index(op.f("ix_deepskills_skills_owner_id_deleted_at"), "deepskills_skills", ["owner_id", "deleted_at"])
    op.create_index(
        "ix_deepskills_skills_public",
        "deepskills_skills",
        ["name_key", "name_since", "id"],
        sqlite_where=sa.text("is_public AND deleted_at IS NULL"),
        postgresql_where=sa.text("is_public AND deleted_at IS NULL"),
    )
    op.create_index(
        "uq_deepskills_skills_owner_id_name_key",
        "deepskills_skills",
        ["owner_id", "name_key"],
        unique=True,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_index(
        "uq_deepskills_skills_system_name_key",
        "deepskills_skills",
        ["name_key"],
        unique=True,
        sqlite_where=sa.text("owner_id IS NULL AND deleted_at IS NULL"),
        postgresql_where=sa.text("owner_id IS NULL AND deleted_at IS NULL"),
    )
    op.create_table(
        "deepskills_files",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("path", sa.String(length=512), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("is_text", sa.Boolean(), nullable=False),
        sa.Column("digest", sa.String(length=64), server_default=sa.text("''"), nullable=False),
        sa.Column("since", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["skill_id"],
            ["deepskills_skills.id"],
            name=op.f("fk_deepskills_files_skill_id_deepskills_skills"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deepskills_files")),
        sa.UniqueConstraint("skill_id", "path", name=op.f("uq_deepskills_files_skill_id_path")),
    )
    op.create_table(
        "deepskills_former_files",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("since", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("path", sa.String(length=512), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("is_text", sa.Boolean(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["skill_id"],
            ["deepskills_skills.id"],
            name=op.f("fk_deepskills_former_files_skill_id_deepskills_skills"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", "since", name=op.f("pk_deepskills_former_files")),
    )
    op.create_index(op.f("ix_deepskills_former_files_skill_id_until"), "deepskills_former_files", ["skill_id", "until"])
    op.create_index(op.f("ix_deepskills_former_files_until"), "deepskills_former_files", ["until"])
    op.create_table(
        "deepskills_former_texts",
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("since", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("frontmatter", sa.Text(), nullable=True),
        sa.Column("encoding", sa.String(length=16), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["skill_id"],
            ["deepskills_skills.id"],
            name=op.f("fk_deepskills_former_texts_skill_id_deepskills_skills"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("skill_id", "since", name=op.f("pk_deepskills_former_texts")),
    )
    op.create_index(op.f("ix_deepskills_former_texts_until"), "deepskills_former_texts", ["until"])
    op.create_table(
        "deepskills_requires",
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("name_key", sa.String(length=512), nullable=False),
        sa.ForeignKeyConstraint(
            ["skill_id"],
            ["deepskills_skills.id"],
            name=op.f("fk_deepskills_requires_skill_id_deepskills_skills"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("skill_id", "position", name=op.f("pk_deepskills_requires")),
    )
    op.create_index(op.f("ix_deepskills_requires_name_key_skill_id"), "deepskills_requires", ["name_key", "skill_id"])
    op.create_table(
        "deepskills_shares",
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("group_id", sa.String(length=255), nullable=False),
        sa.Column("can_write", sa.Boolean(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["skill_id"],
            ["deepskills_skills.id"],
            name=op.f("fk_deepskills_shares_skill_id_deepskills_skills"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("skill_id", "group_id", name=op.f("pk_deepskills_shares")),
    )
    op.create_index(op.f("ix_deepskills_shares_group_id_skill_id"), "deepskills_shares", ["group_id", "skill_id"])
    op.create_table(
        "deepskills_tags",
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tag", sa.String(length=64), nullable=False),
        sa.Column("tag_key", sa.String(length=256), nullable=False),
        sa.ForeignKeyConstraint(
            ["skill_id"],
            ["deepskills_skills.id"],
            name=op.f("fk_deepskills_tags_skill_id_deepskills_skills"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("skill_id", "position", name=op.f("pk_deepskills_tags")),
    )
    op.create_index(op.f("ix_deepskills_tags_tag_key_skill_id"), "deepskills_tags", ["tag_key", "skill_id"])
    op.create_table(
        "deepskills_usage",
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("trigger", sa.String(length=32), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["skill_id"],
            ["deepskills_skills.id"],
            name=op.f("fk_deepskills_usage_skill_id_deepskills_skills"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("skill_id", "day", "type", "trigger", name=op.f("pk_deepskills_usage")),
    )
    op.execute("INSERT INTO deepskills_counter (id, value, stamp) VALUES (1, 0, 0)")
    if op.get_bind().dialect.name == "sqlite":
        fields = "name, tags, description, headings, beginning"
        op.execute(f"CREATE VIRTUAL TABLE {SEARCH} USING fts5({fields}, tokenize = 'unicode61 remove_diacritics 0')")
    else:
        # Searches read the list of new entries from end to end, so it is kept short (in kilobytes).
        op.create_index(
            "ix_deepskills_skills_words",
            "deepskills_skills",
            ["words"],
            postgresql_using="gin",
            postgresql_with={"gin_pending_list_limit": 256},
        )


def downgrade() -> None:
    """Drop the tables."""
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"DROP TABLE {SEARCH}")
    for table in TABLES:
        op.drop_table(f"deepskills_{table}")

"""Creates the tables of skills, their files and their tags."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SKILLS = "deepskills_skills"
FILES = "deepskills_files"
TAGS = "deepskills_tags"


def upgrade() -> None:
    """Create the tables; what an interrupted upgrade of an earlier release left behind is taken as it is."""
    # Spelled out, not taken from `db/models.py`: the models change with each release, and this revision must not.
    op.create_table(
        SKILLS,
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("owner_id", sa.String(255), nullable=True),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("name_key", sa.String(256), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("frontmatter", sa.Text(), nullable=True),
        sa.Column("encoding", sa.String(16), nullable=False),
        sa.Column("is_public", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{SKILLS}")),
        if_not_exists=True,
    )
    op.create_index(f"uq_{SKILLS}_owner_id_name_key", SKILLS, ["owner_id", "name_key"], unique=True, if_not_exists=True)
    op.create_index(
        f"uq_{SKILLS}_system_name_key",
        SKILLS,
        ["name_key"],
        unique=True,
        sqlite_where=sa.text("owner_id IS NULL"),
        postgresql_where=sa.text("owner_id IS NULL"),
        if_not_exists=True,
    )
    op.create_index(op.f(f"ix_{SKILLS}_name_key"), SKILLS, ["name_key"], if_not_exists=True)
    op.create_index(op.f(f"ix_{SKILLS}_is_public"), SKILLS, ["is_public"], if_not_exists=True)
    op.create_table(
        FILES,
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("path", sa.String(512), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("is_text", sa.Boolean(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{FILES}")),
        sa.ForeignKeyConstraint(
            ["skill_id"], [f"{SKILLS}.id"], name=op.f(f"fk_{FILES}_skill_id_{SKILLS}"), ondelete="CASCADE"
        ),
        sa.UniqueConstraint("skill_id", "path", name=op.f(f"uq_{FILES}_skill_id_path")),
        if_not_exists=True,
    )
    op.create_table(
        TAGS,
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("tag", sa.String(64), nullable=False),
        sa.Column("tag_key", sa.String(256), nullable=False),
        sa.PrimaryKeyConstraint("skill_id", "position", name=op.f(f"pk_{TAGS}")),
        sa.ForeignKeyConstraint(
            ["skill_id"], [f"{SKILLS}.id"], name=op.f(f"fk_{TAGS}_skill_id_{SKILLS}"), ondelete="CASCADE"
        ),
        if_not_exists=True,
    )
    op.create_index(op.f(f"ix_{TAGS}_tag_key"), TAGS, ["tag_key"], if_not_exists=True)


def downgrade() -> None:
    """Drop the tables."""
    op.drop_table(TAGS)
    op.drop_table(FILES)
    op.drop_table(SKILLS)

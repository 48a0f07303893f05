"""Adds required skills, deliveries to sandboxes, and triggers that refuse writes of version 0.1.0."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SKILLS = "deepskills_skills"
REQUIRES = "deepskills_requires"
DELIVERIES = "deepskills_deliveries"


def upgrade() -> None:
    """Add the tables, fill in what stored skills require, and set the triggers."""
    op.create_table(
        REQUIRES,
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("name_key", sa.String(512), nullable=False),
        sa.PrimaryKeyConstraint("skill_id", "position", name=op.f(f"pk_{REQUIRES}")),
        sa.ForeignKeyConstraint(
            ["skill_id"], [f"{SKILLS}.id"], name=op.f(f"fk_{REQUIRES}_skill_id_{SKILLS}"), ondelete="CASCADE"
        ),
    )
    op.create_index(op.f(f"ix_{REQUIRES}_name_key_skill_id"), REQUIRES, ["name_key", "skill_id"])
    op.create_table(
        DELIVERIES,
        sa.Column("user_key", sa.String(255), nullable=False),
        sa.Column("directory_key", sa.String(64), nullable=False),
        sa.Column("directory", sa.Text(), nullable=False),
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("digests", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("user_key", "directory_key", name=op.f(f"pk_{DELIVERIES}")),
    )
    op.create_index(op.f("ix_deepskills_former_texts_until"), "deepskills_former_texts", ["until"])
    op.create_index(op.f("ix_deepskills_former_files_until"), "deepskills_former_files", ["until"])
    _fill()
    # Last: from here on, the database refuses writes by the first release.
    _set_triggers()


def _fill() -> None:
    from deepskills._catalog.lookup import requires_of  # noqa: PLC0415 - migrations down need it not
    from deepskills._skillmd.names import stored_key  # noqa: PLC0415 - as above
    from deepskills._skillmd.read import read_skill  # noqa: PLC0415 - see above

    connection = op.get_bind()
    skills = sa.table(SKILLS, sa.column("id", sa.Uuid()), sa.column("frontmatter", sa.Text()))
    rows = sa.table(
        REQUIRES,
        sa.column("skill_id", sa.Uuid()),
        sa.column("position", sa.Integer()),
        sa.column("name", sa.String()),
        sa.column("name_key", sa.String()),
    )
    for row in connection.execute(sa.select(skills).where(skills.c.frontmatter.contains("requires"))).all():
        for position, name in enumerate(requires_of(read_skill(row.frontmatter, path="SKILL.md").frontmatter)):
            values = {"skill_id": row.id, "position": position, "name": name, "name_key": stored_key(name)}
            connection.execute(rows.insert().values(values))


def _set_triggers() -> None:
    # Not a copy: the models set the same triggers, and these refuse what one past release writes, which cannot change.
    # Should they ever name a column that a later revision adds, freeze the present statements here first.
    from deepskills.store.db.models import guards  # noqa: PLC0415 - see above

    for statement in guards(op.get_bind().dialect.name):
        # SQLAlchemy would read a colon as a parameter.
        op.execute(sa.text(statement.replace(":", r"\:")))


def downgrade() -> None:
    """Remove the triggers and tables."""
    from deepskills.store.db.models import without_guards  # noqa: PLC0415 - see above

    for statement in without_guards(op.get_bind().dialect.name):
        op.execute(statement)
    op.drop_index(op.f("ix_deepskills_former_texts_until"), "deepskills_former_texts")
    op.drop_index(op.f("ix_deepskills_former_files_until"), "deepskills_former_files")
    op.drop_table(DELIVERIES)
    op.drop_table(REQUIRES)

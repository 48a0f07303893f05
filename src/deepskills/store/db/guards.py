"""Triggers that keep the first release of deepskills from writing to tables that it does not know.

While a fleet is upgraded, processes of version 0.1.0 may still run on a database that has already been migrated. They
read it correctly, but what they write has no revision, no version and no entry in the log: names could repeat, agents
would not see the change, and a deletion could not be undone. So the database refuses what only they do: rows without a
revision or without a file's digest, a change time that moves while the revision stays, and skills or files that vanish
without being kept as a version. Operators can still repair rows by hand: a statement that leaves `updated_at` alone is
let through, and so is one that empties the whole table on PostgreSQL.
"""

MESSAGE = "deepskills 0.1.0 cannot write to these tables; upgrade this process"
"""The error that a process of version 0.1.0 gets."""

_UNTRACKED = {
    ("skills", "INSERT"): "NEW.revision <= 0",
    ("skills", "UPDATE"): "NEW.revision = OLD.revision AND NEW.updated_at <> OLD.updated_at",
    ("skills", "DELETE"): "OLD.deleted_at IS NULL",
    ("files", "INSERT"): "NEW.digest = ''",
    ("files", "DELETE"): (
        "EXISTS (SELECT 1 FROM deepskills_skills s WHERE s.id = OLD.skill_id AND s.deleted_at IS NULL) "
        "AND NOT EXISTS (SELECT 1 FROM deepskills_former_files f WHERE f.id = OLD.id AND f.since = OLD.since)"
    ),
}
"""By table and statement, the sign that a process without versions is writing a row."""


def guards(dialect: str) -> list[str]:
    """Return the statements that create the triggers."""
    found = []
    for (table, action), condition in _UNTRACKED.items():
        name = f"deepskills_guard_{table}_{action.lower()}"
        when = condition
        if dialect == "sqlite":
            found.append(
                f"CREATE TRIGGER IF NOT EXISTS {name} BEFORE {action} ON deepskills_{table} WHEN {when} "
                f"BEGIN SELECT RAISE(ABORT, '{MESSAGE}'); END"
            )
            continue
        # PostgreSQL allows no subquery in WHEN, so the function itself decides.
        row = "OLD" if action == "DELETE" else "NEW"
        if (table, action) == ("skills", "DELETE"):
            # A statement that empties the whole table comes from an operator; an old process always names rows.
            when += " AND current_query() ILIKE '%where%'"
        found += [
            f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF {when} THEN RAISE EXCEPTION '{MESSAGE}' USING ERRCODE = 'feature_not_supported'; END IF; "
            f"RETURN {row}; END $$",
            f"CREATE OR REPLACE TRIGGER {name} BEFORE {action} ON deepskills_{table} "
            f"FOR EACH ROW EXECUTE FUNCTION {name}()",
        ]
    return found


def without_guards(dialect: str) -> list[str]:
    """Return the statements that remove the triggers."""
    names = [(f"deepskills_guard_{table}_{action.lower()}", f"deepskills_{table}") for table, action in _UNTRACKED]
    if dialect == "sqlite":
        return [f"DROP TRIGGER IF EXISTS {name}" for name, _ in names]
    return [
        statement
        for name, table in names
        for statement in (f"DROP TRIGGER IF EXISTS {name} ON {table}", f"DROP FUNCTION IF EXISTS {name}()")
    ]

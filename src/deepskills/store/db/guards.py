"""Triggers that keep the first release of deepskills from writing to tables that it does not know.

While a fleet is upgraded, processes of version 0.1.0 may still run on a database that was migrated already. They read
it correctly, but what they write has no revision, no version and no entry in the log: names could repeat, agents would
not see the change, and a deletion could not be undone. The database therefore refuses what only they do: rows without a
revision, text that changes while the revision stays, and skills or files that vanish without being kept as a version.
"""

MESSAGE = "deepskills 0.1.0 cannot write to these tables; upgrade this process"
"""What a process of version 0.1.0 gets as an error."""

_TEXT = ("name", "description", "content", "frontmatter", "is_public")

_UNTRACKED = {
    ("skills", "INSERT"): "NEW.revision <= 0",
    ("skills", "UPDATE"): "NEW.revision = OLD.revision AND ({changed})",
    ("skills", "DELETE"): "OLD.deleted_at IS NULL",
    ("files", "INSERT"): "NEW.since <= 0",
    ("files", "UPDATE"): "NEW.since = OLD.since AND NEW.digest = OLD.digest AND NEW.size <> OLD.size",
    ("files", "DELETE"): (
        "EXISTS (SELECT 1 FROM deepskills_skills s WHERE s.id = OLD.skill_id AND s.deleted_at IS NULL) "
        "AND NOT EXISTS (SELECT 1 FROM deepskills_former_files f WHERE f.id = OLD.id AND f.since = OLD.since)"
    ),
}
"""By table and statement, when a row is written by a process that keeps no versions."""


def guards(dialect: str) -> list[str]:
    """Return the statements that create the triggers."""
    differs = "IS NOT" if dialect == "sqlite" else "IS DISTINCT FROM"
    changed = " OR ".join(f"NEW.{name} {differs} OLD.{name}" for name in _TEXT)
    found = []
    for (table, action), condition in _UNTRACKED.items():
        name = f"deepskills_guard_{table}_{action.lower()}"
        when = condition.format(changed=changed)
        if dialect == "sqlite":
            found.append(
                f"CREATE TRIGGER IF NOT EXISTS {name} BEFORE {action} ON deepskills_{table} WHEN {when} "
                f"BEGIN SELECT RAISE(ABORT, '{MESSAGE}'); END"
            )
            continue
        # PostgreSQL allows no subquery in WHEN, so the function itself decides.
        row = "OLD" if action == "DELETE" else "NEW"
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

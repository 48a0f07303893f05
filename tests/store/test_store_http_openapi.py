"""Requests made up from the OpenAPI schema, valid and not, never make the server fail."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from schemathesis.checks import (
    CheckFunction,
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from store_support import Sessions, draft_with_files, seed
from test_store_http_routes import make_app, serving

from support import scaled

EXAMPLES = scaled(4, 50)
"""How many requests are made up for each operation, valid ones and invalid ones each."""

SEED = 20_240_601

CONFORMANCE: list[CheckFunction] = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]


def codes_of(operation: Any, address: str, skill_id: str, mode: schemathesis.GenerationMode) -> set[int]:
    """Make requests up for one operation, check the answers, and return their status codes."""
    # Where a body goes to a skill, and for versions, one that is there; deletions get any id.
    is_about_one = operation.body or operation.path.endswith("/versions")
    there = {"skill_id": skill_id} if is_about_one and "skill_id" in operation.path else {}
    if "{path}" in operation.path:
        there["path"] = "scripts/a.py"
    checks = CONFORMANCE if mode is schemathesis.GenerationMode.POSITIVE else [not_a_server_error]
    codes: set[int] = set()

    @seeded(SEED)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode, path_parameters=there or None))
    def check(case: Any) -> None:
        answer = case.call_and_validate(base_url=address, headers={"x-user": "alice"}, checks=checks)
        codes.add(answer.status_code)

    check()
    return codes


@pytest.mark.parametrize(
    ("mode", "kind"),
    # Valid requests reach the database; PostgreSQL takes fewer texts and numbers than SQLite.
    [(schemathesis.GenerationMode.POSITIVE, "postgres"), (schemathesis.GenerationMode.NEGATIVE, "sqlite")],
)
def test_no_server_error(any_sessions: Sessions, mode: schemathesis.GenerationMode) -> None:
    """No request that the schema inspires is a server error, and answers to valid ones keep to the schema."""
    (skill,) = seed(any_sessions, "alice", draft_with_files("report", {"scripts/a.py": "x"}))
    app = make_app(any_sessions)
    found: Any = schemathesis.openapi.from_dict(app.openapi()).get_all_operations()
    operations = [result.ok() for result in found]
    with serving(app) as address:
        base = address.removesuffix("/api/v1")
        codes = {operation.label: codes_of(operation, base, str(skill.id), mode) for operation in operations}
    assert len(codes) == 23
    if mode is schemathesis.GenerationMode.POSITIVE:
        assert codes["GET /api/v1/skills"] <= {200, 403, 422}
        assert 200 in codes["GET /api/v1/skills/{skill_id}/versions"]
        assert 200 in codes["PUT /api/v1/skills/{skill_id}"]

"""How a store that starts without code is set up: by environment variables, or by a TOML file.

`DEEPSKILLS_CONFIG` names a file such as

    operators = ["root"]
    approval = true          # or "by-others"
    retention = 30
    groups_before_system = false

    [groups]
    team = ["alice", "bob"]

    [limits]
    owner_bytes = 100_000_000

Variables win over the file: `DEEPSKILLS_OPERATORS` (ids with commas), `DEEPSKILLS_APPROVAL`, `DEEPSKILLS_RETENTION`,
`DEEPSKILLS_GROUPS_BEFORE_SYSTEM`, `DEEPSKILLS_GROUPS` (`team=alice,bob;other=carol`) and one for each limit, such as
`DEEPSKILLS_LIMIT_OWNER_BYTES`.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deepskills._skillmd.problems import quoted
from deepskills.store.errors import SkillPolicyError
from deepskills.store.rules import StoreLimits

CONFIG_VARIABLE = "DEEPSKILLS_CONFIG"
"""The environment variable with the path of the TOML file."""

_PREFIX = "DEEPSKILLS_"
_LIMIT = "DEEPSKILLS_LIMIT_"


class _Settings(BaseModel):
    """What can be set; which of it was set is asked of pydantic, so the defaults say nothing."""

    model_config = ConfigDict(extra="forbid")

    operators: frozenset[str] = frozenset()
    approval: bool | Literal["by-others"] = False
    retention: float = 0
    groups_before_system: bool = False
    groups: dict[str, frozenset[str]] = Field(default_factory=dict)
    limits: StoreLimits = Field(default_factory=StoreLimits)


def policy_options(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of `Policy` that the environment, or the file that it names, says something about.

    Raises:
        SkillPolicyError: If a value cannot be used.
    """
    given, variables = _of_file(environment.get(CONFIG_VARIABLE)), _of_variables(environment)
    if isinstance(limits := given.get("limits"), dict):
        # A variable is about one limit, and the file's others stay.
        variables["limits"] = limits | variables.get("limits", {})
    try:
        settings = _Settings.model_validate(given | variables)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        where, value = ".".join(map(str, wrong["loc"])), quoted(str(wrong["input"]))
        raise SkillPolicyError(
            f"The setting `{where}` of the store cannot be used: {wrong['msg']}, got {value}."
        ) from None
    named = settings.model_fields_set
    plain = named & {"approval", "retention", "groups_before_system", "limits"}
    found: dict[str, Any] = {name: getattr(settings, name) for name in plain}
    if "operators" in named:
        found["is_operator"] = settings.operators.__contains__
    if "groups" in named:
        found["groups_of"] = lambda user: [group for group, users in settings.groups.items() if user in users]
    return found


def _of_file(path: str | None) -> dict[str, Any]:
    if not path:
        return {}
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SkillPolicyError(f"The settings in {path} cannot be read: {error}.") from None


def _of_variables(environment: Mapping[str, str]) -> dict[str, Any]:
    given = {name: text.strip() for name, text in environment.items() if text.strip()}
    found: dict[str, Any] = {
        name: given[key]
        for name in ("approval", "retention", "groups_before_system")
        if (key := _PREFIX + name.upper()) in given
    }
    if "DEEPSKILLS_OPERATORS" in given:
        found["operators"] = _list(given["DEEPSKILLS_OPERATORS"])
    if "DEEPSKILLS_GROUPS" in given:
        found["groups"] = _groups(given["DEEPSKILLS_GROUPS"])
    # Whatever begins like one: a limit with a slip in its name would be none.
    limits: dict[str, Any] = {key.removeprefix(_LIMIT).lower(): given[key] for key in given if key.startswith(_LIMIT)}
    if "extensions" in limits:
        limits["extensions"] = _list(limits["extensions"])
    return found | ({"limits": limits} if limits else {})


def _groups(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in text.split(";"):
        group, sign, users = part.partition("=")
        if part.strip() and (not sign or not group.strip() or group.strip() in found):
            raise SkillPolicyError(
                f"The setting DEEPSKILLS_GROUPS names each group once, with its members, as in `team=alice,bob`: {part}"
            )
        if part.strip():
            found[group.strip()] = _list(users)
    return found


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]

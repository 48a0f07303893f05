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
from typing import Any

from deepskills.store.errors import SkillPolicyError
from deepskills.store.rules import StoreLimits

CONFIG_VARIABLE = "DEEPSKILLS_CONFIG"
"""The environment variable with the path of the TOML file."""

_PREFIX = "DEEPSKILLS_"
_KEYS = frozenset({"operators", "approval", "retention", "groups_before_system", "groups", "limits"})
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def policy_options(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of `Policy` that the environment, or the file that it names, says something about.

    Raises:
        SkillPolicyError: If a value cannot be used.
    """
    given = _of_file(environment.get(CONFIG_VARIABLE)) | _of_variables(environment)
    try:
        return _options(given)
    except (TypeError, ValueError, AttributeError) as error:
        raise SkillPolicyError(f"The settings of the store cannot be used: {error}.") from None


def _options(given: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(given.keys() - _KEYS)
    if unknown:
        raise ValueError(f"there is no setting {', '.join(unknown)}")
    found: dict[str, Any] = {
        key: given[key] for key in ("approval", "retention", "groups_before_system") if key in given
    }
    if found.get("approval", False) not in (True, False, "by-others"):
        raise ValueError(f"`approval` is true, false or by-others, not {found['approval']!r}")
    if "operators" in given:
        operators = frozenset(_texts(given["operators"]))
        found["is_operator"] = operators.__contains__
    if "groups" in given:
        members = {group: frozenset(_texts(users)) for group, users in given["groups"].items()}
        found["groups_of"] = lambda user: [group for group, users in members.items() if user in users]
    if "limits" in given:
        limits = dict(given["limits"])
        if "extensions" in limits:
            limits["extensions"] = frozenset(_texts(limits["extensions"]))
        found["limits"] = StoreLimits(**limits)
    return found


def _texts(given: object) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise TypeError(f"a list of texts is expected, not {given!r}")
    return given


def _of_file(path: str | None) -> dict[str, Any]:
    if not path:
        return {}
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SkillPolicyError(f"The settings in {path} cannot be read: {error}.") from None


def _of_variables(environment: Mapping[str, str]) -> dict[str, Any]:
    def value(name: str) -> str | None:
        return environment.get(f"{_PREFIX}{name.upper()}", "").strip() or None

    found: dict[str, Any] = {}
    if (operators := value("operators")) is not None:
        found["operators"] = _list(operators)
    if (groups := value("groups")) is not None:
        pairs = (part.partition("=") for part in groups.split(";") if part.strip())
        found["groups"] = {group.strip(): _list(users) for group, _, users in pairs}
    for name in ("approval", "groups_before_system"):
        if (word := value(name)) is not None:
            found[name] = _WORDS.get(word.lower(), word)
    if (retention := value("retention")) is not None:
        found["retention"] = _number(retention, float)
    limits = {
        name: _limit(name, limit) for name in StoreLimits.__dataclass_fields__ if (limit := value(f"limit_{name}"))
    }
    return found | ({"limits": limits} if limits else {})


def _limit(name: str, text: str) -> object:
    if name == "extensions":
        return _list(text)
    return _WORDS.get(text.lower(), text) if name == "own_groups_only" else _number(text, int)


def _number(text: str, kind: type[float]) -> float:
    try:
        return kind(text)
    except ValueError:
        raise SkillPolicyError(f"A setting of the store is a number, not {text!r}.") from None


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]

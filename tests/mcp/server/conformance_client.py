"""The host that the conformance suite tests: `conformance_client.py URL` lists skills, and loads them where asked to.

`HOST_TRUSTS` makes a host that compares nothing, with which each check has to fail.
"""

import contextlib
import os
import sys

from deepskills import SkillsError, SkillsManager
from deepskills._providers import ask, files
from deepskills.mcp import McpSkills
from deepskills.mcp.entries import ServedSkill


def main(url: str, scenario: str, *, trusts: bool) -> None:
    if trusts:
        checked = ask.check_file
        ServedSkill.mismatch = lambda *_: None  # type: ignore[method-assign]
        for module in (ask, files):
            setattr(module, "check_file", lambda path, reply, _digest: checked(path, reply, None))  # noqa: B010
    with McpSkills({"suite": {"transport": "streamable_http", "url": url}}, timeout=20) as skills:
        manager = SkillsManager(sources=[skills], asset_directories="all")
        names = manager.list_skills()
        if scenario.endswith("no-prefetch") and not trusts:
            return
        for name in names:
            with contextlib.suppress(SkillsError):
                manager.get_skill_content(name)
            with contextlib.suppress(SkillsError):
                for path in manager.list_skill_assets(name):
                    manager.get_skill_asset(name, path)


if __name__ == "__main__":
    main(sys.argv[-1], os.environ.get("MCP_CONFORMANCE_SCENARIO", ""), trusts=bool(os.environ.get("HOST_TRUSTS")))

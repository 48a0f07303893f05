"""The page where people keep their skills. Needs the extra `page`.

Rendered on the server from the templates here; the one script makes it more convenient and nothing depends on it. All
that it reads and writes goes through `SkillService`, so that its permissions are those of HTTP and agents.
"""

from deepskills.store.page.app import create_skills_page

__all__ = ["create_skills_page"]

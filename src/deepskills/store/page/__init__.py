"""The page where people keep their skills. Needs the extra `page`.

It is rendered on the server from the templates here; its one script adds convenience, and nothing depends on it. All
reads and writes go through `SkillService`, so its permissions are those of HTTP and agents.
"""

from deepskills.store.page.app import create_skills_page

__all__ = ["create_skills_page"]

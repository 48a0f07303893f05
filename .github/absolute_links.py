"""Give the package the address of its repository, which only the place that publishes it knows.

`python .github/absolute_links.py ADDRESS REF` makes links of README absolute, as the package index needs them, and adds
the repository to the metadata of the project. It changes both files where it is run.
"""

import re
import sys
from pathlib import Path

LINKS = re.compile(r'(\]\(|^\[[\w-]+\]: |href="|src=")(?![a-z]+:|#)([^)"\s]+)', flags=re.MULTILINE)
"""The beginning of a relative link, and where it leads."""


def main(address: str, ref: str) -> None:
    """Rewrite `README.md` and `pyproject.toml` in the current directory."""

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link[1].startswith("src") else "blob"
        return f"{link[1]}{address}/{kind}/{ref}/{link[2]}"

    readme, project = Path("README.md"), Path("pyproject.toml")
    readme.write_text(LINKS.sub(absolute, readme.read_text(encoding="utf-8")), encoding="utf-8")
    urls = f'[project.urls]\nRepository = "{address}"\nChangelog = "{address}/blob/{ref}/CHANGELOG.md"\n'
    project.write_text(f"{project.read_text(encoding='utf-8')}\n{urls}", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The image of the page about FastAPI and Docker: what it copies is there, what it runs serves."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import httpx
from server_support import ROOT, blocks_of, free_port, serving

PAGE = "deploy-fastapi.md"


def test_the_command_of_the_image_serves_the_application(tmp_path: Path) -> None:
    """The image's command starts the page's application, which streams skill events and the answer."""
    [image, _check] = blocks_of(PAGE, "dockerfile")
    (tmp_path / "app.py").write_text(blocks_of(PAGE, "python")[0], encoding="utf-8")
    (tmp_path / "requirements.txt").touch()
    shutil.copytree(ROOT / "examples" / "skills", tmp_path / "skills")
    copied = re.findall(r"^COPY (\S+)", image, flags=re.MULTILINE)
    assert [name for name in copied if not (tmp_path / name).exists()] == []

    [command] = re.findall(r"^CMD (\[.+\])", image, flags=re.MULTILINE)
    port = free_port()
    arguments = [{"0.0.0.0": "127.0.0.1", "8000": str(port)}.get(part, part) for part in json.loads(command)]
    url = f"http://127.0.0.1:{port}"
    with serving(arguments, tmp_path, f"{url}/openapi.json"):
        answer = httpx.post(f"{url}/ask", json={"thread": "one", "text": "Summarize sales.csv."}, timeout=60)
    assert '"type": "skill.loaded", "skill": "csv-report"' in answer.text
    assert '"text": "Done."' in answer.text


def test_the_image_is_of_a_supported_python() -> None:
    """The page does not name a Python that the package does not know."""
    [version] = re.findall(r"^FROM python:([\d.]+)", blocks_of(PAGE, "dockerfile")[0], flags=re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]

"""Draws what one conversation with skills costs, request by request: `python docs/pictures/draw_cost.py`.

An agent with the example skills runs on a scripted model; the tokens of each request are counted by what they are for.
"""

import re
import sys
from pathlib import Path

from deepagents.backends import FilesystemBackend
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.messages.utils import count_tokens_approximately

from deepskills import SkillsMiddleware
from deepskills.testing import Request, ScriptedChatModel, call_tools

ROOT = Path(__file__).parents[2]
PICTURE = Path(__file__).parent / "skill-cost.svg"
NAMES = ("the list of skills", "release-notes", "csv-report", "the conversation")
COLOURS = dict(zip(NAMES, ("#64748b", "#1d4ed8", "#0f766e", "#c2410c"), strict=True))
ANSWER = "Here is what I found. " * 60
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 360, 60, 40, 34, 170
TITLE = "tokens of each request"


def conversation() -> list[Request]:
    """Return the requests of a conversation in which skills come and go."""
    script = [
        call_tools(("load_skill", {"skill_name": "release-notes"}), text=ANSWER),
        ANSWER,
        call_tools(("load_skill", {"skill_name": "csv-report"}), text=ANSWER),
        ANSWER,
        call_tools(("unload_skill", {"skill_name": "release-notes"}), text=ANSWER),
        ANSWER,
    ]
    model = ScriptedChatModel(replies=script)
    skills = SkillsMiddleware(
        backend=FilesystemBackend(root_dir=ROOT / "examples", virtual_mode=True), sources=["/skills"]
    )
    agent = create_agent(model, middleware=[skills])
    messages: list[object] = []
    for question in ("Write the release notes.", "Now profile sales.csv.", "The notes are done."):
        messages = agent.invoke({"messages": [*messages, HumanMessage(question)]})["messages"]
    return model.requests


def parts(request: Request) -> dict[str, int]:
    """Return the tokens of a request by what they are for."""
    counts = {NAMES[0]: count_tokens_approximately([request.system])}
    rest = request.text.replace(request.system, "", 1)
    for name in NAMES[1:3]:
        found = re.search(rf'<skill_content name="{name}".*?</skill_content>', rest, flags=re.DOTALL)
        counts[name] = count_tokens_approximately([found[0]]) if found else 0
        rest = rest.replace(found[0], "", 1) if found else rest
    return {**counts, NAMES[3]: count_tokens_approximately([rest])}


def draw(requests: list[dict[str, int]]) -> str:
    """Return the requests as stacked bars."""
    most = max(sum(request.values()) for request in requests)
    step = 10 ** (len(str(most)) - 1)
    scale = (HEIGHT - BOTTOM - TOP) / most
    shapes = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18">{TITLE}</text>',
    ]
    for tokens in range(0, most, step):
        height = HEIGHT - BOTTOM - tokens * scale
        shapes.append(f'<path d="M{LEFT} {height:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        shapes.append(f'<text x="{LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{tokens:,}</text>')
    room = (WIDTH - LEFT - RIGHT) / len(requests)
    for place, request in enumerate(requests):
        x, y = LEFT + place * room + room * 0.2, float(HEIGHT - BOTTOM)
        for name, tokens in request.items():
            y -= tokens * scale
            box = f'x="{x:.1f}" y="{y:.1f}" width="{room * 0.6:.1f}" height="{tokens * scale:.1f}"'
            shapes.append(f'<rect {box} fill="{COLOURS[name]}"><title>{name}: {tokens:,}</title></rect>')
        middle = x + room * 0.3
        shapes.append(f'<text x="{middle:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{place + 1}</text>')
    for place, name in enumerate(reversed(NAMES)):
        height = TOP + 20 + place * 24
        box = f'x="{WIDTH - RIGHT + 16}" y="{height - 11}" width="12" height="12"'
        shapes.append(f'<rect {box} fill="{COLOURS[name]}"/>')
        shapes.append(f'<text x="{WIDTH - RIGHT + 36}" y="{height}" fill="#334155">{name}</text>')
    return "\n".join([*shapes, "</svg>\n"])


if __name__ == "__main__":
    PICTURE.write_text(draw([parts(request) for request in conversation()]), encoding="utf-8")
    sys.stdout.write(f"Drew {PICTURE.name}\n")

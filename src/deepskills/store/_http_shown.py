"""Skills and files in answers: written in pieces beside the event loop, so that a large one costs nobody else."""

import base64
from collections.abc import AsyncIterator, Iterable, Iterator
from json.encoder import encode_basestring

from fastapi import Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from deepskills.store._http_bodies import INLINE_BYTES, beside_the_loop
from deepskills.store._models import Skill, SkillFile
from deepskills.store._schemas import SkillFileSchema, SkillSchema

JSON_TYPE = "application/json"

PIECE_LENGTH = 256 * 1024
"""How many characters of a text are written in one step; to write one holds the interpreter."""

WHOLE_LENGTH = 1024 * 1024
"""Up to which size an answer is sent in one piece, with its length."""

_FILE_LENGTH = 512
"""About how much an answer says of each file."""


async def shown_skill(skill: Skill, *, contents: bool = False, code: int = 200, tagged: bool = True) -> Response:
    """Return the answer with a skill, which has the contents of its files only where asked."""
    size = len(skill.content) + _FILE_LENGTH * len(skill.files)
    if contents:
        size += sum(file.size for file in skill.files)
    headers = etag(skill.revision) if tagged else {}
    pieces = await beside_the_loop(size, lambda: _begun(skill, contents=contents))
    if size <= WHOLE_LENGTH:
        return as_json(await beside_the_loop(size, lambda: b"".join(pieces)), code, headers)
    return StreamingResponse(_sent(pieces), code, headers, JSON_TYPE)


def shown_file(file: SkillFile, code: int = 200) -> Response:
    """Return the answer with a file that was written, without its content, and the skill's present revision."""
    return as_json(written(SkillFileSchema.of(file, content=False)), code, etag(file.skill_revision))


def etag(revision: int) -> dict[str, str]:
    """Return the header that names a revision of a skill."""
    return {"ETag": f'"{revision}"'}


def written(data: BaseModel) -> bytes:
    """Return data in the envelope."""
    return b'{"success":true,"data":' + data.model_dump_json().encode() + b"}"


def as_json(body: bytes, code: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return JSON as a response."""
    return Response(body, code, headers, JSON_TYPE)


def _begun(skill: Skill, *, contents: bool) -> Iterator[bytes]:
    """Return the pieces of an answer with a skill; what can fail has been done."""
    shown = SkillSchema.of(skill, files=False).model_dump_json(exclude={"content", "files"})
    for file in skill.files if contents else ():
        _text(file)
    return _pieces(_parts(shown, skill, contents=contents))


def _parts(shown: str, skill: Skill, *, contents: bool) -> Iterator[str]:
    yield '{"success":true,"data":'
    yield from _with_text(shown, skill.content)
    yield ',"files":['
    for number, file in enumerate(sorted(skill.files, key=lambda file: file.path)):
        yield "," if number else ""
        described = SkillFileSchema.of(file, content=False)
        if contents:
            yield from _with_text(described.model_dump_json(exclude={"content"}), _text(file))
            yield "}"
        else:
            yield described.model_dump_json()
    yield "]}}"


def _with_text(shown: str, content: str) -> Iterator[str]:
    """Yield an object of JSON, still open at its end, with a text for its content."""
    yield f'{shown.removesuffix("}")},"content":"'
    for start in range(0, len(content), PIECE_LENGTH):
        yield encode_basestring(content[start : start + PIECE_LENGTH])[1:-1]
    yield '"'


def _text(file: SkillFile) -> str:
    content = file.content
    return content if isinstance(content, str) else base64.b64encode(content).decode()


def _pieces(parts: Iterable[str]) -> Iterator[bytes]:
    """Yield parts joined to pieces that are worth a step each."""
    joined: list[str] = []
    length = 0
    for part in parts:
        joined.append(part)
        length += len(part)
        if length >= PIECE_LENGTH:
            yield "".join(joined).encode()
            joined.clear()
            length = 0
    yield "".join(joined).encode()


async def _sent(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while piece := await beside_the_loop(INLINE_BYTES + 1, lambda: next(pieces, b"")):
        yield piece

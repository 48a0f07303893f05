"""Bodies of requests: read within bounds and only for those who are signed in, and parsed beside the event loop."""

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from deepskills._errors import SkillFormatError
from deepskills.store._errors import SkillTooLargeError
from deepskills.store._http_answers import MAX_DETAILS

ModelT = TypeVar("ModelT", bound=BaseModel)
ResultT = TypeVar("ResultT")

MAX_REQUEST_BYTES = 32 * 1024 * 1024
"""Largest request body by default."""

VALUES_PER_FILE = 16
"""How many names, values and brackets JSON may have for each file that a skill may have."""

OTHER_VALUES = 10_000
"""How many it may have besides."""

INLINE_BYTES = 16 * 1024
"""Up to which size work is done at once; a larger one goes to a thread."""

ZIP_TYPES = frozenset({"application/zip", "application/x-zip-compressed", "application/x-zip"})
"""Content types of archives."""

MAX_LITERAL_LENGTH = 64
"""Longest number or word of JSON outside a string; to read a number of a million digits takes seconds."""

_STEP = 256 * 1024
_STRUCTURE = re.compile(rb'["\[{]|[^\s"\[\]{}:,]{1,%d}' % (MAX_LITERAL_LENGTH + 1))
_IN_STRING = re.compile(rb'(?:[^"\\]{1,4096}|\\.){0,512}', re.DOTALL)

# Two at a time: parsing holds the interpreter, and more would hold up those who wait for short work.
_WORKERS = ThreadPoolExecutor(2, thread_name_prefix="deepskills-http")


async def beside_the_loop(size: int, work: Callable[[], ResultT]) -> ResultT:
    """Return what `work` gives, done in a thread where it is about much data."""
    if size <= INLINE_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_WORKERS, work)


async def bounded_body(request: Request, limit: int) -> bytes:
    """Return the body of a request.

    Raises:
        SkillTooLargeError: If it is larger than the limit; no more than that is read.
    """
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and len(declared) < len(str(1 << 63)) and int(declared) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
    return b"".join(chunks)


def content_type(request: Request) -> str:
    """Return the media type of a request's body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(media_type: str) -> bool:
    """Whether a media type is JSON; browsers send it to another site only if that site allows it."""
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


def check_json(media_type: str) -> None:
    """Check that a body says to be JSON.

    Raises:
        SkillFormatError: If it does not.
    """
    if not is_json(media_type):
        raise SkillFormatError("The body is not JSON by its content type. Send it as `application/json`.")


def parsed(model: type[ModelT], body: bytes, max_values: int) -> ModelT:
    """Return a body as a model.

    Raises:
        RequestValidationError: If it is none; the first problems are named.
        SkillFormatError: If it holds too many values to look at.
    """
    check_values(body, max_values)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        problems: list[Any] = [{**problem, "loc": ("body", *problem["loc"])} for problem in islice(found, MAX_DETAILS)]
        raise RequestValidationError(problems) from None


def check_values(body: bytes, at_most: int) -> None:
    """Check how many names, values and brackets JSON holds, before anything is made of them.

    Short steps: other threads get their turn in between, however large the body is.

    Raises:
        SkillFormatError: If there are too many.
    """
    position, count = 0, 0
    while position < len(body):
        found = _STRUCTURE.search(body, position, position + _STEP)
        if found is None:
            position += _STEP
            continue
        position = found.end()
        count += 1
        if count > at_most:
            raise SkillFormatError(f"The body holds more than {at_most} values. Send fewer.")
        if position - found.start() > MAX_LITERAL_LENGTH:
            raise SkillFormatError("The body holds a number or word that is too long. Send values as the schema says.")
        if found[0] == b'"':
            position = _end_of_string(body, position)


def _end_of_string(body: bytes, position: int) -> int:
    """Return where a string ends whose first quote stands right before `position`."""
    while True:
        part = _IN_STRING.match(body, position)
        end = position if part is None else part.end()
        if end == position:
            # A quote, the end of the body, or a backslash with nothing behind it.
            return end + 1
        position = end


def _too_large(limit: int) -> SkillTooLargeError:
    return SkillTooLargeError(f"The request is larger than {limit} bytes. Send files one by one, or shrink them.")

"""The stub servers refuse what the providers refuse, so that a test of `test_chat_models.py` can fail."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from providers_support import PROVIDERS
from stubs import Stub

Body = dict[str, Any]

OBJECT = {"type": "object", "properties": {"text": {"type": "string"}}}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": "{}"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
SCAN = {"type": "image", "source": {"type": "base64", "media_type": "image/tiff", "data": "aGk="}}
RESULT: Body = {"type": "tool_result", "tool_use_id": "x", "content": [IMAGE]}
CHAT: Body = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "b", "tool_call_id": "abcdefghi"},
    ],
    "tools": [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": OBJECT}}],
}
MARKED = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}

TAKEN: dict[str, Body] = {
    "anthropic": {
        "system": [MARKED],
        "messages": [
            {"role": "user", "content": [MARKED, MARKED, MARKED]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "look", "input": {}}]},
            {"role": "user", "content": [RESULT]},
        ],
        "tools": [{"name": "look", "input_schema": OBJECT}],
    },
    "openai": CHAT,
    "groq": CHAT,
    "mistral": CHAT,
    "responses": {
        "input": [
            {"role": "user", "content": "a", "type": "message"},
            {"type": "function_call", "call_id": "x", "id": "fc_x", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "x", "output": "b"},
        ],
        "tools": [{"type": "function", "name": "look", "parameters": OBJECT}],
    },
    "google": {
        "contents": [
            {"role": "user", "parts": [{"text": "a"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}, "thoughtSignature": "eA=="}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"output": "b"}}}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "look", "parameters": OBJECT}]}],
    },
    "ollama": {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": {}}}]},
            {"role": "tool", "content": "b", "tool_name": "look"},
        ],
        "tools": CHAT["tools"],
    },
}
"""A request of each provider that is taken."""


def put(value: object, *path: str | int) -> Callable[[Body], None]:
    """Return what puts a value somewhere into a request."""

    def change(body: Body) -> None:
        place: Any = body
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = copy.deepcopy(value)

    return change


def add(value: object, *path: str | int) -> Callable[[Body], None]:
    """Return what adds a value to a list in a request."""

    def change(body: Body) -> None:
        place: Any = body
        for step in path:
            place = place[step]
        place.append(copy.deepcopy(value))

    return change


def drop(*path: str | int) -> Callable[[Body], None]:
    """Return what takes something out of a request."""

    def change(body: Body) -> None:
        place: Any = body
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]

    return change


USER = {"role": "user", "content": "c"}
PARAMETERS = ("tools", 0, "function", "parameters")
NAMELESS_ITEMS = {"type": "object", "properties": {"names": {"type": "array"}}}

OF_CHAT = {
    "a call without its result": put(USER, "messages", 3),
    "a result of no call": put("other", "messages", 3, "tool_call_id"),
    "two results of a call": add(CHAT["messages"][3], "messages"),
    "an unknown role": put("function", "messages", 1, "role"),
    "an empty text": put("", "messages", 1, "content"),
    "a blank text": put([{"type": "text", "text": " "}], "messages", 1, "content"),
    "an unknown key": put("1", "messages", 1, "id"),
    "an image in a result": put([PICTURE], "messages", 3, "content"),
    "arguments that are no JSON": put("{", "messages", 2, "tool_calls", 0, "function", "arguments"),
    "the assistant's word last": add({"role": "assistant", "content": "c"}, "messages"),
    "a bad name of a tool": put("a b", "tools", 0, "function", "name"),
    "a tool twice": add(CHAT["tools"][0], "tools"),
    "a schema that is no object": put({"type": "string"}, *PARAMETERS),
    "a schema without properties": put({"type": "object"}, *PARAMETERS),
    "an array of unknown items": put(NAMELESS_ITEMS, *PARAMETERS),
    "an unknown type": put({"type": "object", "properties": {"a": {"type": "text"}}}, *PARAMETERS),
}  # fmt: skip

REFUSED: dict[str, dict[str, Callable[[Body], None]]] = {
    "anthropic": {
        "a call without its result": put(USER, "messages", 2),
        "a result of no call": put("y", "messages", 2, "content", 0, "tool_use_id"),
        "a text before a result": put(
            [{"type": "text", "text": "c"}, {"type": "tool_result", "tool_use_id": "x"}], "messages", 2, "content"
        ),
        "a text behind a call": add({"type": "text", "text": "c"}, "messages", 1, "content"),
        "two messages of the user": add(USER, "messages"),
        "the assistant's word first": drop("messages", 0),
        "the assistant's word last": add({"role": "assistant", "content": "c"}, "messages"),
        "no messages": put([], "messages"),
        "a message without content": put([], "messages", 0, "content"),
        "a blank text": put(" ", "messages", 0, "content", 0, "text"),
        "an empty text of the system": put("", "system", 0, "text"),
        "an unknown key": put("1", "messages", 0, "id"),
        "five marks for the cache": put([MARKED] * 4, "messages", 0, "content"),
        "an image in an error": put({**RESULT, "is_error": True}, "messages", 2, "content", 0),
        "an image of another type": put({**RESULT, "content": [SCAN]}, "messages", 2, "content", 0),
        "a bad name of a tool": put("a b", "tools", 0, "name"),
        "a schema that is no object": put({}, "tools", 0, "input_schema"),
        "alternatives at the top": put({**OBJECT, "anyOf": [{"required": ["text"]}]}, "tools", 0, "input_schema"),
        "a bad name of a property": put(
            {"type": "object", "properties": {"a b": {"type": "string"}}}, "tools", 0, "input_schema"
        ),
    },
    "openai": {**OF_CHAT, "a name on a result": put("look", "messages", 3, "name")},
    "groq": {**OF_CHAT, "a result in blocks": put([{"type": "text", "text": "b"}], "messages", 3, "content")},
    "mistral": {
        **{name: change for name, change in OF_CHAT.items() if name != "a schema without properties"},
        "a call's id of ten characters": put("abcdefghij", "messages", 2, "tool_calls", 0, "id"),
        "a user's word behind a result": add(USER, "messages"),
        "a system message behind a result": add(CHAT["messages"][0], "messages"),
        "the assistant's word first": put([{"role": "assistant", "content": "c"}, USER], "messages"),
    },
    "responses": {
        "a call without its result": drop("input", 2),
        "a result before its call": put(
            [TAKEN["responses"]["input"][2], TAKEN["responses"]["input"][1]], "input"
        ),
        "an id of another kind": put("call_x", "input", 1, "id"),
        "a call twice": add(TAKEN["responses"]["input"][1], "input"),
        "an unknown role": put("tool", "input", 0, "role"),
        "an empty text": put("", "input", 0, "content"),
        "output of the user": put([{"type": "output_text", "text": "a"}], "input", 0, "content"),
        "a schema without properties": put({"type": "object"}, "tools", 0, "parameters"),
        "an array of unknown items": put(NAMELESS_ITEMS, "tools", 0, "parameters"),
    },
    "google": {
        "a call without its result": put({"role": "user", "parts": [{"text": "b"}]}, "contents", 2),
        "a call first": drop("contents", 0),
        "a call behind a text of the model": put(
            [{"role": "model", "parts": [{"text": "b"}]}, *TAKEN["google"]["contents"][1:]], "contents"
        ),
        "an empty response": put({}, "contents", 2, "parts", 0, "functionResponse", "response"),
        "no parts": put([], "contents", 0, "parts"),
        "an empty text": put("", "contents", 0, "parts", 0, "text"),
        "an unknown role": put("function", "contents", 2, "role"),
        "a call without a signature": drop("contents", 1, "parts", 0, "thoughtSignature"),
        "the model's word last": add({"role": "model", "parts": [{"text": "c"}]}, "contents"),
        "an unknown field of a schema": put(
            {**OBJECT, "additionalProperties": False}, "tools", 0, "functionDeclarations", 0, "parameters"
        ),
        "an object without properties": put(
            {"type": "object", "properties": {}}, "tools", 0, "functionDeclarations", 0, "parameters"
        ),
        "an array of unknown items": put(NAMELESS_ITEMS, "tools", 0, "functionDeclarations", 0, "parameters"),
        "a bad name of a tool": put("1st", "tools", 0, "functionDeclarations", 0, "name"),
    },
    "ollama": {
        "an unknown role": put("developer", "messages", 0, "role"),
        "content in blocks": put([{"type": "text", "text": "a"}], "messages", 0, "content"),
        "arguments as text": put("{}", "messages", 1, "tool_calls", 0, "function", "arguments"),
        "two results of a call": add(TAKEN["ollama"]["messages"][2], "messages"),
        "an image that is no base64": put(["?"], "messages", 0, "images"),
        "a description that is no text": put(
            {"type": "object", "properties": {"a": {"type": "string", "description": ["b"]}}}, *PARAMETERS
        ),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_stub_takes_what_is_right_and_refuses_what_is_not(name: str) -> None:
    """One request is taken; with one thing changed it is refused."""
    stub = Stub(PROVIDERS[name].wire())
    answers = {"all that is right": stub.reply(copy.deepcopy(TAKEN[name]))[0]}
    for what, change in REFUSED[name].items():
        body = copy.deepcopy(TAKEN[name])
        change(body)
        answers[what] = stub.reply(body)[0]
    stub.close()
    assert answers == {"all that is right": 200, **dict.fromkeys(REFUSED[name], 400)}

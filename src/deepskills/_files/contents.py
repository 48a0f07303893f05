"""A plan: what a load needs of skills, read in two rounds however many they are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from deepskills._backend.calls import Failed, File, Files, ListDirectory, Plan, ReadFiles, RealPaths, Reply, ShellPaths
from deepskills._catalog.entries import SkillEntry
from deepskills._catalog.sources import parent
from deepskills._files.inventory import Inventory, take_inventories
from deepskills._files.paths import is_closed
from deepskills._format.problems import problem
from deepskills._format.reading import decode_skill


@dataclass(frozen=True)
class Contents:
    """A skill's file as it is now, the list of its other files, and where a shell finds it."""

    file: File
    inventory: Inventory
    shell_directory: str | None = None
    """The skill's directory as a local shell knows it, if that is not as file tools do."""

    def text(self) -> tuple[str, str | None]:
        """Return the file's text, or why there is none."""
        if self.file.unfit == "too-large":
            return "", problem(self.file.path, "file-too-large", size=self.file.size)["message"]
        if self.file.content is None:
            return "", self.file.error or "the backend gave no content"
        text, found = decode_skill(self.file.content, path=self.file.path)
        return (text, None) if found is None else ("", found["message"])


def without_closed(inventory: Inventory, directory: str, closed: Sequence[str]) -> Inventory:
    """Return what lies beside a skill in `directory`, but for what lies in directories that are closed."""
    if not closed:
        return inventory
    root = f"{directory.rstrip('/')}/"
    resources = [item for item in inventory.resources if not is_closed(item["path"].removeprefix(root), closed)]
    others = [name for name in inventory.other_directories if not is_closed(f"{name}/", closed)]
    return replace(inventory, resources=resources, other_directories=others)


def read_contents(entries: Sequence[SkillEntry], depth: int) -> Plan[dict[str, Contents]]:
    """Read the text and list the files of several skills, by name."""
    if not entries:
        return {}
    directories = [parent(entry.path) for entry in entries]
    reads = tuple(ReadFiles((entry.path,)) for entry in entries)
    replies = yield (*reads, *(ListDirectory(path) for path in directories))
    [shell] = yield (ShellPaths(tuple(directories)),)
    in_shell = shell.paths if isinstance(shell, RealPaths) else {}
    inventories = yield from take_inventories([entry.name for entry in entries], replies[len(entries) :], depth)
    return {
        entry.name: Contents(_only_file(entry.path, reply), inventory, in_shell.get(directory))
        for entry, directory, reply, inventory in zip(entries, directories, replies, inventories, strict=False)
    }


def _only_file(path: str, reply: Reply) -> File:
    if isinstance(reply, Files):
        return reply.files[0]
    return File(path, error=reply.reason if isinstance(reply, Failed) else "the backend gave no file")

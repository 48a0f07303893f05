"""A plan: what a load needs of skills, read in two rounds however many they are."""

from collections.abc import Sequence
from dataclasses import dataclass

from deepskills._backend.calls import Failed, File, Files, ListDirectory, Plan, ReadFiles, RealPaths, Reply, ShellPaths
from deepskills._catalog.entries import SkillEntry
from deepskills._catalog.sources import parent
from deepskills._files.inventory import Inventory, take_inventories
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

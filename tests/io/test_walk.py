"""The one walk through directories: level by level, in rounds, bounded, and never in circles."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deepskills._io.drivers import adrive, drive
from deepskills._io.plan import Call, Entry, Failed, ListDirectory, Listing, Plan, Visit, Visitor, Walked, walk
from support import FakeBackend, Mode, both_modes, by_hand, write_files


class Everything(Visitor[str]):
    """Notes every listing, and goes into every directory."""

    def __init__(self, refused: Iterable[str] = ()) -> None:
        self.seen: list[tuple[str, str, int]] = []
        self.failed: list[str] = []
        self.files: list[str] = []
        self._refused = set(refused)

    def admit(self, visit: Visit[str]) -> Visit[str] | None:
        return None if visit.path in self._refused else visit

    def take(self, visit: Visit[str], reply: Listing | Failed) -> Iterable[tuple[str, str]]:
        self.seen.append((visit.key, visit.path, visit.depth))
        if not isinstance(reply, Listing):
            self.failed.append(visit.path)
            return []
        self.files += [entry.path for entry in reply.entries if not entry.is_directory]
        return [(visit.key, entry.path) for entry in reply.entries if entry.is_directory]


def play(plan: Plan[Walked[str]], tree: dict[str, list[str]]) -> tuple[Walked[str], list[list[str]]]:
    """Drive a walk by hand over directories that hold directories alone; return the paths of each round."""

    def answer(call: Call[Any]) -> Listing | Failed:
        assert isinstance(call, ListDirectory)
        if call.path not in tree:
            return Failed("gone")
        return Listing(tuple(Entry(f"{call.path}/{name}", is_directory=True) for name in tree[call.path]))

    walked, rounds = by_hand(plan, answer)
    return walked, [[call.path for call in calls if isinstance(call, ListDirectory)] for calls in rounds]


TREE = {"/a": ["x", "y"], "/a/x": ["deep"], "/a/y": [], "/a/x/deep": ["end"], "/b": ["z"], "/b/z": []}


def test_each_level_is_one_round_in_which_keys_take_turns() -> None:
    """All directories of a level are listed at once, those of different keys in turns."""
    visitor = Everything()
    walked, rounds = play(walk([("A", "/a"), ("B", "/b")], visitor, levels=None), TREE)
    assert rounds == [["/a", "/b"], ["/a/x", "/b/z", "/a/y"], ["/a/x/deep"], ["/a/x/deep/end"]]
    assert visitor.failed == ["/a/x/deep/end"]
    assert ("A", "/a/x/deep", 2) in visitor.seen
    assert walked == Walked()


def test_depth_is_bounded_and_what_lies_deeper_is_told() -> None:
    """After the last level nothing is listed; the directories below it are handed back."""
    walked, rounds = play(walk([("A", "/a")], Everything(), levels=2), TREE)
    assert rounds == [["/a"], ["/a/x", "/a/y"]]
    assert [(visit.path, visit.depth) for visit in walked.too_deep] == [("/a/x/deep", 2)]


def test_the_number_of_directories_is_bounded_for_each_key() -> None:
    """One key with a huge tree is cut, and says so; the other is listed in full."""
    tree = {"/a": [str(number) for number in range(5_000)], "/b": ["z"], "/b/z": []}
    tree |= {f"/a/{number}": ["more"] for number in range(5_000)}
    visitor = Everything()
    walked, rounds = play(walk([("A", "/a"), ("B", "/b")], visitor, levels=None, max_directories=100), tree)
    assert walked.cut == ["A"]
    assert sum(key == "A" for key, _path, _depth in visitor.seen) == 100
    assert sum(key == "B" for key, _path, _depth in visitor.seen) == 2
    assert len(rounds) <= 3


def test_a_directory_may_be_refused() -> None:
    """What the visitor does not admit is not listed, and neither is what lies below it."""
    visitor = Everything(refused=["/a/x"])
    play(walk([("A", "/a")], visitor, levels=None), TREE)
    assert [path for _key, path, _depth in visitor.seen] == ["/a", "/a/y"]


def test_nothing_to_list_is_no_call() -> None:
    """A walk without starts makes no call."""
    assert play(walk([], Everything(), levels=None), TREE) == (Walked(), [])


@both_modes
def test_circles_of_links_end(mode: Mode, tmp_path: Path) -> None:
    """With links resolved each real directory is entered once for each key, whatever circles there are."""
    write_files(tmp_path, {"a/file.md": "", "a/b/file.md": "", "c/file.md": ""})
    for place, target in {"a/loop": ".", "a/b/up": "..", "c/other": "../a", "a/b/back": "../../c"}.items():
        (tmp_path / place).symlink_to(target)
    backend, visitor = FakeBackend(tmp_path), Everything()
    plan = walk([("one", "/"), ("two", "/")], visitor, levels=None, resolve_links=True)
    if mode == "sync":
        drive(plan, lambda: backend)
    else:
        asyncio.run(adrive(plan, lambda: backend))
    assert len(backend.listed) == 2 * 4
    assert sum(path.endswith("file.md") for path in visitor.files) == 2 * 3

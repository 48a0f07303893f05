"""Reads the example skills and shows what was found."""

from pathlib import Path

from deepskills import read_skill

SKILLS = Path(__file__).parent / "skills"


def main() -> None:
    for file in sorted(SKILLS.glob("*/SKILL.md")):
        reading = read_skill(file.read_bytes(), path=file.relative_to(SKILLS).as_posix())
        for problem in reading.problems:
            print(f"{problem['path']}: {problem['code']}: {problem['message']}")
        if reading.metadata is not None:
            print(f"{reading.metadata['name']}: {reading.metadata['description']}")
            print(f"  {len(reading.body.splitlines())} lines of instructions\n")


if __name__ == "__main__":
    main()

"""Print the path of the newest Python on this machine, if it is newer than the one that runs this file."""

import os
import re
import subprocess
import sys
from pathlib import Path

ASK = "import sys, ensurepip, venv; print(*sys.version_info[:3])"  # fails where an environment cannot be made


def candidates() -> list[Path]:
    """Programs called python3.N in the folders of PATH, and the versions that pyenv keeps beside them."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders += root.glob("versions/3.*/bin")
    programs = [program for folder in folders if folder.is_dir() for program in folder.iterdir()]
    return [program for program in programs if re.fullmatch(r"python3\.\d+", program.name)]


def version(program: Path) -> tuple[int, ...] | None:
    """The version of a Python that works; None for one that does not start or cannot make environments."""
    try:
        done = subprocess.run([program, "-c", ASK], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else None


if __name__ == "__main__":
    working = [(number, program) for program in candidates() if (number := version(program)) is not None]
    if working and max(working)[0][:2] > sys.version_info[:2]:
        print(max(working)[1])

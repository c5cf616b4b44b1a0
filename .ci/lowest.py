"""Print the lowest version that pyproject.toml allows of each requirement of the tests, as constraints for pip."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
for extra in ("audio", "cli", "files", "plots", "dask", "voices", "serve", "test"):
    project["dependencies"] += extras[extra]
print(*sorted({r.replace(">=", "==") for r in project["dependencies"] if re.fullmatch(r"[\w-]+>=[\d.]+", r)}), sep="\n")

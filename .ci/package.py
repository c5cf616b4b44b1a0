"""Install the wheel and the source distribution of a folder where nothing else is, and use them.

Once with the lowest version that pyproject.toml allows of each requirement, and once with the newest: `python
.ci/package.py dist`. In each environment the library alone comes first, then the command line, then all extras that
commands can ask for.
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
NEEDS_TYPER = "duoplda: error: the command line needs typer: pip install 'duoplda[cli]'\n"
LIBRARY = """
import sys
from duoplda import Backend, advise
from duoplda.datasets import make_recordings
X, speaker, session, _ = make_recordings(30, 3, 2, n_dimensions=6, n_speaker_factors=3, n_session_factors=3, seed=0)
backend = Backend().fit(X, speaker, session=session)
assert advise(speaker, session).calibrated and backend.calibration_ is not None
assert "fitted" in backend._repr_html_()
sides = backend.enroll(X, speaker, session)
assert backend.llr(sides, sides).shape == (30, 30)
assert not {"typer", "pyarrow", "h5py", "matplotlib", "torch", "dask"} & set(sys.modules)
"""
DATA = """
import sys
import numpy as np
from duoplda.datasets import make_recordings
from duoplda.io import LabelColumns, write_embeddings, write_labels
X, speaker, session, _ = make_recordings(30, 3, 2, n_dimensions=6, n_speaker_factors=3, n_session_factors=3, seed=0)
ids = np.array([f"utt{i}" for i in range(len(X))])
labels = LabelColumns(ids, speaker, session)
for name in sys.argv[1:]:
    write_embeddings(name, ids, X, labels=labels if "parquet" in name else None, force=True)
write_labels("table.csv", labels, force=True)
with open("trials", "w") as trials:
    for a in range(0, 60, 6):
        for b in range(1, 60, 2):
            print(ids[a], ids[b], "target" if speaker[a] == speaker[b] else "nontarget", file=trials)
"""
COMMANDS = """
advise --labels table.csv --embeddings x.npz
train --embeddings x.npz --labels table.csv --shrinkage 0.1 --out model.safetensors
info model.safetensors
score --model model.safetensors --embeddings x.npz --trials trials --out scores
calibrate --scores scores --trials trials --out calibration.safetensors
evaluate --scores scores --trials trials
report --scores scores --trials trials --model model.safetensors --out report.html
cluster --model model.safetensors --embeddings x.npz --out clusters.tsv
"""
LACKING = {  # commands that lack a library without an extra
    "train --embeddings x.parquet --labels x.parquet --shrinkage 0.1 --out more.safetensors": "files",
    "info model.safetensors --embeddings x.h5": "files",
    "evaluate --scores scores --trials trials --plot det.png": "plots",
}


class Environment:
    """A fresh virtual environment, and a folder in which commands run."""

    def __init__(self, folder: Path, constraints: Path | None):
        venv.create(folder / "venv", with_pip=True)
        self.folder, self.bin, self.constraints = folder, folder / "venv" / "bin", constraints

    def install(self, *what: str) -> None:
        limits = [] if self.constraints is None else ["--constraint", str(self.constraints)]
        self.run("python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *limits, *what)

    def run(self, program: str, *arguments: str, code: int = 0) -> tuple[str, str]:
        """Standard output and error of a program of the environment, which must end with `code`, and no traceback."""
        clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
        command = [str(self.bin / program), *arguments]
        options = {"cwd": self.folder, "env": clean | {"OMP_NUM_THREADS": "1"}, "capture_output": True, "text": True}
        done = subprocess.run(command, check=False, **options)
        if done.returncode != code or "Traceback" in done.stderr:
            sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}\nended with {done.returncode}, expected {code}")
        return done.stdout, done.stderr


def check(env: Environment, wheel: Path, sdist: Path, version: str) -> None:
    """The library alone, the command line without extras, and both with them; at last the source distribution."""
    env.install(str(wheel))
    env.run("python", "-c", LIBRARY)
    for arguments in (["--version"], ["--help"], ["train"], ["info", "model"]):
        for program in (["duoplda"], ["python", "-m", "duoplda"]):
            expect(env.run(*program, *arguments, code=1) == ("", NEEDS_TYPER), arguments)

    env.install(f"{wheel}[cli]")
    expect(env.run("duoplda", "--version")[0].strip() == version, "--version")
    for name in env.run("python", "-c", "from duoplda.cli import COMMANDS; print(*COMMANDS)")[0].split():
        expect("Example:" in env.run("duoplda", name, "--help")[0], name)
    env.run("python", "-c", DATA, "x.npz")
    for command in COMMANDS.strip().splitlines():
        env.run("duoplda", *command.split())
    (env.folder / "x.parquet").write_bytes(b"PAR1" + bytes(64))
    (env.folder / "x.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(64))
    for command, extra in LACKING.items():
        *_, line = env.run("duoplda", *command.split(), code=1)[1].splitlines()
        expect(line.startswith("duoplda: error: ") and "pip install" in line and extra in line, line)
    env.run("duoplda", "demo", "--out", "demo", "--quiet")

    env.install(f"{wheel}[cli,files,plots]")
    env.run("python", "-c", DATA, "x.parquet", "x.h5")
    for command in LACKING:
        env.run("duoplda", *command.split())

    env.install("--no-deps", "--force-reinstall", str(sdist))
    expect(env.run("duoplda", "--version")[0].strip() == version, "--version")


def expect(true: bool, what: object) -> None:
    """End with an error where something is not as it should be."""
    if not true:
        sys.exit(f"not as expected: {what}")


def main(folder: Path) -> None:
    """Check what is in a folder."""
    (wheel,), (sdist,) = folder.glob("duoplda-*.whl"), folder.glob("duoplda-*.tar.gz")
    version = wheel.name.split("-")[1]
    for which in ("lowest", "newest"):
        with tempfile.TemporaryDirectory() as at:
            pins = Path(at) / "lowest.txt"
            pins.write_bytes(subprocess.check_output([sys.executable, ROOT / ".ci" / "lowest.py"]))
            check(Environment(Path(at), pins if which == "lowest" else None), wheel, sdist, version)
        print(f"{wheel.name} and {sdist.name} work with the {which} versions")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

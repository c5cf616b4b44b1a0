"""What is installed: files of the wheel and of the source distribution, what it requires, commands without extras.

`make test-package` installs both where nothing else is, with the lowest versions and with the newest.
"""

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

from audio_cases import write_extractor
from cli_cases import duoplda
from duoplda import PLDA, workflows
from duoplda.cli import COMMANDS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "duoplda"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
DISTRIBUTIONS = {"sklearn": "scikit-learn", "array_api_compat": "array-api-compat", "sherpa_onnx": "sherpa-onnx"}
DISTRIBUTIONS |= {"prometheus_client": "prometheus-client"}


def run(*command, **options):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    at = tmp_path_factory.mktemp("wheel")
    options = ["--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index", "-w", at]
    done = run(sys.executable, "-m", "pip", "wheel", *options, ROOT)
    assert done.returncode == 0, done.stderr
    (found,) = at.glob("duoplda-*.whl")
    return found


def test_the_wheel_holds_every_file_of_the_package(wheel):
    ours = {str(p.relative_to(PACKAGE.parent)) for p in PACKAGE.rglob("*") if p.is_file() and p.suffix != ".pyc"}
    assert {"duoplda/report/page.html", "duoplda/report/page.css", "duoplda/report/page.js"} <= ours
    held = set(zipfile.ZipFile(wheel).namelist())
    assert ours == {name for name in held if ".dist-info/" not in name}
    assert any(name.endswith("licenses/LICENSE") for name in held)
    assert "duoplda/py.typed" in held
    assert not any("__pycache__" in name or name.startswith("tests") for name in held)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    at = tmp_path_factory.mktemp("sdist")
    done = run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", at, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (found,) = at.glob("duoplda-*.tar.gz")
    return found


def test_the_source_distribution_holds_what_is_ours_and_no_more(sdist):
    with tarfile.open(sdist) as file:
        held = {m.name.partition("/")[2]: m.size for m in file.getmembers() if m.isfile()}
    ours = {f"src/{p.relative_to(PACKAGE.parent)}" for p in PACKAGE.rglob("*") if p.is_file() and p.suffix != ".pyc"}
    assert {name for name in held if name.startswith("src/")} == ours
    for folder in ("tests", "examples", "benchmarks", "tools", ".ci"):  # the tests read all of these
        files = {str(p.relative_to(ROOT)) for p in (ROOT / folder).rglob("*.py") if "results" not in p.parts}
        assert files <= set(held)
    assert {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "PKG-INFO", ".ci/run"} <= set(held)
    junk = re.compile(r"\.pyc$|__pycache__|^\.venv|^dist/|_build/|\.hypothesis|_cache/|\.egg-info|^benchmarks/results/")
    assert [name for name in held if junk.search(name)] == []
    assert max(held.values()) < 1 << 20


def test_the_source_distribution_builds_the_same_wheel(sdist, wheel, tmp_path):
    options = ["--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index", "-w", tmp_path]
    done = run(sys.executable, "-m", "pip", "wheel", *options, sdist)
    assert done.returncode == 0, done.stderr
    (again,) = tmp_path.glob("duoplda-*.whl")
    first, second = (zipfile.ZipFile(path) for path in (wheel, again))
    assert sorted(first.namelist()) == sorted(second.namelist())
    assert [name for name in first.namelist() if first.read(name) != second.read(name)] == []


def test_the_version_is_one():
    code = "import duoplda, importlib.metadata as m; print(duoplda.__version__, m.version('duoplda'))"
    assert run(sys.executable, "-c", code).stdout.split() == [PROJECT["version"]] * 2


# -- commands without extras


def test_the_command_without_its_extra_says_what_to_install(wheel, tmp_path):
    """In an environment with the wheel and nothing else."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    assert run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel).returncode == 0
    for command in ([python.parent / "duoplda", "--help"], [python, "-m", "duoplda", "info", "model"]):
        done = run(*command, cwd=tmp_path)
        message = "duoplda: error: the command line needs typer: pip install 'duoplda[cli]'\n"
        assert (done.returncode, done.stdout, done.stderr) == (1, "", message)


EXTRA = {
    "pyarrow": "files",
    "h5py": "files",
    "dask": "dask",
    "torch": "torch",
    "matplotlib": "plots",
    "sqlalchemy": "voices",
    "fastapi": "serve",
}
EXTRA |= {"soundfile": "audio", "soxr": "audio", "sherpa_onnx": "audio"}
LACK = [  # commands, and what they lack
    ("embed --extractor m.onnx --audio x.wav --out o.npz", "sherpa_onnx"),
    ("advise --labels x.parquet", "pyarrow"),
    ("split --labels x.parquet --out o", "pyarrow"),
    ("train --embeddings x.parquet --labels x.parquet --out o", "pyarrow"),
    ("train --embeddings x.npz --speakers list --out o --device cuda", "torch"),
    ("train --embeddings x.npz --speakers list --out o --dask local", "dask"),
    ("adapt --model m --embeddings x.h5 --out o", "h5py"),
    ("adapt --model m --embeddings x.npz --out o --dask local", "dask"),
    ("enroll --model m --embeddings x.h5 --enroll list --out o", "h5py"),
    ("score --model m --embeddings x.parquet --enroll list --top 1 --out o", "pyarrow"),
    ("score --model m --embeddings x.npz --enroll list --top 1 --dask local --out o", "dask"),
    ("voices list --registry voices.db", "sqlalchemy"),
    ("identify --model m --embeddings x.npz --registry voices.db", "sqlalchemy"),
    ("serve --model m --registry voices.db", "fastapi"),
    ("cluster --model m --embeddings x.h5 --out o.tsv", "h5py"),
    ("link --model m --embeddings x.h5 --local list --out o.tsv", "h5py"),
    ("diarize --model m --embeddings x.h5 --segments segments --out o.rttm", "h5py"),
    ("info m --embeddings x.parquet", "pyarrow"),
    ("convert x.h5 o.safetensors", "h5py"),
    ("evaluate --scores scores --trials trials --plot o.png", "matplotlib"),
    ("calibrate --scores scores.h5 --trials trials --out o.safetensors", "h5py"),
    ("report --scores scores.h5 --trials trials --out o.html", "h5py"),
    ("case case.toml --out o", "h5py"),
]


CASE = """version = 1
title = "t"
model = "m"
[propositions]
same = "A."
different = "B."
[known]
speaker = "k"
embeddings = "x.h5"
recordings = [{ id = "a", session = "a" }]
[questioned]
embeddings = "x.h5"
recordings = [{ id = "b", session = "b" }]
[population]
why = "w"
embeddings = "x.h5"
speakers = "list"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files that commands open before they miss a library."""
    at = tmp_path_factory.mktemp("files")
    PLDA.from_parameters([0.0, 0.0], np.eye(2), None, np.eye(2)).save(at / "m")
    np.savez(at / "x.npz", ids=np.array(["a", "b", "c", "d"]), embeddings=np.random.default_rng(0).normal(size=(4, 2)))
    (at / "x.parquet").write_bytes(b"PAR1" + bytes(64) + b"PAR1")
    write_extractor(at / "m.onnx")
    (at / "x.wav").write_bytes(b"RIFF")
    (at / "list").write_text("a s\nb s\nc t\nd t\n")
    (at / "segments").write_text("a f 0 1\n")
    (at / "scores").write_text("a b 1\na c -1\n")
    (at / "trials").write_text("a b target\na c nontarget\n")
    (at / "case.toml").write_text(CASE)
    for name in ("x.h5", "scores.h5"):
        (at / name).write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(64))
    return at


LAZY = ("duoplda.engines.dask", "duoplda.voices", "duoplda.service")
LAZY += tuple(f"duoplda.workflows.{name}" for name in ("voices", "identify", "serve"))


@pytest.fixture
def base(monkeypatch):
    """As if only the command line were installed."""
    absent = {*EXTRA, "distributed", "pandas", "array_api_compat"}
    for name in [name for name in sys.modules if name.partition(".")[0] in absent or name.startswith(LAZY)]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("voices", "identify", "serve"):
        monkeypatch.delattr(workflows, name, raising=False)
    for name in absent:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize(("command", "library"), LACK)
def test_a_command_says_which_extra_to_install(base, folder, monkeypatch, command, library):
    monkeypatch.chdir(folder)
    result = duoplda(*command.split())
    line = result.stderr.splitlines()[-1]
    assert result.exit_code == 1, line
    assert isinstance(result.exception, SystemExit)  # and no other error, which would be a traceback
    assert line.startswith("duoplda: error: ")
    assert re.search(rf"pip install '?duoplda\[[a-z,]*\b{EXTRA[library]}\b", line), line
    assert not [p for p in folder.iterdir() if p.name.startswith("o")]


def test_every_command_is_among_them():
    """But for demo, which needs no extra: `make test-package` runs it."""
    assert {command.split()[0] for command, _ in LACK} == {*COMMANDS} - {"demo"}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_needs_no_extra(base, command):
    result = duoplda(command, "--help")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Example:" in result.stdout


def test_a_broken_import_of_our_own_is_not_called_a_missing_extra():
    code = "import sys; sys.modules['duoplda.cli.info'] = None; from duoplda.__main__ import main; main()"
    done = run(sys.executable, "-c", code, "info", "model")
    assert done.returncode == 1
    assert "ModuleNotFoundError: import of duoplda.cli.info halted" in done.stderr


# -- requirements


def imported(node):
    """Modules that a statement or a call imports: `import a.b`, `from a import b`, `need("a")`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        function = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if function in ("need", "optional", "import_module"):
            return [node.args[0].value]
    return []


def others():
    """Each import of another library's module, and whether it is outside of functions."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        top = set(map(id, tree.body))
        for node in ast.walk(tree):
            for name in imported(node):
                root = name.partition(".")[0]
                if root != "duoplda" and root not in sys.stdlib_module_names:
                    yield path.relative_to(PACKAGE), name, id(node) in top


def names(requirements):
    return {re.match(r"[\w-]+", r)[0] for r in requirements}


def test_what_is_imported_is_declared():
    base = names(PROJECT["dependencies"])
    extras = ("audio", "cli", "files", "plots", "dask", "torch", "voices", "serve")
    declared = base | {n for n in names(r for e in extras for r in EXTRAS[e]) if n != "duoplda"}
    at_top = {"cli": {"typer"}, "voices": {"sqlalchemy"}, "service": names(EXTRAS["serve"])}
    found = set()
    for path, name, top in others():
        root = name.partition(".")[0]
        distribution = DISTRIBUTIONS.get(root, root)
        found.add(distribution)
        allowed = declared if not top else base | at_top.get(path.parts[0], set())
        assert distribution in allowed, f"{path} imports {name}"
        assert not re.search(r"\._|\.externals\b", name), f"{path} imports {name}, which is private"
    assert found >= base
    assert {"typer", "rich", "h5py", "pyarrow", "matplotlib", "dask", "distributed", "torch"} <= found
    assert names(EXTRAS["audio"]) <= found


def test_linters_are_pinned_and_no_part_of_the_tests():
    assert all("==" in requirement for requirement in EXTRAS["lint"])
    assert not names(EXTRAS["lint"]) & names(EXTRAS["test"])
    steps = run("make", "--dry-run", f"PYTHON={sys.executable}", "VENV=none", "test", cwd=ROOT).stdout
    assert "-m pytest" in steps
    assert not any(name in steps for name in names(EXTRAS["lint"]))


def test_every_requirement_has_a_lowest_version_for_ci():
    pins = run(sys.executable, ROOT / ".ci" / "lowest.py").stdout.split()
    wanted = [
        r
        for e in ("audio", "cli", "files", "plots", "dask", "voices", "serve", "test")
        for r in EXTRAS[e]
        if not r.startswith("duoplda[")
    ]
    assert set(pins) == {r.replace(">=", "==") for r in PROJECT["dependencies"] + wanted}

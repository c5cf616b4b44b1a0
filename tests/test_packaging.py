"""What is installed: the wheel's files, what it requires, and the command without its extra."""

import ast
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "duoplda"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
DISTRIBUTIONS = {"sklearn": "scikit-learn", "array_api_compat": "array-api-compat"}


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


def test_a_broken_import_of_our_own_is_not_called_a_missing_extra():
    code = "import sys; sys.modules['duoplda.cli.info'] = None; from duoplda.__main__ import main; main()"
    done = run(sys.executable, "-c", code)
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
    declared = base | names(EXTRAS["cli"] + EXTRAS["files"] + EXTRAS["plots"] + EXTRAS["dask"] + EXTRAS["torch"])
    found = set()
    for path, name, top in others():
        root = name.partition(".")[0]
        distribution = DISTRIBUTIONS.get(root, root)
        found.add(distribution)
        allowed = declared if not top else base | ({"typer"} if path.parts[0] == "cli" else set())
        assert distribution in allowed, f"{path} imports {name}"
        assert not re.search(r"\._|\.externals\b", name), f"{path} imports {name}, which is private"
    assert found >= base
    assert {"typer", "rich", "h5py", "pyarrow", "matplotlib", "dask", "distributed", "torch"} <= found


def test_linters_are_pinned_and_no_part_of_the_tests():
    assert all("==" in requirement for requirement in EXTRAS["lint"])
    assert not names(EXTRAS["lint"]) & names(EXTRAS["test"])
    steps = run("make", "--dry-run", f"PYTHON={sys.executable}", "VENV=none", "test", cwd=ROOT).stdout
    assert "-m pytest" in steps
    assert not any(name in steps for name in names(EXTRAS["lint"]))


def test_every_requirement_has_a_lowest_version_for_ci():
    pins = run(sys.executable, ROOT / ".ci" / "lowest.py").stdout.split()
    wanted = [r for e in ("cli", "files", "plots", "dask", "test") for r in EXTRAS[e] if not r.startswith("duoplda[")]
    assert set(pins) == {r.replace(">=", "==") for r in PROJECT["dependencies"] + wanted}

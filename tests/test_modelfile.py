"""Model files: exact, written whole or not at all, and a clear word on anything that is no model."""

import ast
import errno
import inspect
import json
import os
import pickle
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from duoplda import PLDA, DuopldaError
from duoplda.datasets import make_recordings
from duoplda.io import container

X, SPEAKER, SESSION, _ = make_recordings(
    20, (1, 4), (1, 4), n_dimensions=5, n_speaker_factors=3, n_session_factors=2, seed=11
)
PARAMETERS = ("mean_", "speaker_loadings_", "session_loadings_", "noise_precision_")


@pytest.fixture(scope="module")
def plda():
    return PLDA(3, 2, tol=1e-5, random_state=1, callback=print_nothing).fit(X, SPEAKER, session=SESSION)


def print_nothing(iteration, ln_likelihood, model):
    return None


@pytest.fixture
def path(plda, tmp_path):
    plda.save(tmp_path / "model.plda")
    return tmp_path / "model.plda"


def same(a, b):
    for name in PARAMETERS:
        x, y = getattr(a, name), getattr(b, name)
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        assert x.tobytes() == y.tobytes(), name  # to the last bit


def rewritten(path, tensors=None, header=None, **changes):
    """The file with other tensors, or with other fields in its header."""
    tensors = load_file(path) if tensors is None else tensors
    old = json.loads(metadata(path)["duoplda"])
    save_file(tensors, path, {"duoplda": json.dumps({**old, **changes} if header is None else header)})
    return path


def metadata(path):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size])["__metadata__"]


def refused(path, *words):
    """The message names the file, and says these words."""
    with pytest.raises(DuopldaError) as caught:
        PLDA.load(path)
    for word in (str(path), *words):
        assert word in str(caught.value)
    return caught


# -- there and back ----------------------------------------------------------------------------------------------------


def test_round_trip(plda, path):
    back = PLDA.load(path)
    same(plda, back)
    assert type(back) is PLDA
    assert back.n_features_in_ == 5
    np.testing.assert_array_equal(back.log_likelihoods_, plda.log_likelihoods_)
    assert (back.n_iter_, back.converged_, back.n_evaluations_) == (plda.n_iter_, True, plda.n_evaluations_)
    assert back.get_params() == {**plda.get_params(), "callback": None}
    a, b = (p.enroll(X, SPEAKER, SESSION) for p in (plda, back))
    np.testing.assert_array_equal(plda.llr(a, a), back.llr(b, b))
    np.testing.assert_array_equal(plda.transform(X), back.transform(X))
    assert back.score(X, SPEAKER, SESSION) == plda.score(X, SPEAKER, SESSION)
    assert back.get_feature_names_out().tolist() == ["plda0", "plda1", "plda2"]


def test_twice(path, tmp_path):
    """What is loaded can be saved, and gives the same bytes."""
    PLDA.load(path).save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("d", [1, 48, 49, 60, 130])
def test_every_size_comes_back_bit_for_bit(d, tmp_path):
    rows = np.random.default_rng(d).standard_normal((4 * d + 40, d))
    speaker, session = np.arange(len(rows)) // 8, np.arange(len(rows)) // 2
    fitted = PLDA(max_iter=2).fit(rows, speaker, session=session)
    fitted.save(tmp_path / "model")
    back = PLDA.load(tmp_path / "model")
    same(fitted, back)
    np.testing.assert_array_equal(fitted.transform(rows), back.transform(rows))


def test_without_session_factors(tmp_path):
    fitted = PLDA().fit(X, SPEAKER)
    fitted.save(tmp_path / "model")
    same(fitted, PLDA.load(tmp_path / "model"))
    assert PLDA.load(tmp_path / "model").session_loadings_.shape == (5, 0)


def test_parameters_by_hand(tmp_path):
    """A model that was never trained has no trace to keep."""
    given = PLDA.from_parameters([1.0, 2.0], [[1.0], [0.5]], None, [[2.0, 0.3], [0.3, 1.0]])
    given.save(tmp_path / "model")
    back = PLDA.load(tmp_path / "model")
    same(given, back)
    assert not hasattr(back, "log_likelihoods_")


def test_numbers_of_numpy(tmp_path):
    """As they come out of np.arange or a grid search."""
    fitted = PLDA(np.int64(3), np.int64(2), tol=np.float32(1e-4), noise_floor=np.float64(1e-6), max_iter=np.int32(99))
    fitted.fit(X, SPEAKER, session=SESSION).save(tmp_path / "model")
    back = PLDA.load(tmp_path / "model")
    same(fitted, back)
    assert back.get_params()["max_iter"] == 99


def test_parameters_of_every_type(tmp_path):
    """A callback and a random state cannot be kept; numbers in an array come back as a tuple."""
    numbers, seed = np.array([0.1, 0.2, 0.3]), np.random.RandomState(0)
    PLDA(shrinkage=numbers, random_state=seed, callback=print_nothing).fit(X, SPEAKER, session=SESSION).save(
        tmp_path / "model"
    )
    back = PLDA.load(tmp_path / "model").get_params()
    assert back == {**PLDA().get_params(), "shrinkage": (0.1, 0.2, 0.3)}


def test_provenance(plda, tmp_path):
    plda.save(tmp_path / "a", provenance={"command": "by hand"})
    assert not hasattr(plda, "provenance_")
    back = PLDA.load(tmp_path / "a")
    assert back.provenance_["command"] == "by hand"
    assert set(back.provenance_["versions"]) == {"duoplda", "numpy", "scipy", "scikit-learn", "python"}
    back.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_not_converged_is_remembered(tmp_path):
    stopped = PLDA(3, 2, callback=lambda *_: True).fit(X, SPEAKER, session=SESSION)
    stopped.save(tmp_path / "model")
    back = PLDA.load(tmp_path / "model")
    assert (back.converged_, back.n_iter_) == (False, 1)


def test_paths(plda, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("plain", Path("as a path.plda"), "ünïcode", os.path.join(".", "dotted")):
        plda.save(name)
        same(plda, PLDA.load(name))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["as a path.plda", "dotted", "plain", "ünïcode"]


def test_permissions(plda, tmp_path):
    """Those of any new file, not the private ones of a temporary file."""
    before = os.umask(0o027)
    try:
        plda.save(tmp_path / "model")
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o640


def test_overwrites(plda, path):
    other = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
    other.save(path, force=True)
    same(other, PLDA.load(path))


# -- no pickle ---------------------------------------------------------------------------------------------------------


def test_the_format(plda, path):
    """Safetensors: a JSON header with the format, the version and the parameters, and the numbers as they are."""
    header = json.loads(metadata(path)["duoplda"])
    assert header["format"] == "duoplda-backend"
    assert header["version"] == 2
    assert header["plda"]["n_speaker_factors"] == 3
    tensors = load_file(path)
    names = ("channel_means_", "channel_priors_", "speaker_loadings_", "session_loadings_", "noise_precision_")
    assert set(tensors) == {f"plda.{name}" for name in (*names, "log_likelihoods_")}
    assert {t.dtype for t in tensors.values()} == {np.dtype(np.float64)}
    np.testing.assert_array_equal(tensors["plda.noise_precision_"], plda.noise_precision_)


def test_no_pickle(plda, path, tmp_path, monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("pickle was used")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    plda.save(tmp_path / "again")
    same(plda, PLDA.load(tmp_path / "again"))
    names = {
        alias.name.partition(".")[0]
        for node in ast.walk(ast.parse(inspect.getsource(container)))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in [*node.names, ast.alias(getattr(node, "module", None) or "")]
    }
    assert not names & {"pickle", "cPickle", "dill", "joblib", "marshal", "shelve", "cloudpickle"}


class Trap:
    def __reduce__(self):
        return (os.mkdir, ("sprung",))


def test_a_pickle_is_not_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model"
    path.write_bytes(pickle.dumps(Trap()))
    refused(path, "not a model of duoplda")
    assert not (tmp_path / "sprung").exists()


# -- files that are no model -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0",
        b"\0" * 8,
        b"\0" * 100,
        b"\xff" * 100,
        b"Dear model,\nthis is a text that is long enough to be taken for a header.\n",
        b"\x02\0\0\0\0\0\0\0{}",
        b"\x02\0\0\0\0\0\0\0[]",
        b"\x08\0\0\0\0\0\0\0not json",
        b"PK\x03\x04" + b"\0" * 60,
    ],
    ids=["empty", "a byte", "8 zeros", "zeros", "ones", "text", "no tensors", "a list", "no json", "zip"],
)
def test_something_else(tmp_path, content):
    path = tmp_path / "model"
    path.write_bytes(content)
    refused(path, "model of duoplda")


@pytest.mark.parametrize(
    "header",
    [
        None,
        {},
        {"format": "pt"},
        {"duoplda": "null"},
        {"duoplda": "[1, 2]"},
        {"duoplda": "not json"},
        {"duoplda": '{"format": "other", "version": 1}'},
    ],
    ids=str,
)
def test_safetensors_from_elsewhere(tmp_path, header):
    path = tmp_path / "model"
    save_file({"mean": np.zeros(2)}, path, header)
    refused(path, "model of duoplda")


def test_numpy_file(tmp_path):
    np.savez(tmp_path / "model.npz", mean=np.zeros(3))
    refused(tmp_path / "model.npz", "model of duoplda")


def test_truncated(path):
    """At every length, and never with a word of safetensors alone."""
    whole = path.read_bytes()
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    for length in sorted({*range(0, header, 29), *range(header, len(whole), 61), 7, 8, 9, header, len(whole) - 1}):
        path.write_bytes(whole[:length])
        refused(path, "truncated or damaged")
    path.write_bytes(whole + b"\0")
    refused(path, "truncated or damaged")
    path.write_bytes(whole)
    PLDA.load(path)


@pytest.mark.parametrize("version", [0, 1, 3, 99, "2", None, 1.5])
def test_other_versions(path, version):
    refused(rewritten(path, version=version), f"format version {version}", "this duoplda reads version 2")


def test_deeply_nested_metadata(path):
    save_file({"mean": np.zeros(2)}, path, {"duoplda": "[" * 100_000})
    refused(path, "model of duoplda")


def test_no_version(path):
    header = json.loads(metadata(path)["duoplda"])
    del header["version"]
    refused(rewritten(path, header=header), "version")


def test_missing_tensor(path):
    """Any but the trace, which a model that was never trained has not."""
    for missing in sorted(set(load_file(path)) - {"plda.log_likelihoods_"}):
        broken = path.with_name(missing)
        broken.write_bytes(path.read_bytes())
        tensors = load_file(broken)
        del tensors[missing]
        refused(rewritten(broken, tensors), "damaged", missing)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mean", np.zeros((5, 1, 1))),
        ("mean", np.zeros((1, 4))),
        ("mean", np.zeros((1, 0))),
        ("speaker_loadings", np.zeros((4, 3))),
        ("speaker_loadings", np.zeros(5)),
        ("session_loadings", np.zeros((2, 5))),
        ("session_loadings", np.zeros((5, 6))),
        ("noise_precision", np.zeros((5, 4))),
        ("noise_precision", np.zeros((5, 5))),
        ("noise_precision", -np.eye(5)),
        ("noise_precision", np.triu(np.ones((5, 5)))),
        ("noise_precision", np.full((5, 5), np.nan)),
        ("mean", np.full((1, 5), np.inf)),
    ],
    ids=lambda v: v if isinstance(v, str) else f"{v.shape} {v.flat[0] if v.size else ''}",
)
def test_wrong_numbers(path, name, value):
    tensors = load_file(path)
    name = "plda.channel_means_" if name == "mean" else f"plda.{name}_"
    assert name in tensors
    tensors[name] = value
    refused(rewritten(path, tensors), "damaged")


@pytest.mark.parametrize(
    "changes",
    [
        {"plda": None},
        {"plda": [1]},
        {"plda": {"n_speaker_factors": 3, "unknown": 1}},
        {"fit": None},
        {"fit": {}},
        {"fit": {"converged": True}},
        {"fit": [1]},
        {"fit": {"converged": True, "n_evaluations": []}},
        {"cost": []},
        {"cost": "x"},
        {"fit": {"converged": True, "n_evaluations": float("inf")}},
        {"channels": [{}]},
        {"channels": ["a", ["b"]]},
        {"scales": [1.0, 1e308]},
        {"scales": [1e-200, 1.0]},
        {"counts": {"speakers": -1}},
    ],
    ids=str,
)
def test_wrong_header(path, changes):
    refused(rewritten(path, **changes), "damaged")


@pytest.mark.parametrize("name", ["channel_means_", "speaker_loadings_", "session_loadings_", "noise_precision_"])
@pytest.mark.parametrize("number", [-1e308, 1e200, 1e155, 1e101])
def test_numbers_too_large_to_compute_with(path, name, number):
    """Routines of LAPACK might never return from what comes of them."""
    tensors = load_file(path)
    tensors[f"plda.{name}"].flat[0] = number
    refused(rewritten(path, tensors), "damaged", f"{abs(number):.3g}")


def test_loadings_beside_which_there_is_no_noise(path):
    tensors = load_file(path)
    tensors["plda.speaker_loadings_"] *= 1e8
    refused(rewritten(path, tensors), "speaker_loadings has numbers", "times the standard deviation of the noise")


def test_priors_that_are_no_probabilities(path):
    tensors = load_file(path)
    tensors["plda.channel_priors_"] = np.array([1e-200])
    refused(rewritten(path, tensors), "damaged", "priors")


def test_missing_fields(path):
    for field in ("plda", "channels", "fit"):
        header = json.loads(metadata(path)["duoplda"])
        del header[field]
        broken = path.with_name(field)
        broken.write_bytes(path.read_bytes())
        refused(rewritten(broken, header=header), "damaged")


def test_wrong_trace(path):
    tensors = load_file(path)
    tensors["plda.log_likelihoods_"] = np.zeros((2, 2))
    refused(rewritten(path, tensors), "damaged")


def test_unreadable(tmp_path):
    refused(tmp_path / "nowhere", "cannot read", "No such file")
    refused(tmp_path, "is a folder")


# -- all or nothing ----------------------------------------------------------------------------------------------------


def only(folder, *names):
    assert sorted(p.name for p in folder.iterdir()) == sorted(names)


def test_no_such_folder(plda, tmp_path):
    with pytest.raises(DuopldaError, match=r"nowhere/model: its folder does not exist; create it first"):
        plda.save(tmp_path / "nowhere" / "model")
    only(tmp_path)


def test_file_in_place_of_a_folder(plda, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DuopldaError, match="file/model: not a directory"):
        plda.save(tmp_path / "file" / "model")
    only(tmp_path, "file")


def test_folder_in_place_of_the_file(plda, tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(DuopldaError, match="model: is a folder"):
        plda.save(tmp_path / "model")
    only(tmp_path, "model")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_permission(plda, path):
    before = path.read_bytes()
    path.parent.chmod(0o500)
    try:
        with pytest.raises(DuopldaError, match=r"(?i)model: permission denied"):
            plda.save(path, force=True)
    finally:
        path.parent.chmod(0o700)
    only(path.parent, path.name)
    assert path.read_bytes() == before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_folder_that_nobody_can_write(plda):
    with pytest.raises(DuopldaError, match=r"/proc/self/model: "):
        plda.save("/proc/self/model")


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on file sizes")
def test_full_disk(path):
    """The system refuses to write on: the old file stays as it was, and nothing is left beside it."""
    before = path.read_bytes()
    assert len(before) > 1000
    code = """
        import resource, sys
        from duoplda import PLDA, DuopldaError
        plda = PLDA.load(sys.argv[1])
        plda.mean_ = plda.mean_ + 1
        for limit in (1000, 100, 0):  # which may be lowered only
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            for name in sys.argv[1:]:
                try:
                    plda.save(name, force=True)
                except DuopldaError as error:
                    print(error)
        """
    command = [sys.executable, "-c", textwrap.dedent(code), str(path), str(path) + ".new"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == 3 * [f"{p}: file too large" for p in command[3:]]
    only(path.parent, path.name)
    assert path.read_bytes() == before


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=["full", "interrupt"]
)
def test_broken_off(plda, path, monkeypatch, step, error):
    """Whenever it happens: before the rename nothing has changed."""
    before = path.read_bytes()

    def broken(*args, **kwargs):
        raise error

    monkeypatch.setattr(os, step, broken)
    if isinstance(error, OSError):
        with pytest.raises(DuopldaError, match=r"model\.plda: no space left on device"):
            plda.save(path, force=True)
    else:
        with pytest.raises(KeyboardInterrupt):
            plda.save(path, force=True)
    monkeypatch.undo()
    only(path.parent, path.name)
    assert path.read_bytes() == before

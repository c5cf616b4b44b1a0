"""`info` shows what a model file says, and nothing in the file reaches the terminal as a command."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from cli_cases import done
from duoplda import PLDA
from duoplda.estimators.backend import Backend

# an escape sequence that sets the window's title, a C1 control that starts one, and a right-to-left override
HOSTILE = "\x1b]0;title\x07 \x9b31m \u202eabc\nsecond line"
SHOWN = "\\x1b]0;title\\x07 \\x9b31m \\u202eabc\\nsecond line"


@pytest.fixture
def model(tmp_path):
    """A model whose header says hostile things wherever a text can stand."""
    noise, priors = np.stack((np.eye(2), 2 * np.eye(2))), [0.5, 0.5]
    plda = PLDA.from_parameters(np.zeros((2, 2)), np.eye(2), None, noise, ["mic", "phone"], priors)
    plda.save(tmp_path / "plda")
    path = tmp_path / "model"
    Backend.load(tmp_path / "plda").save(path)
    with safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["duoplda"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    header["provenance"] = {"command": HOSTILE, "sha256": {HOSTILE: HOSTILE}, HOSTILE: "value"}
    header["channels"] = [HOSTILE, "phone"]
    save_file(arrays, path, {"duoplda": json.dumps(header)})
    return path


def test_texts_of_a_model_cannot_steer_the_terminal(model):
    text = done("info", model).stdout
    lines = text.splitlines()
    assert f"command: {SHOWN}" in lines
    assert f"sha256: {SHOWN} {SHOWN}" in lines
    assert f"{SHOWN}: value" in lines
    assert any(line.startswith(f"kind of channel {SHOWN}: ") for line in lines)
    assert not set(text) & set("\x1b\x07\x9b\u202e")


def test_json_is_whole_and_plain(model):
    text = done("info", model, "--json").stdout
    assert json.loads(text)["provenance"]["command"] == HOSTILE
    assert text.isascii()
    assert "\x1b" not in text

"""Files of cases, and the functions that they check."""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
CUT = {"shape": [4, 3], "cut": {"domain": 0}}


@pytest.fixture
def make_cases(tmp_path, monkeypatch):
    """Writes a file of cases, given as mappings; what they leave out is that of a right one.

    Functions of wrong_layers.py can be named without a path.
    """
    monkeypatch.syspath_prepend(FOLDER)

    def make(*cases, **defaults):
        path = tmp_path / "cases.yaml"
        path.write_text(
            json.dumps({"defaults": defaults, "cases": [_whole(case) for case in cases]})
        )
        return path

    return make


def _whole(case):
    case = {"name": "a", "inputs": [CUT], **case}
    if "module" not in case:
        case.setdefault("function", "right")
        path = case["function"]
        if isinstance(path, str) and path.isidentifier():
            case["function"] = f"wrong_layers.{path}"
    return {key: value for key, value in case.items() if value != "left out"}

import inspect
import subprocess
import sys

import numpy as np
import pytest

from neural_prep.errors import InputError
from neural_prep.writers.formats import Format, FormatOptions, find_format, write_formats

FORMATS = ["json", "neural_lam"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_found_by_its_name(name):
    found = find_format(name)
    assert found.__name__ == f"neural_prep.writers.{name}"
    for function in ("check", "render"):
        protocol = inspect.signature(getattr(Format, function))
        assert str(inspect.signature(getattr(found, function))) == str(protocol).replace(
            "self, ", ""
        )


@pytest.mark.parametrize(
    ("name", "known"),
    [
        pytest.param("neural-lam", "neural_lam, json", id="nearest-first"),
        pytest.param("jsn", "json, neural_lam", id="nearest-first-2"),
        pytest.param("atomic", "neural_lam, json", id="a-module-that-is-no-format"),
        pytest.param("os", "json, neural_lam", id="a-module-elsewhere"),
        pytest.param("", "json, neural_lam", id="empty"),
    ],
)
def test_an_unknown_format(name, known):
    message = f"^output.formats: '{name}' is not a format; use one of {known}$"
    with pytest.raises(InputError, match=message):
        find_format(name)


def test_only_the_format_asked_for_is_imported():
    program = (
        "import sys; from neural_prep.writers.formats import find_format; find_format('json'); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_weights_are_off_by_default():
    assert FormatOptions().parameter_weights is None


def test_files_of_an_earlier_run_are_named(two_pass, tmp_path, caplog):
    (tmp_path / "flux_stats.pt").write_bytes(b"old")
    statistics = two_pass.statistics(two_pass.group("state", [np.zeros((3, 2, 1))], [1]))
    write_formats(["json"], statistics, tmp_path, FormatOptions())
    (record,) = caplog.records
    assert f"{tmp_path / 'flux_stats.pt'} is an earlier run's" in record.getMessage()

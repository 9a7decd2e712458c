import io

import numpy as np
import pytest
from rich.console import Console

from neural_prep.engine.report import format_number, render, show

MEPS = [
    "pres_0g", "pres_0s", "nlwrs_0", "nswrs_0", "r_2", "r_65", "t_2", "t_65", "t_500", "t_850",
    "u_65", "u_850", "v_65", "v_850", "wvint_0", "z_1000", "z_500",
]  # fmt: skip
UNITS = [
    "Pa", "Pa", "W/m**2", "W/m**2", "-", "-", "K", "K", "K", "K",
    "m/s", "m/s", "m/s", "m/s", "kg/m**2", "m**2/s**2", "m**2/s**2",
]  # fmt: skip


@pytest.fixture
def statistics(two_pass):
    rng = np.random.default_rng(0)
    scale = 10.0 ** np.resize([5, 2, -3, 0], 17)
    state = scale * (2 + rng.normal(size=(9, 50, 17)))
    state[..., 2] = 101325.0
    state[..., 5] = np.nan
    flux = rng.normal(size=(9, 50, 1))
    return two_pass.statistics(
        two_pass.group("state", [state], [1, 3], MEPS, UNITS),
        two_pass.group("flux", [flux], [1, 3], ["toa_downwelling_shortwave_flux"], ["W/m**2"]),
        two_pass.group("static", [rng.normal(size=(1, 50, 2))], (), ["x", "y"], ["[m]", None]),
    )


def tables(page):
    """The lines of each table, header included, by blank-line blocks."""
    return [block.splitlines() for block in page.split("\n\n")]


def test_a_small_table(two_pass):
    trajectory = np.array([[[1.0, 5.0]], [[2.0, 5.0]], [[4.0, 5.0]]])  # (3, 1, 2)
    state = two_pass.group("state", [trajectory], [1], ["t_2", "z_500"], ["K", None])
    assert render(two_pass.statistics(state)) == (
        "state: 2 variables\n"
        "                                                  diff std\n"
        "variable  unit  count  missing     mean      std     lag 1\n"
        "──────────────────────────────────────────────────────────\n"
        "t_2       K         3        0  2.33333  1.24722  0.500000\n"
        "z_500               3        0  5.00000        0         0\n"
        "\n"
        "warning: state: z_500 is constant: every value is 5\n"
    )


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_fit_and_names_stay_whole(statistics, width):
    page = render(statistics, width)
    rows = [line for line in page.splitlines() if not line.startswith("warning")]
    assert max(map(len, rows)) <= width
    for name in (*MEPS, "toa_downwelling_shortwave_flux", "x", "y"):
        assert any(row.split()[:1] == [name] for row in rows)
    assert "…" not in page


@pytest.mark.parametrize("width", [80, 120])
def test_every_number_is_there_once(statistics, width):
    page = render(statistics, width)
    for group in statistics.groups:
        for array in (group.values.mean, group.values.std, *(p.std for _, p in group.differences)):
            for value in array[np.isfinite(array) & (array != 0)].tolist():
                number = format_number(value)
                assert page.split().count(number) == page.count(number) == 1 or value == 101325.0


def test_narrow_pages_repeat_the_names(statistics):
    state = [
        lines for lines in tables(render(statistics, 60)) if any("pres_0g" in x for x in lines)
    ]
    assert len(state) == 2
    assert state[0][1].split() == ["variable", "unit", "count", "missing"]
    assert [line.split()[0] for line in state[0][3:]] == MEPS
    assert [line.split()[0] for line in state[1][3:]] == MEPS


def test_wide_pages_have_one_table_for_each_group(statistics):
    blocks = tables(render(statistics, 120))
    assert [lines[0] for lines in blocks] == [
        "state: 17 variables",
        "flux: 1 variable",
        "static: 2 variables",
        "warning: state: nlwrs_0 is constant: every value is 101325",
    ]


def test_warnings_come_last_and_are_not_wrapped(statistics):
    lines = render(statistics, 40).splitlines()
    assert lines[-2:] == [
        "warning: state: nlwrs_0 is constant: every value is 101325",
        "warning: state: r_65 has no value: all 450 are missing",
    ]


def test_a_long_name_is_never_cut(two_pass):
    name = "a_very_long_name_" * 8
    group = two_pass.group("state", [np.arange(4.0).reshape(2, 2, 1)], [1], [name])
    assert name in render(two_pass.statistics(group), 80)


def test_counts_have_separators(two_pass):
    group = two_pass.group("state", [np.arange(4.0).reshape(2, 2, 1)])
    group.values.count[0] = 1234567890
    assert "  1,234,567,890  " in render(two_pass.statistics(group))


def test_brackets_are_text(statistics):
    assert "[m]" in render(statistics)


def test_a_terminal_gets_colour_and_others_plain_text(statistics):
    assert "\x1b" not in render(statistics)
    page = io.StringIO()
    show(statistics, Console(file=page, force_terminal=True, color_system="standard", width=80))
    assert "\x1b" in page.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (float("nan"), "-"),
        (101325.0, "101325"),
        (101325.4, "101325"),
        (273.15, "273.150"),
        (-1.0, "-1.00000"),
        (22642752.0, "2.26428e+07"),
        (2.5e-6, "2.50000e-06"),
        (0.000123456789, "0.000123457"),
    ],
)
def test_format_number(value, text):
    assert format_number(value) == text

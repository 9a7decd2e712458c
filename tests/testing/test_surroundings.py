"""What surrounds a run: a conftest's hooks, pytest's options, preloaded modules, outer runs."""

import pytest


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_markers_that_a_conftest_adds(run_tests, pytester, kind):
    pytester.makeconftest(f"""
        import pytest

        def pytest_collection_modifyitems(items):
            for item in items:
                item.add_marker(pytest.mark.multigpu_{kind})
        """)
    done = run_tests("def test_a(world): world.barrier()", f"--multigpu-{kind}")
    assert (done.status, done.outcomes) == (0, {"test_a": "passed"})


def test_no_time_limit_and_what_fixtures_do(run_tests):
    source = """
        import pytest

        @pytest.mark.multigpu_static(timeout=float("inf"))
        def test_a(world): world.barrier()
        """
    options = ("--multigpu-static", "--multigpu-timeout=inf", "--setup-show")
    done = run_tests(source, *options)
    assert (done.status, done.outcomes) == (0, {"test_a": "passed"})
    assert "SETUP    S world" in done.out


def test_a_module_that_cannot_be_preloaded(run_tests, pytester):
    pytester.makeini("[pytest]\nmultigpu_preload = nope.missing")
    source = "import pytest\n\n@pytest.mark.multigpu_static\ndef test_a(world): world.barrier()"
    done = run_tests(source, "--multigpu-static")
    assert done.status == 0
    assert "multigpu_preload: 'nope.missing' cannot be imported" in done.err


def test_a_run_inside_a_rank(run_tests, pytester):
    pytester.makepyfile(
        inner="""
        import pytest

        @pytest.mark.multigpu_static
        def test_inner(world): assert world.size == 2
        """
    )
    source = """
        import subprocess, sys
        import pytest

        @pytest.mark.multigpu_static
        def test_outer(world):
            inner = [sys.executable, "-m", "pytest", "--multigpu-static", "inner.py"]
            inner += ["-p", "no:cacheprovider", "--nproc-per-node", "2"]
            assert world.rank or subprocess.run(inner).returncode == 0
        """
    done = run_tests(source, "--multigpu-static", "--nproc-per-node", "2")
    assert done.outcomes == {"test_outer": "passed"}

"""Ranks that part company: seen at a test's end, or before it starts; never a deadlock."""

import pytest

HIDDEN = {
    "swallows_an_error": (
        """
        try:
            if RANK == 1:
                raise ValueError("swallowed")
            work = dist.all_reduce(torch.ones(()), async_op=True)
        except ValueError:
            pass
        """,
        ["group 0: 1 collectives on rank 0, 0 on rank 1"],
    ),
    "leaves_one_over": (
        """
        total()
        if RANK == 1:
            dist.all_reduce(torch.ones(()), async_op=True)
            dist.all_reduce(torch.ones(()), async_op=True)
        """,
        ["collectives on rank 0", "on rank 1"],
    ),
    "sends_what_nobody_takes(world)": (
        """
        if RANK == 0:
            dist.isend(torch.ones(1), 1)
        """,
        ["group 0: 1 message sent from rank 0 to rank 1, 0 received"],
    ),
    "in_a_subgroup": (
        """
        pair = dist.new_group([0, 1])
        assert total() == 2
        if RANK == 0:
            dist.all_reduce(torch.ones(()), group=pair, async_op=True)
        """,
        ["1 collectives on rank 0, 0 on rank 1"],
    ),
}


def test_hidden_divergence(run_cases):
    done = run_cases(HIDDEN)
    for name in done.failed:
        text = done.texts[name]
        assert text.startswith("the ranks left the test at different points: "), name


AGREE = """
def test_group_without_the_others():
    if RANK in (1, 2):
        own = dist.new_group([1, 2], use_local_synchronization=True)
        dist.barrier(own)

def test_sends_and_receives():
    if RANK == 0:
        dist.send(torch.ones(()), 1)
        dist.send(torch.ones(()), 1)
        dist.send(torch.ones(()), 2)
    elif RANK < 3:
        for _ in range(3 - RANK):
            dist.recv(torch.ones(()), 0)
    assert total() == dist.get_world_size()

def test_receives_from_anyone():
    if RANK == 0:
        dist.recv(torch.ones(()))
    elif RANK == 1:
        dist.send(torch.ones(()), 0)

def test_sends_in_a_batch():
    right, left = (RANK + 1) % 3, (RANK - 1) % 3
    if RANK < 3:
        sends = [dist.P2POp(dist.isend, torch.ones(()), right)]
        receives = [dist.P2POp(dist.irecv, torch.ones(()), left)]
        for work in dist.batch_isend_irecv(sends + receives):
            work.wait()

def test_group_of_some():
    some = dist.new_group([0, 2])
    if RANK in (0, 2):
        dist.all_reduce(torch.ones(()), group=some)
        if RANK == 0:
            dist.send(torch.ones(()), 2, group=some)
        else:
            dist.recv(torch.ones(()), 0, group=some)

def test_group_is_made_and_destroyed():
    pair = dist.new_group([0, 1])
    if RANK < 2:
        dist.barrier(pair)
    dist.destroy_process_group(pair)

def test_groups_of_a_mesh(distributed_mesh_2d):
    ones = torch.ones(())
    dist.all_reduce(ones, group=distributed_mesh_2d.get_group("axis2"))
    assert ones == 2
    if distributed_mesh_2d.get_coordinate()[0] == 0:
        dist.all_reduce(ones, group=distributed_mesh_2d.get_group("axis2"))

def test_objects():
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, RANK)
    assert found == list(range(dist.get_world_size()))

def test_all_destroy_the_world():
    dist.barrier()
    dist.destroy_process_group()

def test_a_new_world():
    assert total() == dist.get_world_size()
"""


@pytest.mark.parametrize("ranks", [3, 4])
def test_ranks_that_agree(run_static, ranks):
    done = run_static(AGREE, ranks=ranks)
    expected = dict.fromkeys(done.outcomes, "passed")
    if ranks == 3:
        expected["test_groups_of_a_mesh"] = "skipped"
        reason = "3 ranks are no mesh with two axes longer than 1"
        assert reason in done.texts["test_groups_of_a_mesh"]
    assert (done.outcomes, len(done.outcomes)) == (expected, 10)


OPEN = {
    "is_skipped_on_one": (
        """
        if RANK == 1:
            pytest.skip("not here")
        total()
        """,
        [
            "skipped on some ranks alone: "
            "rank 0 was still running at test_it.py:12 in total, in all_reduce; "
            "rank 1: skipped (not here)",
        ],
    ),
    "is_skipped_on_one_without_a_collective": (
        "if RANK == 0: pytest.skip('not here')",
        ["skipped on some ranks alone: rank 0: skipped (not here); rank 1: passed"],
    ),
    "imports_on_one": (
        "pytest.importorskip('json' if RANK else 'no_such_module')",
        ["rank 0: skipped (could not import 'no_such_module'", "rank 1: passed"],
    ),
    "fails_and_skips": (
        """
        if RANK == 1:
            pytest.skip("not here")
        raise ValueError("bad")
        """,
        ["on rank 0: ValueError: bad", "rank 1: skipped (not here)"],
    ),
}


def test_open_divergence_of_skips(run_cases):
    run_cases(OPEN, "--multigpu-grace", 0.5)


COLLECTED = """
@pytest.mark.parametrize("name", ["a", "b"] if RANK < 1 else ["a", "c"])
def test_rank_1_has_another(name): assert total() == 2

@pytest.mark.parametrize("name", ["a"] if RANK == 0 else ["a", "b"])
def test_rank_0_has_fewer(name): assert total() == 2

@pytest.mark.parametrize("name", [f"made on {RANK}"])
def test_all_differ(name): assert total() == 2

def test_next(): assert total() == 2
"""
SAID = {
    "test_rank_1_has_another[b]": [
        "rank 0 collected it too; its tests: test_it.py::test_rank_1_has_another[a], ",
        "rank 1 did not collect it; its tests: test_it.py::test_rank_1_has_another[a], ",
    ],
    "test_rank_0_has_fewer[b]": ["rank 0 did not collect it", "rank 1 collected it too"],
    "test_all_differ[made on -1]": ["rank 0 did not collect it", "rank 1 did not collect it"],
}
STRANGERS = {
    "test_rank_1_has_another[c]: collected on rank 1, not by the session that leads the ranks",
    "test_all_differ[made on 0]: collected on rank 0, not by the session that leads the ranks",
    "test_all_differ[made on 1]: collected on rank 1, not by the session that leads the ranks",
}


def test_different_collections(run_static):
    done = run_static(COLLECTED)
    assert done.status == 1
    well = ["test_rank_1_has_another[a]", "test_rank_0_has_fewer[a]", "test_next"]
    assert {name for name, outcome in done.outcomes.items() if outcome == "passed"} == set(well)
    for name, texts in SAID.items():
        assert "the ranks collected different tests" in done.texts[name]
        assert [text for text in texts if text not in done.texts[name]] == []
    assert [text for text in STRANGERS if text not in done.out] == []


def test_modules_that_are_not_the_same(run_static, pytester):
    static = "import os\nimport pytest\npytestmark = pytest.mark.multigpu_static\n"
    on_one = "if os.environ.get('RANK') == '1':\n    "
    pytester.makepyfile(
        test_sound=f"{static}def test_sound(world): world.barrier()",
        test_nowhere=f"{static}pytest.skip('nowhere', allow_module_level=True)",
        test_skipped=f"{static}{on_one}pytest.skip('not on 1', allow_module_level=True)\n"
        "def test_skipped(world): world.barrier()",
    )
    done = run_static(f"{on_one}import no_such_module\ndef test_it(): total()")
    wanted = {"test_it": "error", "test_skipped": "error", "test_sound": "passed"}
    assert {name: done.outcomes[name] for name in wanted} == wanted
    for name in ("test_it", "test_skipped"):
        assert "rank 1 did not collect it" in done.texts[name]
    assert "rank 1 could not collect test_it.py:" in done.texts["test_it"]
    assert "No module named 'no_such_module'" in done.texts["test_it"]
    assert "rank 1 skipped test_skipped.py: not on 1" in done.texts["test_skipped"]
    assert "1 passed, 1 skipped, 3 errors in" in done.lines[-1]  # one is of collecting test_it.py


def test_a_conftest_that_only_ranks_cannot_import(run_static, pytester):
    pytester.makeconftest("import os\nif os.environ.get('RANK') == '1':\n    import no_such_module")
    done = run_static("def test_it(): pass\ndef test_other(): pass")
    assert done.outcomes == {"test_it": "error", "test_other": "error"}
    assert "rank 1 " in done.texts["test_it"]
    assert "No module named 'no_such_module'" in done.texts["test_it"]

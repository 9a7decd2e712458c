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
NAMES = {names}

@pytest.mark.parametrize("name", NAMES)
def test_named(name):
    assert total() == 2

def test_next():
    assert total() == 2
"""
DIFFER = {
    "rank 1 has another": (
        "['a', 'b' if RANK < 1 else 'c']",
        {"test_named[a]": "passed", "test_named[b]": "error", "test_next": "passed"},
    ),
    "rank 0 has fewer": (
        "['a'] if RANK == 0 else ['a', 'b']",
        {"test_named[a]": "passed", "test_named[b]": "error", "test_next": "passed"},
    ),
    "ranks have others than the leader": (
        "['x' if RANK < 0 else f'y{RANK}']",
        {"test_named[x]": "error", "test_next": "passed"},
    ),
}


@pytest.mark.parametrize(("names", "outcomes"), DIFFER.values(), ids=DIFFER)
def test_different_collections(run_static, names, outcomes):
    done = run_static(COLLECTED.format(names=names))
    assert {name: done.outcomes.get(name) for name in outcomes} == outcomes
    text = "".join(done.texts.values())
    assert "the ranks collected different tests" in text
    assert "rank 0 " in text
    assert "rank 1 " in text
    assert done.status == 1


def test_a_conftest_that_only_ranks_cannot_import(run_static, pytester):
    pytester.makeconftest("import os\nif os.environ.get('RANK') == '1':\n    import no_such_module")
    done = run_static("def test_it(): pass\ndef test_other(): pass")
    assert done.outcomes == {"test_it": "error", "test_other": "error"}
    assert "rank 1 " in done.texts["test_it"]
    assert "No module named 'no_such_module'" in done.texts["test_it"]


def test_a_module_that_only_one_rank_cannot_import(run_static, pytester):
    pytester.makepyfile(
        test_sound="import pytest\n@pytest.mark.multigpu_static\ndef test_sound(): 1"
    )
    done = run_static("if RANK == 1: import no_such_module\ndef test_it(): pass")
    assert done.outcomes["test_it"] == "error"
    assert done.outcomes["test_sound"] == "passed"
    assert "rank 1 could not collect test_it.py:" in done.texts["test_it"]
    assert "No module named 'no_such_module'" in done.texts["test_it"]

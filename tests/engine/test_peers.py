"""What ranks tell one another beside their collectives."""

import pytest

from neural_prep.engine.peers import Peers


@pytest.mark.multigpu_static
@pytest.mark.parametrize("size", [0, 1, 4_000_000, 20_000_001])
def test_all_ranks_hear_what_one_tells(world, size):
    peers = Peers()
    content = bytes(range(256)) * (size // 256 + 1)
    if world.rank == world.size - 1:
        peers.tell("words", content[:size])
    assert peers.hear("words", lambda: None) == content[:size]


@pytest.mark.multigpu_static
def test_each_run_counts_anew(world):
    for _ in range(3):
        peers = Peers()
        peers.count("blocks", world.rank + 1)
        peers.wait_for_all("counted", lambda: None)
        assert peers.count("blocks") == world.size * (world.size + 1) // 2
        world.barrier()

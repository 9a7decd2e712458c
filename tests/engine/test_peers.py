"""What ranks tell one another beside their collectives."""

import pytest

from neural_prep.engine.peers import Peers, is_lost


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


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[pair.cc:525] Read error: Connection reset by peer"), True),
        (RuntimeError("Gloo connectFullMesh failed with timed out connecting"), True),
        (RuntimeError("CUDA error: out of memory"), False),
        (OSError("Connection reset by peer"), False),
    ],
    ids=["while they meet in a collective", "while they meet at first", "another", "no rank's"],
)
def test_a_lost_peer_is_known_by_what_gloo_says(error, lost):
    assert is_lost(error) == lost

"""What ranks tell one another beside their collectives."""

import pytest

from neural_prep.engine.peers import PeerFailedError, Peers, is_lost


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


def two_ranks(monkeypatch):
    """Two ranks' views through one store, in one process."""
    pair = Peers(), Peers()
    for rank, peers in enumerate(pair):
        peers.rank, peers.ranks, peers._store = rank, 2, pair[0]._store
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return pair


class StoppedError(Exception):
    """What a signal raises."""


def test_a_rank_that_stops_while_it_waits_stops_the_last_one_to_come(monkeypatch):
    last, waiting = two_ranks(monkeypatch)

    def stop():
        waiting.fail(75, "stopped by SIGUSR1")
        raise StoppedError

    signals = iter([lambda: None, stop])  # before it says that it is there, and after
    with pytest.raises(StoppedError):
        waiting.wait_for_all("done", lambda: next(signals)())
    with pytest.raises(PeerFailedError, match="stopped by SIGUSR1") as failed:
        last.wait_for_all("done", lambda: None)
    assert failed.value.status == 75


def test_a_signal_that_has_come_ends_a_rank_before_it_says_that_it_is_there(monkeypatch):
    last, _ = two_ranks(monkeypatch)

    def stop():
        raise StoppedError

    with pytest.raises(StoppedError):
        last.wait_for_all("done", stop)
    assert last.count("done") == 0


def test_what_broke_a_collective_is_found_without_a_watcher(monkeypatch):
    lost, failed = two_ranks(monkeypatch)
    failed.fail(75, "stopped by SIGTERM")
    cause = lost.explain(RuntimeError("Connection closed by peer"))
    assert (cause.status, cause.note) == (75, "stopped by SIGTERM")


@pytest.mark.multigpu_static
def test_many_lines(world):
    lines = [f"{world.rank} {number} {'x' * 70}" for number in range(150_000)]  # 12 MB
    peers = Peers()
    peers.share(lines if world.rank == 0 else [])
    peers.wait_for_all("shared", lambda: None)
    assert len(peers.shared()) == 150_000
    peers.wait_for_all("read", lambda: None)


def test_a_rank_that_gives_no_sign_of_life_is_given_up(monkeypatch):
    first, silent = two_ranks(monkeypatch)
    now = iter(range(0, 10_000, 3))
    monkeypatch.setattr("time.monotonic", lambda: float(next(now)))
    here, there = first._beat(), silent._beat()
    for _ in range(50):  # both are there, for two and a half minutes
        next(here)
        next(there)
    first._look()
    first.check()
    for _ in range(30):
        next(here)
    first._look()
    with pytest.raises(PeerFailedError, match="rank 1 has given no sign of life for 60 s") as found:
        first.check()
    assert found.value.shared

"""What attention promises besides its values: memory, masked queries, precision, one derivative."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from neural_prep.sharding import ShardTensor

pytestmark = pytest.mark.multigpu_static


def normal(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Largest(TorchDispatchMode):
    """Remembers the largest ordinary tensor that an operation has returned."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor) and not isinstance(each, ShardTensor):
                self.elements = max(self.elements, each.numel())
        return result


@pytest.mark.parametrize("causal", [False, True])
def test_no_rank_forms_the_scores_of_all_keys(distributed_mesh, causal):
    length, mesh = 5000, distributed_mesh
    full = normal(length, 2, dtype=torch.float32)
    local = ShardTensor.scatter(full, mesh, {"domain": 0})
    leaves = [ShardTensor.from_local(local.local.clone(), local.sharding) for _ in range(3)]
    with Largest() as largest:
        shards = [each.requires_grad_() for each in leaves]
        F.scaled_dot_product_attention(*shards, is_causal=causal).full().sum().backward()
    rows = -(-length // mesh.size())
    assert largest.elements <= rows * 1024


def test_queries_that_see_nothing_give_zeros(distributed_mesh):
    mask = torch.tensor([[True, False, True], [False, False, False], [True, True, False]])
    full = normal(2, 3, 4).requires_grad_()
    shard = ShardTensor.scatter(full, distributed_mesh, {"domain": 1})
    keys = ShardTensor.scatter(normal(2, 3, 4, seed=1), distributed_mesh, {"domain": 1})
    result = F.scaled_dot_product_attention(shard, keys, keys, mask).full()
    result.sum().backward()
    assert torch.equal(result[:, 1], torch.zeros(2, 4, dtype=torch.float64))
    assert torch.equal(full.grad[:, 1], torch.zeros(2, 4, dtype=torch.float64))
    assert result.isfinite().all()
    assert full.grad.isfinite().all()
    assert full.grad[:, 0].abs().min() > 0


def test_second_derivatives_are_refused(distributed_mesh):
    full = normal(2, 7, 4).requires_grad_()
    shard = ShardTensor.scatter(full, distributed_mesh, {"domain": 1})
    result = F.scaled_dot_product_attention(shard, shard, shard).full()
    if distributed_mesh.size() == 1:
        pytest.skip("a lone rank calls torch's own attention")
    with pytest.raises(NotImplementedError, match="has one derivative"):
        torch.autograd.grad(result.square().sum(), full, create_graph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_precision(distributed_mesh, dtype):
    full, mask = normal(2, 9, 4, dtype=dtype), normal(9, 9, dtype=dtype, seed=1)
    shard = ShardTensor.scatter(full, distributed_mesh, {"domain": 1})
    found = F.scaled_dot_product_attention(shard, shard, shard, mask).full()
    exact = F.scaled_dot_product_attention(*[full.double()] * 3, mask.double())
    assert found.dtype == dtype
    # Scores and sums are formed in 32 bits at least: only the result is rounded.
    assert (found - exact).abs().max() <= torch.finfo(dtype).eps * max(1.0, exact.abs().max())


@pytest.mark.parametrize("need_weights", [False, True])
def test_inference_leaves_the_fast_path(distributed_mesh, need_weights):
    layer = nn.MultiheadAttention(8, 2, dtype=torch.float64).eval()
    full = normal(7, 3, 8)
    shard = ShardTensor.scatter(full, distributed_mesh, {"domain": 0})
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(normal(*parameter.shape, seed=2))
        expected = layer(full, full, full, need_weights=need_weights)[0]
        found = layer(shard, shard, shard, need_weights=need_weights)[0]
    assert torch.allclose(found.full(), expected, rtol=0, atol=1e-12)


def test_torch_s_fused_layers_are_refused(distributed_mesh):
    shard = ShardTensor.scatter(normal(2, 7, 8), distributed_mesh, {"domain": 1})
    weight, bias = normal(24, 8), normal(24)
    with pytest.raises(NotImplementedError, match="_native_multi_head_attention"):
        torch._native_multi_head_attention(
            *(shard, shard, shard, 8, 2, weight, bias, weight[:8], bias[:8])
        )


def test_an_embedding_names_an_index_out_of_range_on_every_rank(distributed_mesh):
    indices = torch.zeros(7, dtype=torch.int64)
    indices[6] = 9
    shard = ShardTensor.scatter(indices, distributed_mesh, {"domain": 0})
    with pytest.raises(IndexError, match="index 9 is out of range; the table has 5 rows"):
        F.embedding(shard, normal(5, 2))

"""Right or refused: every alias of what is there, and the same clear refusal of what is not."""

import pytest
import torch

from neural_prep.sharding import ShardTensor
from neural_prep.sharding.registry import aliases, version_of

FAMILIES = {
    "convolution": "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d pad",
    "pooling": "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d "
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
    "normalisation": "layer_norm group_norm instance_norm batch_norm rms_norm",
    "attention": "scaled_dot_product_attention multi_head_attention_forward",
    "linear algebra": "linear bilinear matmul mm bmm mv dot einsum embedding",
    "reductions": "sum mean var std amax amin norm vector_norm prod logsumexp argmax argmin all "
    "any",
    "Fourier transforms": "fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 hfft2 ihfft2 "
    "fftn ifftn rfftn irfftn hfftn ihfftn fftshift ifftshift stft istft",
    "losses": "mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits kl_div poisson_nll_loss gaussian_nll_loss "
    "hinge_embedding_loss margin_ranking_loss cosine_embedding_loss triplet_margin_loss "
    "triplet_margin_with_distance_loss multilabel_margin_loss multilabel_soft_margin_loss "
    "multi_margin_loss nll_loss cross_entropy pairwise_distance",
    "shapes": "view reshape flatten unflatten permute transpose squeeze unsqueeze expand repeat "
    "unbind",
    "slicing": "select narrow split split_with_sizes chunk tensor_split hsplit vsplit dsplit "
    "unsafe_split unsafe_split_with_sizes unsafe_chunk diagonal __getitem__ narrow_copy "
    "select_copy",
    "joining": "cat concat concatenate stack hstack vstack row_stack dstack column_stack meshgrid "
    "cartesian_prod",
    "moving": "flip fliplr flipud roll rot90 tril triu repeat_interleave diag diag_embed diagflat "
    "trace kron __reversed__",
    "padding and resampling": "pad interpolate pixel_shuffle pixel_unshuffle channel_shuffle "
    "native_channel_shuffle grid_sample affine_grid fold im2col col2im",
    "elementwise": "add sub mul div pow exp log sin tanh sigmoid relu gelu silu where clamp "
    "maximum minimum eq lt logical_and dropout bernoulli rand_like",
    "softmax": "softmax log_softmax softmin gumbel_softmax glu",
    "scans": "cumsum cumprod cummax cummin logcumsumexp diff gradient trapezoid trapz "
    "cumulative_trapezoid",
    "sorting": "sort argsort msort topk kthvalue median nanmedian mode quantile nanquantile",
    "searching": "bucketize searchsorted isin histc bincount",
    "distances": "cosine_similarity pairwise_distance dist cdist",
    "indexing": "index_select gather take_along_dim take one_hot index_add index_copy index_fill "
    "index_reduce index_put put scatter scatter_add scatter_reduce",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_alias_has_a_sharded_version(family):
    for name in FAMILIES[family].split():
        assert all(version_of(function) is not None for function in aliases(name)), name


@pytest.mark.multigpu_static
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("linalg_svd", torch.linalg.svd),
        ("linalg_inv", torch.linalg.inv),
        ("linalg_cholesky", torch.linalg.cholesky),
        ("linalg_eigvals", torch.linalg.eigvals),
        ("histogram", lambda x: torch.histogram(x, 4)),
    ],
)
def test_a_refusal_names_the_operation_and_the_cut(distributed_mesh, name, call):
    x = ShardTensor.scatter(torch.rand(4, 4), distributed_mesh, {"domain": 1})
    with pytest.raises(
        NotImplementedError, match=f"^{name} of a tensor that is cut dim 1 along dom"
    ):
        call(x)

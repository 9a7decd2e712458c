"""Functions of torch by name: what is asked of a tensor as a whole, and what gives views of it.

Views are by name, not by memory: whether pieces share memory may differ from rank to rank.
"""

from __future__ import annotations

# Answered by the wrapper, which has the global shape and the graph.
_METADATA = (
    "shape dtype device layout requires_grad requires_grad_ grad grad_fn is_leaf ndim names size "
    "dim ndimension numel nelement is_floating_point is_complex is_signed is_cuda is_cpu "
    "is_sparse is_quantized is_meta is_mkldnn is_mps is_xpu is_nested element_size itemsize "
    "nbytes __len__ __hash__ register_hook register_post_accumulate_grad_hook retain_grad "
    "retains_grad _backward_hooks _post_accumulate_grad_hooks _version output_nr "
    "get_device is_inference _is_view is_conj is_neg _is_zerotensor is_contiguous stride "
    "is_same_size _base detach clone result_type"
)
# What comes out is no tensor.
_VALUES = "item tolist numpy __bool__ __float__ __int__ __index__ __complex__"
_VIEWS = (
    "view view_as reshape reshape_as flatten unflatten ravel permute transpose transpose_ t T H "
    "mT mH adjoint swapaxes swapdims movedim moveaxis squeeze unsqueeze expand expand_as "
    "broadcast_to broadcast_tensors atleast_1d atleast_2d atleast_3d unbind unsafe_chunk "
    "unsafe_split unsafe_split_with_sizes chunk split split_with_sizes tensor_split hsplit vsplit "
    "dsplit narrow select slice __getitem__ __iter__ diagonal unfold as_strided view_as_real "
    "view_as_complex real imag conj detach alias data meshgrid positive align_to align_as "
    "refine_names rename squeeze_copy linalg_diagonal"
)

METADATA = frozenset(_METADATA.split())
VALUES = frozenset(_VALUES.split())
VIEWS = frozenset(_VIEWS.split())


def is_view(name: str) -> bool:
    """Whether results may share the argument's memory.

    >>> is_view("transpose"), is_view("add")
    (True, False)
    """
    return name in VIEWS

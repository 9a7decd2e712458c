"""Cut channels of a convolution: groups are divided among ranks, or sums over channels are partial.

With several groups every group is one rank's whole: the cut moves to where groups end, and output
channels are cut as the groups are. With one group each rank has a part of the sum over input
channels, and the output is not cut along that axis of the mesh.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from neural_prep.sharding.layout import Cut, Layout
from neural_prep.sharding.windows import shares


@dataclass(frozen=True, slots=True)
class Channels:
    """How a convolution's channels are divided.

    Attributes:
        layout: The input's, as the work needs it.
        axis: The mesh axis that cuts input channels; None: there is none.
        inputs: How it cuts them.
        outputs: How it cuts output channels; None: all ranks have parts of each sum.
        groups: Number of this rank's groups.
    """

    layout: Layout
    axis: int | None
    inputs: Cut | None
    outputs: Cut | None
    groups: int

    @property
    def partial(self) -> bool:
        """Whether each rank has only a part of each sum."""
        return self.axis is not None and self.outputs is None

    def weight_layout(self, *, transposed: bool) -> Layout:
        """How the weight is needed."""
        if self.axis is None or self.inputs is None:
            return Layout.replicated(self.layout.mesh)
        # (out, in / groups, ...), transposed (in, out / groups, ...)
        whole = self.inputs if transposed or self.outputs is None else self.outputs
        cut = Cut(0 if transposed or self.outputs is not None else 1, whole.sizes)
        return Layout.replicated(self.layout.mesh).with_cut(self.axis, cut)

    def bias_layout(self) -> Layout:
        """How the bias is needed."""
        plain = Layout.replicated(self.layout.mesh)
        if self.axis is None or self.outputs is None:
            return plain
        return plain.with_cut(self.axis, Cut(0, self.outputs.sizes))

    def bias_work(self) -> Layout:
        """Along which axes adding the bias is divided: partial sums are added up before."""
        if self.axis is None or self.outputs is not None:
            return self.layout
        return self.layout.with_cut(self.axis, None)

    def output_layout(self) -> Layout:
        """The output's, as far as channels are concerned."""
        return self.layout if self.axis is None else self.layout.with_cut(self.axis, self.outputs)


def divide_channels(layout: Layout, dim: int, outputs: int, groups: int) -> Channels:
    """Decides how channels are divided.

    Args:
        layout: The input's.
        dim: Its dimension of channels.
        outputs: Number of output channels.
        groups: Number of groups of channels.
    """
    axis = layout.axis_of(dim)
    cut = None if axis is None else layout.cuts[axis]
    if axis is None or cut is None:
        return Channels(layout, None, None, None, groups)
    if groups == 1:
        return Channels(layout, axis, cut, None, 1)
    size = cut.total // groups
    share = shares(cut.sizes, _middles(groups, size))
    ends = list(accumulate(share, initial=0))
    assert ends[-1] == groups
    inputs = Cut(dim, tuple(own * size for own in share))
    sizes = tuple(own * (outputs // groups) for own in share)
    rank = layout.rank(axis)
    return Channels(layout.with_cut(axis, inputs), axis, inputs, Cut(dim, sizes), share[rank])


def _middles(groups: int, size: int) -> Tensor:
    return torch.arange(groups) * size + (size - 1) // 2

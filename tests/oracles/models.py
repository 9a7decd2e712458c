"""Small whole models as they are written for one process: nothing here knows of ranks.

B batch, C channels, H height, W width (a longitude, which is circular), T tokens, N nodes, E edges.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn


class DoubleConv(nn.Module):
    """Two convolutions with group norm; the longitude goes round, poles repeat their last row."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3)
        self.norm = nn.GroupNorm(2, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3)

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W)
        x = F.gelu(self.norm(self.first(self.around(x))))
        return F.gelu(self.second(self.around(x)))

    def around(self, x: Tensor) -> Tensor:
        """One more row and column on each side."""
        x = F.pad(x, (1, 1, 0, 0), mode="circular")
        return F.pad(x, (0, 0, 1, 1), mode="replicate")


class UNet(nn.Module):
    """Two levels; what was skipped is joined with what comes up, resized to fit odd sizes."""

    def __init__(self, channels: int = 3, width: int = 4) -> None:
        super().__init__()
        self.down = DoubleConv(channels, width)
        self.bottom = DoubleConv(width, 2 * width)
        self.up = DoubleConv(3 * width, width)
        self.head = nn.Conv2d(width, channels, 1)

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W)
        skipped = self.down(x)
        deep = self.bottom(F.max_pool2d(skipped, 2))
        size = tuple(skipped.shape[-2:])
        raised = F.interpolate(deep, size=size, mode="bilinear", align_corners=False)
        return x + self.head(self.up(torch.cat([skipped, raised], 1)))


class ViTBlock(nn.Module):
    """Patches, attention of all tokens with each other, an MLP, and back to pixels."""

    def __init__(self, channels: int = 3, patch: int = 2, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.patch = heads, patch
        self.embed = nn.Conv2d(channels, width, patch, stride=patch)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.unembed = nn.ConvTranspose2d(width, channels, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W)
        grid = self.embed(x)
        tokens = grid.flatten(2).transpose(1, 2)  # (B, T, width)
        tokens = tokens + self.attend(self.first(tokens))
        tokens = tokens + self.mlp(self.second(tokens))
        return self.unembed(tokens.transpose(1, 2).reshape(grid.shape))

    def attend(self, tokens: Tensor) -> Tensor:
        """Every token looks at all of them."""
        parts = self.qkv(tokens).chunk(3, -1)
        query, key, value = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in parts)
        found = F.scaled_dot_product_attention(query, key, value)  # (B, heads, T, width / heads)
        return self.out(found.transpose(1, 2).flatten(2))


class FourierBlock(nn.Module):
    """Complex weights on the lowest modes, beside a pointwise convolution."""

    def __init__(self, channels: int = 3, modes: int = 3) -> None:
        super().__init__()
        self.modes = modes
        shape = (2, channels, channels, modes, modes)
        self.weight = nn.Parameter(torch.randn(*shape, 2) / channels)
        self.skip = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W)
        height, width = x.shape[-2:]
        spectrum = torch.fft.rfft2(x)
        weight, modes = torch.view_as_complex(self.weight), self.modes
        low = torch.einsum("bihw,iohw->bohw", spectrum[:, :, :modes, :modes], weight[0])
        high = torch.einsum("bihw,iohw->bohw", spectrum[:, :, -modes:, :modes], weight[1])
        middle = torch.zeros_like(spectrum[:, :, modes:-modes, :modes])
        kept = torch.cat([low, middle, high], 2)
        kept = F.pad(kept, (0, spectrum.shape[-1] - modes))
        return F.gelu(torch.fft.irfft2(kept, s=(height, width)) + self.skip(x))


class ConvNeXtBlock(nn.Module):
    """A depthwise 7 x 7 convolution, then a pointwise MLP with a scale for each channel."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.wide, self.narrow = (
            nn.Linear(channels, 4 * channels),
            nn.Linear(4 * channels, channels),
        )
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.narrow(F.gelu(self.wide(y))) * self.scale
        return x + y.permute(0, 3, 1, 2)


class MessagePassing(nn.Module):
    """Messages along the edges of a mesh, summed at the nodes that they reach."""

    def __init__(self, channels: int = 3, width: int = 4) -> None:
        super().__init__()
        self.message = nn.Sequential(
            nn.Linear(2 * channels + 1, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.update = nn.Sequential(
            nn.Linear(channels + width, width), nn.SiLU(), nn.Linear(width, channels)
        )
        self.norm = nn.LayerNorm(channels)

    def forward(self, nodes: Tensor, edges: Tensor, source: Tensor, target: Tensor) -> Tensor:
        # nodes (N, C), edges (E, 1), source and target (E,)
        messages = self.message(torch.cat([nodes[source], nodes[target], edges], -1))
        zeros = torch.zeros_like(nodes[:, :1]).expand(-1, messages.shape[-1])
        summed = zeros.index_add(0, target, messages)
        return nodes + self.norm(self.update(torch.cat([nodes, summed], -1)))

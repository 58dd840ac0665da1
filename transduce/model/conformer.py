"""The Conformer layer: self-attention and convolution between two halves of a feed-forward."""

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from transduce.model.config import TransformerConfig
from transduce.model.inputs import zero_padding
from transduce.model.layers import FeedForward, Layer, Sublayer, norm
from transduce.taps import Taps


class ConvolutionModule(nn.Module):
    """A gated linear map, a depthwise convolution over time, norm, Swish, and another linear map.

    The norm is that of the other sublayers, over the channels of one position, and not the paper's
    BatchNorm. So an utterance gets the same result whatever its batch, and training and decoding
    compute the same. Padding is set to zero before the convolution, which looks to its right.

    Source: Gulati et al. (2020), section 2.2.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        d, kernel = config.d_model, config.conformer_kernel
        self.pointwise = nn.Linear(d, 2 * d, bias=config.bias)
        self.depthwise = nn.Conv1d(d, d, kernel, padding=kernel // 2, groups=d, bias=config.bias)
        self.norm = norm(config)
        self.output = nn.Linear(d, d, bias=config.bias)

    def forward(
        self, x: Float[Tensor, "N T D"], lengths: Int[Tensor, " N"] | None = None
    ) -> Float[Tensor, "N T D"]:
        """The same number of positions, each having seen conformer_kernel // 2 on either side."""
        channels = zero_padding(F.glu(self.pointwise(x)), lengths).transpose(1, 2)
        return self.output(F.silu(self.norm(self._depthwise(channels).transpose(1, 2))))

    def _depthwise(self, channels: Float[Tensor, "N D T"]) -> Float[Tensor, "N D T"]:
        """Convolve a plane of height 1, for which PyTorch has a fast CPU kernel."""
        conv = self.depthwise
        if (
            conv.groups <= 16
        ):  # so few in bf16 make that kernel run for ever (PyTorch 2.11, more than 32 positions)
            return conv(channels)
        plane, weight, half = (
            channels[:, :, None],
            conv.weight[:, :, None],
            conv.kernel_size[0] // 2,
        )
        return F.conv2d(plane, weight, conv.bias, padding=(0, half), groups=conv.groups)[:, :, 0]


class ConformerLayer(Layer):
    """Half a feed-forward, self-attention, convolution, half a feed-forward, each residual; a norm.

    Positions are those of the other layers: rotary ones are relative, as the paper's are.

    Source: Gulati et al. (2020), Conformer: Convolution-augmented Transformer for speech
    recognition.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, causal=False, cross=False)
        self.first_feed_forward = FeedForward(config)
        self.first_feed_forward_sublayer = Sublayer(config)
        self.convolution = ConvolutionModule(config)
        self.convolution_sublayer = Sublayer(config)
        self.norm = norm(config)

    def forward(
        self,
        x: Float[Tensor, "N T D"],
        *,
        lengths: Int[Tensor, " N"] | None = None,
        rotation: Float[Tensor, "2 T P"] | None = None,
        taps: Taps | None = None,
        **_: Any,
    ) -> Float[Tensor, "N T D"]:
        """One layer of an encoder; the arguments are those of `Layer`."""
        x = self.first_feed_forward_sublayer(x, lambda y: self.first_feed_forward(y) / 2)
        x = self.attention_sublayer(x, lambda y: self.attention(y, lengths, None, rotation, taps))
        x = self.convolution_sublayer(x, lambda y: self.convolution(y, lengths))
        return self.norm(self.feed_forward_sublayer(x, lambda y: self.feed_forward(y) / 2))

"""The number of floats that an architecture carries from one position to the next."""

from bayesgeom.core.errors import unknown_name
from bayesgeom.models.config import ModelConfig

KNOWN = ("transformer", "llama", "lstm", "mamba", "mamba2", "rwkv", "mlp")


def state_floats(config: ModelConfig, n_pos: int) -> int:
    """Count the floats that a model stores after reading a sequence, in addition to its parameters.

    Args:
        config: Config of the model.
        n_pos: Number of tokens read. Only a transformer's cache of keys and values and an MLP's prefix grow with it.

    Returns:
        Number of floats: keys and values of all layers, or states and the inputs kept by convolutions and token shifts.

    Raises:
        UnknownName: The state size of this architecture is not known.

    Example:
        >>> from bayesgeom.models.native.lstm import LSTMConfig
        >>> state_floats(LSTMConfig(d_vocab=7, n_ctx=5, n_layers=2, d_model=192), n_pos=37)
        768
    """
    sizes = config.to_dict()
    name, depth, width = str(sizes["architecture"]), int(sizes["n_layers"]), int(sizes["d_model"])
    match name:
        case "transformer":
            return 2 * n_pos * width * depth
        case "llama":
            return 2 * n_pos * int(sizes["n_kv_heads"]) * (width // int(sizes["n_heads"])) * depth
        case "lstm":
            return 2 * width * depth
        case "mamba":
            return depth * int(sizes["expand"]) * width * (int(sizes["d_state"]) + int(sizes["d_conv"]) - 1)
        case "mamba2":  # its convolution also runs over B and C
            d_inner, d_state = int(sizes["expand"]) * width, int(sizes["d_state"])
            return depth * (d_inner * d_state + (int(sizes["d_conv"]) - 1) * (d_inner + 2 * d_state))
        case "rwkv":  # numerator, denominator and exponent of the average, and the last input of both mixes
            return 5 * width * depth
        case "mlp":  # per position: no state; prefix: its ids are the state
            return n_pos if sizes["context"] == "prefix" else 0
        case _:
            raise unknown_name("architecture with a known state size", name, KNOWN)

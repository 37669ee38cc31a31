"""Settings of torch for the whole process that change numbers: refused, or recorded in the provenance."""

import torch

from bayesgeom.core.errors import InvalidArgument


def check_default_device() -> None:
    """Check that torch creates tensors on the CPU unless a device is named.

    Raises:
        InvalidArgument: Another default device is set.

    Example:
        >>> with torch.device("meta"):
        ...     check_default_device()
        Traceback (most recent call last):
        bayesgeom.core.errors.InvalidArgument: torch's default device is meta: reset it with torch.set_default_device(None), or leave the block of torch.device, and pass device=… to load instead.
    """  # noqa: E501  (one message)
    device = torch.get_default_device()
    if device.type != "cpu":
        raise InvalidArgument(
            f"torch's default device is {device}: reset it with torch.set_default_device(None), or leave the block of "
            f"torch.device, and pass device=… to load instead."
        )


def reduced_precision() -> str:
    """Return the precision to which torch may reduce products of float32 matrices, by backend; "" if it may not.

    Example:
        >>> reduced_precision()
        ''
    """
    set_for = {
        "all": torch.backends.fp32_precision,  # type: ignore[attr-defined]  # torch does not annotate it
        "cuda": torch.backends.cuda.matmul.fp32_precision,
        "cpu": torch.backends.mkldnn.matmul.fp32_precision,  # type: ignore[attr-defined]  # nor this
    }
    return ", ".join(f"{value} ({name})" for name, value in set_for.items() if value not in ("none", "ieee"))

"""Options of `load` that are passed on to Hugging Face's loaders."""

from collections.abc import Mapping
from typing import Any

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.text import shown

SOURCE = ("revision", "token", "local_files_only")  # of every file that is fetched
PLACEMENT = ("device_map", "max_memory", "quantization_config", "attn_implementation")  # of the model alone
SERVER = ("server_key", "top")  # of an inference server alone
_SECRET, _COUNTS = ("token", "server_key"), ("batch_size", "top")
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "revision": ((str,), "text"),
    "token": ((str, bool), "text"),
    "server_key": ((str,), "text"),
    "top": ((int,), "a positive integer"),
    "local_files_only": ((bool,), "True or False"),
    "device_map": ((str, dict, int), "text or a mapping of modules to devices"),
    "max_memory": ((dict,), "a mapping of devices to memory, such as {0: '20GiB', 'cpu': '64GiB'}"),
    "attn_implementation": ((str,), "text"),
    "quantization_config": ((object,), ""),
    "batch_size": ((int,), "a positive integer"),
}


def check_options(options: Mapping[str, Any]) -> None:
    """Check names and types of the options. The values of `token` and `server_key` are never part of a message.

    Raises:
        InvalidArgument: An option is unknown, or of another type.
    """
    for name, value in options.items():
        if name not in _KINDS:
            raise InvalidArgument(
                f"load has no option {name!r}. It has: device, dtype, tokenizer, memory_gib, {', '.join(_KINDS)}."
            )
        kinds, allowed = _KINDS[name]
        is_count = name not in _COUNTS or (type(value) is int and value > 0)
        if value is not None and not (isinstance(value, kinds) and is_count):
            got = f"a {type(value).__name__}" if name in _SECRET else shown(value)
            raise InvalidArgument(f"{name} must be {allowed}, got {got}.")

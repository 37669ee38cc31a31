"""Conversion of names, paths and modules to a `Model`, and of text to a task; the folder of shipped checkpoints."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bayesgeom.core import (
    Ask,
    CheckpointFault,
    InvalidArgument,
    TaskMismatch,
    Tokenizer,
    UnknownName,
    check_argument,
    checked,
    phase,
)
from bayesgeom.core.errors import quoted, with_plain_integers
from bayesgeom.core.files import read_json
from bayesgeom.core.plugins import field_names
from bayesgeom.core.run import is_untrained, untrained_seed
from bayesgeom.core.torch_state import check_default_device, structure_of, uncompiled
from bayesgeom.models.adapters.hooked import of_native
from bayesgeom.models.adapters.lens import LensModel
from bayesgeom.models.adapters.wrapping import from_callable, of_module_alone
from bayesgeom.models.base import Model, Reattachable, check_memory_gib
from bayesgeom.models.captured.model import CapturedModel, is_capture
from bayesgeom.models.checkpoint import Checkpoint, load_checkpoint, weights_hash
from bayesgeom.models.checkpoint_files import (
    CONFIG,
    OURS,
    WEIGHTS,
    checkpoints,
    is_hub_name,
    path_of,
)
from bayesgeom.models.config import architectures
from bayesgeom.models.huggingface.loading import (
    FETCHING,
    gguf_in,
    load_adapter,
    load_gguf,
    load_huggingface,
    load_tokenizer,
)
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.models.huggingface.peft_adapter import is_adapter, unwrapped
from bayesgeom.models.native.wrapped import Wrapped
from bayesgeom.models.served.client import is_address
from bayesgeom.models.served.model import SERVER, supported
from bayesgeom.tasks.base import (
    FUNCTIONS,
    TextTask,
    WindTunnel,
    check_draws,
    check_text,
    task_from_text,
    task_kinds,
)
from bayesgeom.tasks.prompts import BoundPrompts

ModelLike = Model | Checkpoint | nn.Module | Callable[[Tensor], Any] | str | Path
TaskLike = WindTunnel | TextTask | str | Sequence[str]  # the last: prompts
_AT_A_TIME = 32  # prompts per forward pass
_COUNTS = ("batch_size", "top")
_OPTIONS = (
    *("revision", "token", "server_key", "top", "local_files_only", "base_url", "device_map", "max_memory"),
    *("attn_implementation", "quantization_config", "batch_size"),
)


@checked("name", "tokenizer", "options")
def load(
    name: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    tokenizer: Tokenizer | str | Path | None = None,
    trust_remote_code: bool = False,
    memory_gib: float | None = None,
    **options: Any,
) -> Model:
    """Load a shipped checkpoint, a checkpoint directory, or any Hugging Face causal language model.

    It also accepts a directory written by `capture`, a PEFT adapter, or the address of an inference server. A GGUF
    file, or a directory that contains one, is dequantized, and its tokenizer is loaded (`pip install
    '.[gguf]'` in the clone).

    Args:
        name: Name of a shipped checkpoint, a directory, a GGUF file, owner/name on the Hugging Face hub, or the address
            of an OpenAI-compatible server, http://HOST:PORT/v1.
        device: Where to run: "cpu", "cuda", … Captures and servers take only the default.
        dtype: Precision of a Hugging Face model. Default: the checkpoint's own; float32 for GGUF.
        tokenizer: A tokenizer, or the directory, GGUF file or hub name of one. Default: the model's own, if it has one.
        trust_remote_code: Whether to run code that comes with the model. Pickles are never read.
        memory_gib: Memory in GiB for activations that one run may store. Default: a share of the free memory.
        **options: By what is loaded.

            - Everything: `batch_size`, most sequences in a forward pass.
            - Shipped checkpoints: `base_url`, a folder of checkpoints from which missing weights are fetched.
            - Hugging Face models: `revision`, `token`, `local_files_only`, `device_map`, `max_memory`,
              `quantization_config` and `attn_implementation`, as for `from_pretrained`.
            - Tokenizers: `token`, `local_files_only`; `revision` if the model is a server or has the same name.
            - Servers: `server_key`, the key, and `top`, the number of most probable tokens to request (20).

    Returns:
        The model, with its task if known.

    Raises:
        UnknownName: There is no checkpoint of this name, and no such directory.
        CheckpointFault: The checkpoint cannot be read or fetched, or is corrupt.
        InvalidArgument: The device does not exist or would have no effect, or it is not a causal language model, or
            torch's default device is not the CPU.

    Example:
        >>> import bayesgeom
        >>> bayesgeom.load("mess3-small").spec.n_layers
        3
    """
    if not isinstance(name, str | Path):
        raise InvalidArgument(f"name must be a checkpoint's name or a path, got {quoted(name)}.")
    check_argument("tokenizer", tokenizer, str | Path if isinstance(tokenizer, str | Path) else Tokenizer | None)
    check_default_device()
    check_device(device)
    check_memory_gib(memory_gib)
    options = with_plain_integers(options)
    check_options(options)
    batch_size = options.pop("batch_size", None)
    with phase(f"loading {name}"):
        model = _loaded(name, options | {"dtype": dtype}, tokenizer, device=device, trust_remote_code=trust_remote_code)
    model.memory_gib, model.batch_size = memory_gib, batch_size
    return model


def _loaded(
    name: str | Path,
    options: dict[str, Any],
    tokenizer: Tokenizer | str | Path | None,
    *,
    device: str | torch.device,
    trust_remote_code: bool,
) -> Model:
    options = {option: value for option, value in options.items() if value is not None}
    # A revision names a state of one repository: another repository's tokenizer does not have it.
    names = [*FETCHING] if is_address(name) or str(tokenizer) == str(name) else [n for n in FETCHING if n != "revision"]
    read: Any = tokenizer
    if isinstance(tokenizer, str | Path):
        if not os.path.exists(tokenizer) and not is_hub_name(tokenizer):  # noqa: PTH110  (as below)
            raise UnknownName(
                f"there is no tokenizer {quoted(str(tokenizer))}: name a directory or a GGUF file by its path, or "
                f"owner/name on the hub."
            )
        fetched = {n: options[n] for n in names if n in options}
        read = load_tokenizer(tokenizer, fetched, trust_remote_code=trust_remote_code)
    if is_address(name):
        _require_cpu(device, f"{name} computes where its server runs")
        is_fetched = isinstance(tokenizer, str | Path)
        given = {n: value for n, value in options.items() if not (is_fetched and n in FETCHING)}
        return supported(str(name), read, given)
    if wrong := [n for n in SERVER if n in options]:
        raise InvalidArgument(f"{', '.join(wrong)} is for the address of an inference server; {name} is none.")
    if (base_url := options.pop("base_url", None)) is not None and str(name) not in checkpoints():
        raise InvalidArgument(f"base_url is for shipped checkpoints; {name} is none.")
    if (path := path_of(name, base_url=base_url)) is not None:
        model = _from_path(path, options, device=device, trust_remote_code=trust_remote_code)
    else:
        model = load_huggingface(str(name), options, device=device, trust_remote_code=trust_remote_code)
    return _with_tokenizer(model, read)


def check_names(task: object = None, models: Sequence[object] = ()) -> set[str] | None:
    """Check a task and the names of models before any model is loaded, as far as that needs no model.

    Args:
        task: A task-like value; None for the model's own.
        models: Models, of which names and paths are checked.

    Returns:
        The names of the task's parameters; None if no task is given.

    Raises:
        UnknownName: There is no such task or checkpoint.
        InvalidArgument: It is no task, or the task has no such parameter.
    """
    for name in models:
        if isinstance(name, str | Path) and not is_address(name):
            path_of(name)
    if isinstance(task, str):
        return check_text(task)
    if task is None:
        return None
    chosen = as_task(task, trained=None)
    if FUNCTIONS in vars(chosen):
        return set()  # its functions have no parameters that could be varied
    inner = [value for value in vars(chosen).values() if isinstance(value, WindTunnel)]
    return {*field_names(type(chosen)), *(name for part in inner for name in field_names(type(part)))}


def model_for(model: ModelLike, task: object) -> Model:
    """Return `as_model(model)`, after both names are checked by `check_names`."""
    check_names(task, [model])
    return as_model(model)


def _from_path(path: Path, options: Mapping[str, Any], *, device: str | torch.device, trust_remote_code: bool) -> Model:
    """Load a GGUF file, a capture, one of bayesgeom's own checkpoints, or a directory of Hugging Face's form."""
    if is_capture(path):
        if given := _given(options):
            raise InvalidArgument(f"{', '.join(given)} is for Hugging Face models; {path} is a capture.")
        _require_cpu(device, f"{path} is a capture, which is read on the CPU")
        return CapturedModel(path)
    if (file := gguf_in(path)) is not None:
        if wrong := [option for option in _given(options) if option not in ("dtype", "device_map")]:
            raise InvalidArgument(f"{', '.join(wrong)} is for models on the Hugging Face hub; {file.name} is one file.")
        return load_gguf(file, dtype=options.get("dtype"), device=device, device_map=options.get("device_map"))
    if is_adapter(path):
        return load_adapter(path, options, device=device, trust_remote_code=trust_remote_code)
    if not path.is_dir():
        raise CheckpointFault(
            f"{path} is a file; a checkpoint is a directory of {WEIGHTS} and {CONFIG}, or a *.gguf file."
        )
    if not _is_foreign(path):
        if given := _given(options):
            raise InvalidArgument(f"{', '.join(given)} is for Hugging Face models; {path.name} is bayesgeom's own.")
        return from_checkpoint(load_checkpoint(path, device=device))
    return load_huggingface(path, options, device=device, trust_remote_code=trust_remote_code)


def _require_cpu(device: str | torch.device, reason: str) -> None:
    """Refuse any other device than the default, for models that compute nothing here."""
    if torch.device(device).type != "cpu":
        raise InvalidArgument(f"device {quoted(str(device))} has no effect: {reason}. Leave it out.")


def _given(options: Mapping[str, Any]) -> list[str]:
    """The options that a model without Hugging Face's loader cannot take. A token may be set for all models."""
    return [option for option in options if option != "token"]


def check_options(options: Mapping[str, Any]) -> None:
    """Check the names of the options, and that numbers are positive integers.

    Raises:
        InvalidArgument: An option is unknown, or such a number is none.
    """
    for name, value in options.items():
        if name not in _OPTIONS:
            raise InvalidArgument(
                f"load has no option {name!r}. It has: device, dtype, tokenizer, memory_gib, {', '.join(_OPTIONS)}."
            )
        if name in _COUNTS and value is not None and not (type(value) is int and value > 0):
            raise InvalidArgument(f"{name} must be a positive integer, got {quoted(value)}.")


def check_device(device: str | torch.device) -> None:
    """Check that torch can put a tensor on this device.

    Raises:
        InvalidArgument: It cannot.
    """
    check_argument("device", device, str | torch.device)
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidArgument(f"device {quoted(str(device))} cannot be used here ({reason}); use cpu.") from error


@checked("model")
def as_model(model: ModelLike, tokenizer: Tokenizer | None = None) -> Model:
    """Return the `Model` of a name, a path or a module.

    Args:
        model: A `Model`, a checkpoint's name or directory, a module built from a `ModelConfig`, a Hugging Face causal
            language model, a model of transformer-lens, nnsight or nnterp, or any causal module or function of token
            ids. Parts of your own module are found as by `bayesgeom.wrap`, which also takes their names.
        tokenizer: The model's tokenizer, which text tasks and prompts need. The result has it; `model` is not changed.

    Returns:
        The model, ready to be measured. It shares the weights of `model`.

    Raises:
        InvalidArgument: It is something else, or it already has another tokenizer.

    Example:
        >>> import bayesgeom
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=7, n_layers=2, n_heads=2, d_model=8, d_mlp=16)
        >>> bayesgeom.as_model(config.build(seed=0))
        HookedModel(transformer, 2 layers, 2 heads, d_model 8, 1.25k parameters)
    """
    check_default_device()
    match model:
        case Model():
            resolved = _current(model)
        case str() | Path():
            resolved = load(model)
        case Checkpoint():
            resolved = _current(from_checkpoint(model))
        case _:
            resolved = _of_object(model)
    return _with_tokenizer(resolved, tokenizer)


_FIRST_SEEN: "WeakKeyDictionary[Model, str]" = WeakKeyDictionary()


def _current(model: Model) -> Model:
    """The model, attached again if its weights or parts were changed in place since it was attached.

    Hashing is the only way to notice that: no counter of torch's changes with `parameter.data`.
    """
    if Ask.RERUN not in model.asks:  # there are no weights here
        return model
    if not isinstance(model, Reattachable):
        digest = weights_hash(model.module.state_dict())
        if _FIRST_SEEN.setdefault(model, model.spec.weights_hash if model.spec.is_identified else digest) != digest:
            raise InvalidArgument(
                f"the weights of {model.spec.name} are not those of its spec: they were changed, or its weights_hash "
                f"is not that of bayesgeom.models.checkpoint.weights_hash(module.state_dict()). Make a new "
                f"{type(model).__name__} of the module."
            )
        return model
    digest, known = model.digest(), model.spec.weights_hash
    if is_untrained(model.spec):
        built = model.untrained_copy(untrained_seed(model.spec))
        known = digest if isinstance(built, Reattachable) and built.digest() == digest else ""
    if digest == known and structure_of(model.module) == model.structure:
        return model
    attached = model.attached_again(digest)
    attached.task, attached.tokenizer = model.task, model.tokenizer
    attached.batch_size, attached.memory_gib = model.batch_size, model.memory_gib
    return attached


def _with_tokenizer(own: Model, tokenizer: Tokenizer | None) -> Model:
    if tokenizer is None or own.tokenizer is tokenizer:
        return own
    if own.tokenizer is not None:
        raise InvalidArgument(f"{own.spec.name} already has a tokenizer: omit `tokenizer`.")
    own = copy(own)  # of the adapter: the module inside is the same
    own.tokenizer = tokenizer
    return own


def _of_object(model: Any) -> Model:
    """The adapter of a module that bayesgeom, Hugging Face, transformer-lens or a plug-in built."""
    if isinstance(model, type):
        raise InvalidArgument(f"got the class {model.__name__}: pass an instance of it.")
    if "nnsight" in sys.modules:  # a model of nnsight or nnterp holds the module that it traces
        from nnsight import Envoy

        if isinstance(model, Envoy):
            return _with_tokenizer(_of_object(model._module), vars(model).get("tokenizer"))  # noqa: SLF001
    model = unwrapped(uncompiled(model) if isinstance(model, nn.Module) else model)
    # transformer-lens imports transformers itself, but no models of it, which take seconds and write warnings.
    if "transformers.modeling_utils" in sys.modules:
        from transformers import PreTrainedModel

        if isinstance(model, PreTrainedModel):
            return HFModel(model)
    if type(model).__name__ in ("TransformerBridge", "HookedTransformer"):
        return LensModel(model)
    if callable(model) and not isinstance(model, nn.Module):
        return from_callable(model)
    return of_module(model)


def from_checkpoint(checkpoint: Checkpoint) -> Model:
    """Return the model of a loaded checkpoint, with its name, task and hash."""
    return of_module(checkpoint.module, name=checkpoint.name, task=checkpoint.task, digest=checkpoint.weights_hash)


def of_module(
    module: Any, *, name: str | None = None, task: WindTunnel | None = None, digest: str | None = None
) -> Model:
    """Return the model of a module, built from a `ModelConfig` or any other.

    Raises:
        InvalidArgument: It is no module, or no causal one of token ids.
    """
    known: dict[str, Any] = {"task": task, "digest": digest}
    if isinstance(module, Wrapped):
        return HFModel(module.whole, name=name or module.config.name, rebuild=module.rebuilt, **known)
    if (adapter := of_native(module, name=name, **known)) is not None:
        return adapter
    for kind in architectures().values() if isinstance(module, nn.Module) else ():
        if (adapter := kind.adapter(module, name=name, **known)) is not None:
            return adapter
    if isinstance(module, nn.Module) and name is None:
        return of_module_alone(module)
    raise InvalidArgument(
        f"cannot diagnose a {type(module).__name__}: pass a checkpoint's name or directory, bayesgeom.load(…), a "
        f"module built from a bayesgeom ModelConfig, a Hugging Face model, a model of transformer-lens, or your own "
        f"module or function of token ids."
    )


def as_task(task: object, *, trained: WindTunnel | None) -> WindTunnel | TextTask:
    """Return the task of a task-like value.

    Args:
        task: A task, a task as text as on the command line ("hmm:length=20"), or a list of prompts.
        trained: The model's own task, which supplies parameters that the text omits.

    Raises:
        InvalidArgument: It is something else.
    """
    if isinstance(task, str):
        return task_from_text(task, trained=trained)
    if isinstance(task, Sequence) and task and all(isinstance(text, str) for text in task):
        prompts: Any = task_kinds()["prompts"][0]
        return cast("TextTask", prompts(texts=tuple(task)))
    if not isinstance(task, WindTunnel | TextTask):
        raise InvalidArgument(
            f"task must be an instance such as tasks.HMM(length=20), text such as 'hmm:length=20', or a list of "
            f"prompts; got {quoted(task)}."
        )
    return task


def task_of(model: Model, task: TaskLike | None) -> WindTunnel:
    """Return the task to measure on: the given one, or else the task of the model.

    A text task is bound to the model's tokenizer. For a task that selects sequences by the model's predictions, the
    model is run on all sequences first.

    Args:
        model: The model.
        task: A task-like value. None: the task on which the model was trained.

    Raises:
        InvalidArgument: No task is known, a text task has no tokenizer, or autocast is on.
        TaskMismatch: Task and model have different vocabularies.
    """
    model.check_surroundings()
    given = model.task if task is None else as_task(task, trained=model.task)
    if given is None:
        raise InvalidArgument(
            f"{model.spec.name} does not state its training task: pass task=… (--task), one of "
            f"{', '.join(sorted(task_kinds()))}."
        )
    chosen = _bound(model, given) if isinstance(given, TextTask) else given
    check_draws(chosen)
    if isinstance(chosen, BoundPrompts) and chosen.per_quintile:
        everything = chosen.in_order(device=model.spec.device)
        run = model.run(everything.batches(at_most=_AT_A_TIME))
        return chosen.select(run.behavior.model_entropy_bits[:, -1], per_quintile=chosen.per_quintile)
    if model.task is not None and chosen.d_vocab != model.task.d_vocab:
        raise TaskMismatch(
            f"{chosen} has {chosen.d_vocab} ids; {model.spec.name} was trained on {model.task}, which has "
            f"{model.task.d_vocab}: ids would have different meanings. Leave task=… (--task) out for the "
            f"model's own task, or use parameters that keep the vocabulary."
        )
    return chosen


def scored_task_of(model: Model, task: TaskLike | None) -> WindTunnel:
    """Return `task_of`, for measurements that need an exact posterior.

    Raises:
        TaskMismatch: The task has no exact posterior. Errors of `task_of` propagate.
    """
    chosen = task_of(model, task)
    if not chosen.has_posterior:
        raise TaskMismatch(
            f"this measurement requires a task with an exact posterior; {chosen} has none, because the posterior of "
            f"ordinary text is unknown. Use evidence, a wind tunnel, or a wind tunnel in context such as "
            f"bijection-in-context. `diagnose` measures attention and geometry on any texts."
        )
    return chosen


def _bound(model: Model, task: TextTask) -> WindTunnel:
    if model.tokenizer is None:
        raise InvalidArgument(
            f"task {task.name!r} is text, and {model.spec.name} has no tokenizer: load a directory that contains "
            f"one, or name one with --tokenizer (Python: as_model(model, tokenizer=…))."
        )
    return task.bind(model.tokenizer, d_vocab=model.spec.d_vocab)


def _is_foreign(path: Path) -> bool:
    """Whether a directory's config is Hugging Face's and not bayesgeom's."""
    try:
        config = read_json(path / CONFIG)
    except (OSError, CheckpointFault):
        return False  # `load_checkpoint` reports the error
    return isinstance(config, dict) and "model_type" in config and OURS not in config

"""Publication of a checkpoint on the Hugging Face hub: a model card and an upload."""

import shutil
import tempfile
from pathlib import Path

from bayesgeom.core import InvalidArgument, OutputFault, checked, phase
from bayesgeom.models.checkpoint import load_checkpoint
from bayesgeom.models.checkpoint_files import CARD, CONFIG, WEIGHTS, is_hub_name, missing_file
from bayesgeom.models.fetching import without_login

MODEL_CARD = "README.md"  # which the hub shows


@checked("token")
def publish(directory: str | Path, *, repo: str, private: bool = False, token: str | None = None) -> str:
    """Upload a checkpoint to the Hugging Face hub, with a model card.

    The card, README.md in the repository, is the text of card.md, after the fields that the hub reads and with the
    lines that load the checkpoint. Only the files of the checkpoint are uploaded; the directory stays as it is.

    Args:
        directory: Directory of a checkpoint, such as runs/train/NAME/checkpoint. It is loaded strictly first.
        repo: owner/name of the repository. It is created if it does not exist.
        private: Whether a new repository is private.
        token: A token that may write there. Default: that of `hf auth login`.

    Returns:
        The address of the upload.

    Raises:
        CheckpointFault: The directory is no checkpoint, or a damaged one.
        InvalidArgument: The name of the repository has another form.
        OutputFault: The card cannot be written, or the hub cannot be reached or gives no permission.

    Example:
        >>> import bayesgeom
        >>> bayesgeom.publish("runs/train/mess3-small/checkpoint", repo="mess3")
        Traceback (most recent call last):
        bayesgeom.core.errors.InvalidArgument: repo must have the form owner/name, got 'mess3'.
    """
    if not is_hub_name(repo):
        raise InvalidArgument(f"repo must have the form owner/name, got {repo!r:.60}.")
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of the library that it uses

    path = Path(directory)
    load_checkpoint(path)
    try:
        card = _model_card(path, repo)
    except FileNotFoundError as error:
        raise missing_file(path / CARD) from error
    api = HfApi(token=token)
    with phase(f"publishing {repo}"):
        try:
            api.create_repo(repo, private=private, exist_ok=True)
            with tempfile.TemporaryDirectory() as folder:  # a file of the user's may have the name of the hub's card
                for name in (WEIGHTS, CONFIG, CARD):
                    shutil.copyfile(path / name, Path(folder) / name)
                (Path(folder) / MODEL_CARD).write_text(card, encoding="utf-8")
                return str(api.upload_folder(repo_id=repo, folder_path=folder))
        except (OSError, HTTPError, ValueError, AttributeError, LookupError, RecursionError, TypeError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise OutputFault(
                f"{path} cannot be published as {repo}: {without_login(reason)}. Log in by `hf auth login` with a "
                f"token that may write there, or pass token=…."
            ) from error


def _model_card(path: Path, repo: str) -> str:
    """The text of the card, with the fields that the hub reads at its top."""
    name = repo.partition("/")[2]
    return f"""---
library_name: bayesgeom
tags:
- bayesgeom
- interpretability
---
{(path / CARD).read_text(encoding="utf-8")}
## How to use it

```python
import bayesgeom
from huggingface_hub import snapshot_download

model = bayesgeom.load(snapshot_download("{repo}", local_dir="{name}"))
print(bayesgeom.diagnose(model).answer)
```
"""

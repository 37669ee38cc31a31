"""What a build carries of checkpoints/: what describes each, and the weights of a few; the rest is fetched."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGSHIPS = ("bijection-v20", "hmm-s5")  # of the README, and of what most commands are shown with
SMALL_BYTES = 700_000  # the weights of a checkpoint up to this size are in the wheel, which stays below 25 MB


def carried(checkpoints: Path) -> list[Path]:
    """Return the files of weights that a build carries."""
    files = sorted(checkpoints.glob("*/model.safetensors"))
    return [file for file in files if file.parent.name in FLAGSHIPS or file.stat().st_size <= SMALL_BYTES]


class CarriedWeights(BuildHookInterface):
    """Adds to a wheel and a source distribution the weights that `pyproject.toml` excludes from both."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            home = "bayesgeom/_checkpoints" if self.target_name == "wheel" else "checkpoints"
            for file in carried(Path(self.root) / "checkpoints"):
                build_data["force_include"][str(file)] = f"{home}/{file.parent.name}/{file.name}"

"""What a build carries of checkpoints/: what describes each, and the weights of a few; the rest is fetched."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGSHIPS = ("bijection-v20", "hmm-s5", "mess3-small")  # what the README and most pages show
SMALL_BYTES = 700_000  # of other weights
CARRIED_BYTES = 24_500_000  # of all: 24.4 MB of a wheel, which stays below 25


def carried(checkpoints: Path) -> list[Path]:
    """Return the files of weights that a build carries: the flagships, and small ones while there is room."""
    files = {file.parent.name: file for file in sorted(checkpoints.glob("*/model.safetensors"))}
    chosen = [files.pop(name) for name in FLAGSHIPS if name in files]
    total = sum(file.stat().st_size for file in chosen)
    for file in sorted(files.values(), key=lambda file: file.stat().st_size):
        size = file.stat().st_size
        if size <= SMALL_BYTES and (total := total + size) <= CARRIED_BYTES:
            chosen.append(file)
    return chosen


class CarriedWeights(BuildHookInterface):
    """Adds to a wheel and a source distribution the weights that `pyproject.toml` excludes from both."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            home = "bayesgeom/_checkpoints" if self.target_name == "wheel" else "checkpoints"
            for file in carried(Path(self.root) / "checkpoints"):
                build_data["force_include"][str(file)] = f"{home}/{file.parent.name}/{file.name}"

"""An extension of griffe: the section "Example" of a docstring becomes "Examples", whose code is shown as code."""

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Rename the section in every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section in the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("Example:\n", "Examples:\n")

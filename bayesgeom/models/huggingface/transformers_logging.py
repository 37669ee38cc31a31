"""Suppression of transformers' log messages and progress bars; bayesgeom reports problems as errors."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Suppress transformers' log messages below errors inside the block."""
    from transformers.utils import logging

    former = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(former)


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """Suppress transformers' progress bars inside the block."""
    from transformers.utils import logging

    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()

"""transformers without its own words and bars: what it would say is found out and said by us, as errors."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Without its log messages below errors."""
    from transformers.utils import logging

    former = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(former)


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """Without its progress bars: nothing prints outside the command line."""
    from transformers.utils import logging

    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()

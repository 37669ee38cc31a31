"""What everything stands on: sites, trials, runs, edits, errors, files and plug-ins."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Functions on arrays: information, scores, intervals, resampling, axes, overlaps, clusters, read-outs, observers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

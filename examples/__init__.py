"""Examples that use `bayesgeom`; they are no part of the installed package."""

"""The commands, one file each: arguments and action. `bayesgeom.cli` parses them."""

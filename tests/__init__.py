"""The test suite; a package, so that tests can share modules by name."""

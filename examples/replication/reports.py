"""The study's kinds of reports. Saved reports of these kinds can be loaded once this module is imported."""

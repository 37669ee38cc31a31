"""Selftest: check every probe, and the interventions on planted networks, against known answers on this machine."""

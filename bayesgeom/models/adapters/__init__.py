"""From modules with hook points to models with sites, and the proof that the sites are right."""

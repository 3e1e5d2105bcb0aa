"""The other end: registries that are fed by events alone, and are complete all the same."""

"""The embedded parts, so that one machine is enough. In production each of them is a URL in the settings."""

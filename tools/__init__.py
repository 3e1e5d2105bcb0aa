"""What the make targets `lock` and `sbom` run. Not part of the package."""

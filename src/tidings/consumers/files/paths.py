"""What a key says about its file: `bio_network/atlas-name/folder-type/filename`. No I/O."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from tidings.consumers.files.refusals import Invalid

SOURCE_DATASET = "source_dataset"
FILE_TYPES = {
    "source-datasets": SOURCE_DATASET,
    "integrated-objects": "integrated_object",
    "manifests": "ingest_manifest",
}
"""By folder."""
_ATLAS = re.compile(r"(.+)-v(0|[1-9][0-9]{0,8})(?:-(0|[1-9][0-9]{0,8}))?")
_FORM = "network/atlas-name/folder/filename"


class Atlas(NamedTuple):
    """How to find an atlas: `gut-v1` of the network `gut` is the short name `gut`, version `1.0`, which some write as `1`."""

    network: str
    short_name: str
    version: str
    short_version: str
    """Without the decimal, if that is zero; else the same."""


class Classified(NamedTuple):
    file_type: str
    atlas: str
    """As the key has it: `network/atlas-name`, which `parse_atlas` can read."""


def classify(key: str) -> Classified:
    """What kind of file it is and of which atlas, or `Invalid`. The folder decides; the file's name may be anything."""
    folder, slash, name = key.rpartition("/")
    if not slash or not name:
        raise Invalid(f"Invalid S3 key format: {key[:300]!r} is not {_FORM}")
    return _of_folder(folder)


@lru_cache(maxsize=4096)  # millions of files are in a few folders
def _of_folder(folder: str) -> Classified:
    parts = folder.split("/")
    if len(parts) != 3 or not all(parts):
        raise Invalid(f"Invalid S3 key format: a key below {folder[:300]!r} is not {_FORM}")
    network, atlas_name, folder_type = parts
    file_type = FILE_TYPES.get(folder_type)
    if file_type is None:
        raise Invalid(f"Unknown folder type {folder_type[:100]!r}: it is one of {', '.join(FILE_TYPES)}")
    atlas = f"{network}/{atlas_name}"
    parse_atlas(atlas)
    return Classified(file_type, atlas)


def parse_atlas(atlas: str) -> Atlas:
    """`gut/gut-v1` is version 1.0, `eye/retina-v1-1` is 1.1. The last `-v` counts: a short name may have one of its own."""
    network, _, name = atlas.partition("/")
    match = _ATLAS.fullmatch(name)
    if match is None:
        raise Invalid(f"Invalid S3 key format: the atlas name {name[:100]!r} is not SHORTNAME-vX or SHORTNAME-vX-Y")
    short_name, major, minor = match.groups()
    version = f"{major}.{minor or 0}"
    return Atlas(network, short_name, version, version.removesuffix(".0"))

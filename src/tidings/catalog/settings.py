from __future__ import annotations

from pydantic import BaseModel, Field


class CatalogSettings(BaseModel, frozen=True, extra="forbid"):
    """The versioned catalog, with Nessie's REST API."""

    events: bool = Field(True, description="whether changes of the catalog are events: without, nobody is told of them")
    default_branch: str = Field("main", min_length=1, description="the branch that a new repository begins with")
    anonymous_project: str = Field(
        "", description="the public id of the project whose catalog anybody may read and write without a key; nobody's if empty"
    )
    sent_by: str = Field("", description="what events call this installation; the machine's name if empty")

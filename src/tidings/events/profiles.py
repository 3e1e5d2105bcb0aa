"""Two ways to be an S3 store: `storj` is seed 000 to the letter, `aws` is what people's tools were made for.

They differ in what a tenant may ask for and in what an event says, never in what is promised about its delivery.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tidings.events import names

Name = Literal["aws", "storj"]


@dataclass(frozen=True, slots=True)
class Profile:
    name: Name
    event_source: str
    bucket_arn: str
    """What stands before the name of a bucket."""
    service: str
    """As a test event names it."""
    most_rules: int
    """For one bucket."""
    literal_filters: bool
    """Whether a filter speaks of the key as it is only, or also of its form-encoded form, as on AWS."""
    same_as_put: frozenset[str] = frozenset()
    """Names that are not told apart from a PUT."""
    subscribable: frozenset[str] = field(init=False)
    """Every value that a rule may name in its events."""

    def __post_init__(self) -> None:
        asked = {f"s3:{name}" for name in names.NAMES if name not in self.same_as_put}
        object.__setattr__(self, "subscribable", frozenset(names.WILDCARDS) | asked)

    def event(self, name: str) -> str:
        """What a change is called here."""
        return names.PUT if name in self.same_as_put else name


AWS = Profile("aws", "aws:s3", "arn:aws:s3:::", "Amazon S3", most_rules=100, literal_filters=False)
STORJ = Profile(
    "storj",
    "storj:s3",
    "arn:storj:s3:::",
    "Storj S3",
    most_rules=1,
    literal_filters=True,
    same_as_put=frozenset({names.POST, names.MULTIPART}),
)
PROFILES: dict[Name, Profile] = {"aws": AWS, "storj": STORJ}

"""AWS's regions, one by one. A pattern would not do: `sns.s3-us-west-2.amazonaws.com` fits one and is anybody's bucket."""

from __future__ import annotations

_CHINA = ("cn-north-1", "cn-northwest-1")
REGIONS = frozenset(
    {
        *(
            "af-south-1",
            "ap-east-1",
            "ap-east-2",
            "ap-northeast-1",
            "ap-northeast-2",
            "ap-northeast-3",
            "ap-south-1",
            "ap-south-2",
        ),
        *("ap-southeast-1", "ap-southeast-2", "ap-southeast-3", "ap-southeast-4", "ap-southeast-5", "ap-southeast-6"),
        *(
            "ap-southeast-7",
            "ca-central-1",
            "ca-west-1",
            "eu-central-1",
            "eu-central-2",
            "eu-north-1",
            "eu-south-1",
            "eu-south-2",
        ),
        *("eu-south-1", "eu-south-2", "eu-west-1", "eu-west-2", "eu-west-3", "il-central-1", "me-central-1"),
        *(
            "me-south-1",
            "mx-central-1",
            "sa-east-1",
            "us-east-1",
            "us-east-2",
            "us-west-1",
            "us-west-2",
            "us-gov-east-1",
            "us-gov-west-1",
        ),
        *_CHINA,
    }
)


def host_of(service: str, region: str) -> str | None:
    """The host of a service in a region; None for a region that AWS does not have."""
    if region not in REGIONS:
        return None
    return f"{service}.{region}.amazonaws.com{'.cn' if region in _CHINA else ''}"

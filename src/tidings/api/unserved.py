"""What S3 calls an operation that is not served here, so that the refusal can name it."""

from __future__ import annotations

from collections.abc import Iterable

VERBS = {"GET": "Get", "HEAD": "Head", "PUT": "Put", "POST": "Post", "DELETE": "Delete"}

_IRREGULAR = {
    ("POST", "bucket", ""): "PostObject",
    ("POST", "object", "select"): "SelectObjectContent",
    ("POST", "object", "restore"): "RestoreObject",
}
_SUBRESOURCES = {
    "accelerate": "AccelerateConfiguration",
    "acl": "Acl",
    "analytics": "AnalyticsConfiguration",
    "attributes": "Attributes",
    "cors": "Cors",
    "encryption": "Encryption",
    "intelligent-tiering": "IntelligentTieringConfiguration",
    "inventory": "InventoryConfiguration",
    "legal-hold": "LegalHold",
    "lifecycle": "LifecycleConfiguration",
    "logging": "Logging",
    "metrics": "MetricsConfiguration",
    "object-lock": "LockConfiguration",
    "ownershipControls": "OwnershipControls",
    "policy": "Policy",
    "policyStatus": "PolicyStatus",
    "publicAccessBlock": "PublicAccessBlock",
    "replication": "Replication",
    "requestPayment": "RequestPayment",
    "retention": "Retention",
    "tagging": "Tagging",
    "torrent": "Torrent",
    "versioning": "Versioning",
    "website": "Website",
}


def name(method: str, level: str, parameters: Iterable[str], otherwise: str | None) -> str:
    """The operation that `parameters` ask for; `otherwise` is the one that would be served without them."""
    parameter = ""
    for parameter in parameters:
        if irregular := _IRREGULAR.get((method, level, parameter)):
            return irregular
        if parameter in _SUBRESOURCES:
            return f"{VERBS[method]}{level.capitalize()}{_SUBRESOURCES[parameter]}"
    if otherwise is not None:
        return f"{otherwise} with the parameter {parameter[:100]}"
    return _IRREGULAR.get((method, level, ""), f"{VERBS[method]}{level.capitalize()}")

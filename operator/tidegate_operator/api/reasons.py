"""Every reason a condition or Event of ours may give, each with its meaning; docs/api.md lists them from here.

A parent condition (Ready, Stalled) carries the reason of the first finding that keeps it from being good.
"""

from enum import StrEnum
from typing import Self


class Reason(StrEnum):
    """CamelCase word and what it means."""

    doc: str

    def __new__(cls, value: str, doc: str) -> Self:
        """A member is its word; `doc` rides along."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.doc = doc
        return member

    # the whole pool
    ALL_REPLICAS_READY = "AllReplicasReady", "every wanted replica serves"
    RECONCILING = "Reconciling", "the operator has seen the spec and is working on it"
    SUSPENDED = "Suspended", "spec.suspend is true: no replicas on purpose"
    CHILD_NOT_OURS = (
        "ChildNotOurs",
        "an object with the name of one of ours belongs to someone else; rename or delete it",
    )

    # ModelResolved
    MODEL_INSPECTED = "ModelInspected", "the model's shape is known"
    INSPECTING = "Inspecting", "the inspection Job is reading the model"
    CLAIM_NOT_FOUND = "ClaimNotFound", "the PersistentVolumeClaim of model.uri does not exist in this namespace"
    MODEL_NOT_FOUND = (
        "ModelNotFound",
        "the path of model.uri does not exist in the claim or image, or the hub shows no such repository",
    )
    REVISION_NOT_FOUND = "RevisionNotFound", "the hub's repository has no such branch, tag or commit"
    MODEL_GATED = "ModelGated", "the hub wants its terms accepted by the owner of the token first"
    TOKEN_INVALID = "TokenInvalid", "the hub does not accept the token of model.tokenSecretRef, or it may not read"
    HUB_THROTTLED = "HubThrottled", "the hub wants fewer requests; it is asked again when it said"
    HUB_UNREACHABLE = "HubUnreachable", "nobody answers as a hub does at HF_ENDPOINT; it is tried again"
    MODEL_CORRUPT = "ModelCorrupt", "a model file is truncated or not what its name says"
    MODEL_UNSUPPORTED = "ModelUnsupported", "the engine does not serve this architecture or format"
    INSPECTION_FAILED = "InspectionFailed", "the inspection Job ended without an answer; it is tried again"

    # ModelCached
    MODEL_CACHED = "ModelCached", "the cache holds the model; pods fetch nothing"
    CACHE_ON_ONE_NODE = (
        "CacheOnOneNode",
        "the cache holds the model, but its claim is ReadWriteOnce: replicas run only on the node that has it",
    )
    DOWNLOADING = "Downloading", "the model is being fetched into the cache"
    DOWNLOAD_FAILED = "DownloadFailed", "the download Job ended early; it is tried again and goes on where it ended"
    CACHE_FULL = "CacheFull", "the cache's claim has no room for the model; make it larger"

    # Fits
    FITS = "Fits", "the wanted context fits"
    SHRUNK_TO_FIT = "ShrunkToFit", "a shorter context than wanted, but not below context.min, was chosen"
    DOES_NOT_FIT = "DoesNotFit", "not even one sequence of context.min fits; the message has numbers and remedies"
    MEMORY_UNKNOWN = (
        "MemoryUnknown",
        "no node has the accelerator, or its memory is not known; the message says what to do",
    )

    # Progressing, Stalled
    ENGINE_ARGS_REFUSED = "EngineArgsRefused", "engine.extraArgs has a flag that is unknown or set by another field"

    ROLLOUT_ABORTED = (
        "RolloutAborted",
        "the new template never became ready; the last good one is back until the spec changes",
    )
    DEADLINE_EXCEEDED = (
        "ProgressDeadlineExceeded",
        "a replica of the new template was not ready within rollout.progressDeadlineSeconds, and does not say why",
    )

    # Available, Progressing
    REPLICA_SERVING = "ReplicaServing", "at least one replica serves"
    NO_REPLICA_READY = "NoReplicaReady", "no replica serves yet"
    REPLICAS_STARTING = "ReplicasStarting", "replicas are being scheduled, pulled or loaded"
    ROLLING_OUT = "RollingOut", "replicas of an older template are being replaced"
    SCALING = "Scaling", "the number of replicas is changing"
    UP_TO_DATE = "UpToDate", "every replica has the current template"
    PODS_REFUSED = (
        "PodsRefused",
        "the API server lets no pod be created: a policy, an unknown PriorityClass; the message is its own",
    )
    QUOTA_EXCEEDED = (
        "QuotaExceeded",
        "a ResourceQuota of the namespace allows no further replica; the message has its numbers or the API server's",
    )
    UNSCHEDULABLE = "Unschedulable", "no node has room for a replica; the message is the scheduler's"
    IMAGE_UNAVAILABLE = "ImageUnavailable", "the engine image cannot be pulled"
    OUT_OF_MEMORY = "OutOfMemory", "an engine was killed for using more memory than its limit"
    ENGINE_FAILING = "EngineFailing", "engines end again and again; the message is their last words"

    # MetricsAvailable
    METRICS_FRESH = "MetricsFresh", "the scaler sees enough of its replicas"
    METRICS_STALE = "MetricsStale", "more than a fifth of the ready replicas do not report; the size is held"

    # ResizeAdvised
    PREEMPTIONS_PERSIST = (
        "PreemptionsPersist",
        "requests are preempted for minutes although none waits: change what a replica is sized for, not how many",
    )

    # ScalingLimited
    WITHIN_BOUNDS = "WithinBounds", "the scaler gets what it wants"
    AT_MAXIMUM = "AtMaximum", "more replicas are wanted than maxReplicas allows"
    SCALING_MANUAL = "ScalingManual", "scaling.mode is Manual: spec.replicas decides"
    FOREIGN_SCALER = (
        "ForeignScaler",
        "something else sets replicas that are not its own to set; the message names it and the line to change",
    )

    # NodesFailing
    PODS_FAIL_ON_NODE = (
        "PodsFailOnNode",
        "a node refused, evicted or lost several pods of this pool within the hour; the message has the last cause",
    )

    # Integrated
    INTEGRATED = "Integrated", "the objects for other projects that were asked for exist"
    API_NOT_INSTALLED = "ApiNotInstalled", "an object for another project was asked for, but its CRD is not installed"
    API_NOT_READABLE = (
        "ApiNotReadable",
        "an object for another project was asked for, but its kind cannot be listed; the message says why",
    )
    FOREIGN_PICKER = (
        "ForeignPicker",
        "an endpoint picker selects replicas that leave; the message names it and the line to change",
    )

    # Events
    SCALED_UP = "ScaledUp", "more replicas were ordered"
    SCALED_DOWN = "ScaledDown", "a drained replica was removed"
    DRAINING = "Draining", "a replica was chosen to leave and takes no new requests"
    DRAIN_CANCELLED = "DrainCancelled", "load came back: the replica stays"
    APPLY_FAILED = "ApplyFailed", "the API server refused an object of ours; the message is its answer"

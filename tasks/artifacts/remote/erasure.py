"""Delete objects for good, with their earlier versions and unfinished uploads, and say what a store keeps nonetheless.

A bucket with versioning only hides what is deleted, and an upload that a kill ended keeps its blocks unlisted. Both are
deleted by S3's API; of other stores it is only said that nobody asked.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from model.errors import AccessError
from tasks.artifacts.remote.object_store import KEYS_PER_REQUEST, ObjectStore

FAILED = frozenset({"InternalError", "OperationAborted", "RequestTimeout", "ServiceUnavailable", "SlowDown"})
"""Error codes of S3 for a deletion that may succeed the next time; others are refusals."""


@dataclass(frozen=True)
class Version:
    """A version of an object, or the marker that hides an object's versions. Its key is that of the bucket."""

    key: str
    version: str
    is_present: bool
    is_marker: bool


def erase(store: ObjectStore, prefixes: Iterable[str], *, earlier_only: bool = False) -> list[str]:
    """Delete all objects whose keys begin with one of the prefixes, in the order of these, with their earlier versions
    and unfinished uploads; `earlier_only` leaves the present objects. Return what stays, as sentences.

    The present version of an object is deleted last, so that a call which was killed before is repeated while it is
    found; markers go when nothing is behind them that they hide.
    """
    stays: list[str] = []
    keeps_versions = store.is_s3
    with suppress(AccessError):
        keeps_versions = "Status" in (store.ask_bucket("get_bucket_versioning") or {})
    for prefix in prefixes:
        versions: list[Version] = []
        try:
            if store.is_s3:
                _abort_uploads(store, prefix)
        except AccessError:
            stays.append("unfinished uploads, if there are any, which could not be listed and ended")
        try:
            if keeps_versions:
                versions = _versions(store, prefix)
        except AccessError:
            stays.append("earlier versions, if the bucket keeps them, which could not be listed")
        refused = _delete(store, [one for one in versions if not one.is_present and not one.is_marker])
        if not earlier_only:
            refused |= _delete(store, [one for one in versions if one.is_present and not one.is_marker])
            store.delete(present_keys(store, prefix))
        hiding = {one.key for one in refused}
        refused |= _delete(store, [one for one in versions if one.is_marker and one.key not in hiding])
        left = {(one.key, one.version) for one in _versions(store, prefix)} if refused else set[tuple[str, str]]()
        stays += [
            f"{store.bucket}/{one.key} as version {one.version}, which the store refuses to delete ({code}): `aws s3api"
            f" delete-object --bucket {store.bucket} --key {one.key} --version-id {one.version}` deletes it once"
            " retention and permissions allow it"
            for one, code in sorted(refused.items(), key=lambda pair: (pair[0].key, pair[0].version))
            if (one.key, one.version) in left
        ]
    return list(dict.fromkeys(stays))


def describe_retention(store: ObjectStore) -> list[str]:
    """Return what keeps objects of the store after their deletion, as sentences: versions, object lock, replicas."""
    if not store.is_s3:
        return [
            f"{store.address}: whether this store keeps what is deleted (versions, soft deletion, retention, replicas)"
            " is not known here; see its settings."
        ]
    found: list[str] = []
    for method, what in _SETTINGS.items():
        try:
            answer = store.ask_bucket(method)
        except AccessError:
            found.append(f"{what}: these credentials may not ask ({method}).")
            continue
        if method == "get_bucket_versioning" and answer is None:
            found.append(f"{what}: the store has no answer ({method}).")
        if method == "get_bucket_versioning" and answer and answer.get("Status"):
            found.append(
                f"The bucket {store.bucket} keeps earlier versions of objects. Those of what is deleted here are"
                " deleted, too; those of what had been deleted before, by `bessemer store gc` for example, are not"
                " looked for: a lifecycle rule with NoncurrentVersionExpiration deletes them."
            )
        if method == "get_object_lock_configuration" and answer:
            rule = answer["ObjectLockConfiguration"].get("Rule", {}).get("DefaultRetention", {})
            length = ", ".join(f"{rule[unit]} {unit.lower()}" for unit in ("Days", "Years") if rule.get(unit))
            usual = f", by default {rule['Mode']} for {length}" if rule else ""
            found.append(f"The bucket {store.bucket} has object lock{usual}: locked versions stay until it ends.")
        if method == "get_bucket_replication" and answer:
            rules = answer["ReplicationConfiguration"]["Rules"]
            names = ", ".join(sorted({rule["Destination"]["Bucket"] for rule in rules}))
            found.append(f"The bucket {store.bucket} is replicated to {names}: delete there, too.")
    return found


_SETTINGS = {
    "get_bucket_versioning": "Whether the bucket keeps earlier versions",
    "get_object_lock_configuration": "Whether the bucket locks objects",
    "get_bucket_replication": "Whether the bucket is replicated",
}


def present_keys(store: ObjectStore, prefix: str) -> list[str]:
    """Return the keys of the present objects that begin with a prefix: a whole key, a folder, or a beginning in one."""
    folder, _, name = prefix.rpartition("/")
    if name.endswith(".json"):
        return [prefix] if store.exists(prefix) else []
    return [key for key in store.list_objects(folder) if key.startswith(prefix)]


def _versions(store: ObjectStore, prefix: str) -> list[Version]:
    """Return all versions and markers of the keys that begin with a prefix; AccessError where nobody may list them."""
    found: list[Version] = []
    after: dict[str, str] = {}
    while True:
        page = _answer(store, "list_object_versions", Prefix=store.key_in_bucket(prefix), **after)
        for kind in ("Versions", "DeleteMarkers"):
            found += [
                Version(one["Key"], one["VersionId"], one["IsLatest"], kind == "DeleteMarkers")
                for one in page.get(kind, ())
            ]
        if not page.get("IsTruncated"):
            return found
        marks = {"KeyMarker": "NextKeyMarker", "VersionIdMarker": "NextVersionIdMarker"}
        after = {name: page[mark] for name, mark in marks.items() if mark in page}


def _delete(store: ObjectStore, versions: list[Version]) -> dict[Version, str]:
    """Delete versions; return those that the store refuses to delete, with its code."""
    refused: dict[Version, str] = {}
    for begin in range(0, len(versions), KEYS_PER_REQUEST):
        some = versions[begin : begin + KEYS_PER_REQUEST]
        objects = [{"Key": one.key, "VersionId": one.version} for one in some]
        answer = store.ask_bucket("delete_objects", Delete={"Objects": objects, "Quiet": True})
        if answer is None:
            answer = {"Errors": [{"Key": one.key, "Code": "NotImplemented"} for one in some]}
        codes = {(error["Key"], error.get("VersionId")): error["Code"] for error in answer.get("Errors", ())}
        for one in some:
            # Not every server says which version it means.
            code = codes.get((one.key, one.version)) or codes.get((one.key, None))
            if code in FAILED:
                store.ask_bucket("delete_object", Key=one.key, VersionId=one.version)
            elif code:
                refused[one] = code
    return refused


def _abort_uploads(store: ObjectStore, prefix: str) -> None:
    is_truncated = True
    while is_truncated:
        answer = _answer(store, "list_multipart_uploads", Prefix=store.key_in_bucket(prefix))
        for upload in answer.get("Uploads", ()):
            store.ask_bucket("abort_multipart_upload", Key=upload["Key"], UploadId=upload["UploadId"])
        is_truncated = answer.get("IsTruncated", False)


def _answer(store: ObjectStore, method: str, **words: Any) -> dict[str, Any]:
    answer = store.ask_bucket(method, **words)
    if answer is None:
        raise AccessError(f"{store.address} does not answer {method}")
    return answer

"""A root in an object store: the local folder is a cache and work space, the store is authoritative.

    manifests/STAGE/IDENTITY.json      created if absent: the first of two builders wins
    parts/STAGE/IDENTITY/DIGEST        files of artifacts, uploaded before the manifest that lists them
    unfinished/STAGE/IDENTITY.json     what a build has finished so far, uploaded after the files that it lists
    checkpoints/STAGE/IDENTITY/DIGEST  files of unfinished builds that belong to no artifact
    leases/IDENTITY/NUMBER.json        who builds now: saves work, not needed for correctness
    aliases/STAGE/IDENTITY.json, runs/RUN_ID.json, pages/RUN_ID/NAME
    forgotten/RUN_ID.json              certificates of removals, and `pending.json`: one that has not ended

An object store has no rename and no folders, so everything is published by one put of one small object. Small objects
contain their own digest (`model/checksummed_json.py`), files are named by theirs, and neither is used if the bytes
differ."""

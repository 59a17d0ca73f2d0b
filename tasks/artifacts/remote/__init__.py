"""A root in an object store: the folder here is a cache and workbench, the store is what counts.

    manifests/STAGE/IDENTITY.json    created if absent: of two builders the first one's stands
    parts/STAGE/IDENTITY/DIGEST      files of artifacts, put before the manifest that names them
    unfinished/STAGE/IDENTITY.json   what a build has finished so far, put after the files that it names
    checkpoints/STAGE/IDENTITY/DIGEST  files of unfinished builds that become part of no artifact
    leases/IDENTITY/NUMBER.json      who builds now: saves work, and carries no correctness
    aliases/STAGE/IDENTITY.json, runs/RUN_ID.json, pages/RUN_ID/NAME

An object store has no rename and no folders, so all that makes something stand is one put of one small object. Small
objects hold their own digest (`model/checksummed_json.py`), files are named by theirs, and neither is believed where
the bytes differ."""

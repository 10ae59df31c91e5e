-- Version 5: the access key that wrote an event, and the actors that a key is bound to.

-- Id of the key, or `jwt:` and the subject of a token. Part of the hash where it is there.
ALTER TABLE events ADD COLUMN written_by TEXT;

-- Before this version the table was created beside the versions.
-- Keys of whoever may ask a server. Of a secret only its SHA-256 is kept.
CREATE TABLE IF NOT EXISTS keys (
    id        BLOB PRIMARY KEY,
    tenant    TEXT NOT NULL,
    role      TEXT NOT NULL,
    label     TEXT,
    created   INTEGER NOT NULL,
    expires   INTEGER,
    revoked   INTEGER,
    last_used INTEGER,
    secret    BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS keys_by_tenant ON keys (tenant, id);

ALTER TABLE keys ADD COLUMN actors TEXT NOT NULL DEFAULT '[]';  -- JSON array

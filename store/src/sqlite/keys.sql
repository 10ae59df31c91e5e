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

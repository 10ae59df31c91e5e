-- Version 1. Times are microseconds since 1970 (UTC). Ids are the sixteen bytes of a ULID.
--
-- `events` is the ground: it is only ever appended to, at its end, and has no index of its own, so that a commit touches
-- as few pages as a plain log would. Rows about plain turns follow a moment later, many at a time (see `settled`). A body is erased by overwriting its bytes in place (salt all
-- zero means erased), never by changing the row's size and never by deleting the row: SQLite would then move
-- neighbouring rows and leave copies of their text behind. Everything else here follows from `events`.

CREATE TABLE conversations (
    no                 INTEGER PRIMARY KEY,  -- short name inside this file; never used twice, because rows are never deleted
    tenant             TEXT NOT NULL,
    id                 BLOB NOT NULL,
    owner              TEXT,
    title              TEXT,
    participants       TEXT NOT NULL,        -- JSON array
    metadata           TEXT NOT NULL,        -- JSON object
    state              TEXT NOT NULL,
    created            INTEGER NOT NULL,
    updated            INTEGER NOT NULL,
    summarized_through BLOB,
    ttl                INTEGER,              -- seconds
    expires            INTEGER,              -- updated + ttl
    retention          TEXT NOT NULL,
    policy             TEXT NOT NULL,        -- JSON object
    head_seq           INTEGER NOT NULL,
    head_hash          BLOB NOT NULL,
    turns              INTEGER NOT NULL,
    parent             INTEGER REFERENCES conversations (no),
    parent_seq         INTEGER,
    predecessor        BLOB,
    prompt_sha256      BLOB,
    prompt_seq         INTEGER,
    checkpoint         TEXT,                 -- JSON: the checkpoint in force, by ids and places
    budget             TEXT,                 -- JSON: what the budget did last, by places
    deleted            INTEGER,              -- when; then this row is the tombstone
    deleted_reason     TEXT,
    UNIQUE (tenant, id)
);
CREATE INDEX conversations_by_change ON conversations (tenant, updated, id) WHERE deleted IS NULL;
CREATE INDEX conversations_by_expiry ON conversations (expires) WHERE expires IS NOT NULL AND deleted IS NULL;
CREATE INDEX conversations_by_parent ON conversations (parent) WHERE parent IS NOT NULL;

CREATE TABLE events (
    no           INTEGER PRIMARY KEY,        -- order of arrival: rows are packed densely whatever conversation they are of
    conversation INTEGER NOT NULL REFERENCES conversations (no),
    seq          INTEGER NOT NULL,
    id           BLOB NOT NULL,
    at           INTEGER NOT NULL,
    occurred_at  INTEGER,
    kind         TEXT NOT NULL,
    actor        TEXT,
    role         TEXT,
    visibility   TEXT NOT NULL,
    turn         BLOB,
    body_hash    BLOB NOT NULL,
    hash         BLOB NOT NULL,              -- `prev` is the hash of the row before; it is not stored twice
    salt         BLOB NOT NULL,              -- sixteen bytes; all zero: erased
    body         TEXT NOT NULL               -- JSON, exactly as it was written
);

-- Where the event of a conversation at a place is.
CREATE TABLE places (
    conversation INTEGER NOT NULL,
    seq          INTEGER NOT NULL,
    event        INTEGER NOT NULL,           -- events.no
    PRIMARY KEY (conversation, seq)
) WITHOUT ROWID;

-- Everything up to this event is in the tables that follow from `events`. What is behind it are complete turns without
-- assets; they are found by reading on from here, which is never far.
CREATE TABLE settled (event INTEGER NOT NULL);
INSERT INTO settled VALUES (0);

-- One row a turn, without content: that is in the event at content_seq, or at seq where content_seq is null.
-- A fork has rows of its own only for inherited turns that it changed.
CREATE TABLE turns (
    conversation   INTEGER NOT NULL REFERENCES conversations (no),
    seq            INTEGER NOT NULL,
    id             BLOB NOT NULL,
    actor          TEXT,
    role           TEXT NOT NULL,
    status         TEXT NOT NULL,
    created        INTEGER NOT NULL,
    content_seq    INTEGER,
    superseded_by  TEXT,
    superseded_seq INTEGER,
    PRIMARY KEY (conversation, seq)
) WITHOUT ROWID;
CREATE UNIQUE INDEX turns_by_id ON turns (id, conversation);
CREATE INDEX turns_open ON turns (conversation, seq) WHERE status = 'pending';

-- What was said so far in open turns. Rows are overwritten when their turn ends, and all dropped when none is open.
CREATE TABLE chunks (
    no           INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL REFERENCES conversations (no),
    turn_seq     INTEGER NOT NULL,
    offset       INTEGER NOT NULL,
    text         TEXT NOT NULL
);
CREATE INDEX chunks_by_turn ON chunks (conversation, turn_seq, offset);

CREATE TABLE assets (
    conversation INTEGER NOT NULL REFERENCES conversations (no),
    id           TEXT NOT NULL,
    seq          INTEGER NOT NULL,           -- the asset.added event, whose body is the descriptor
    sha256       BLOB,
    PRIMARY KEY (conversation, id)
) WITHOUT ROWID;
CREATE INDEX assets_by_id ON assets (id);
CREATE INDEX assets_by_hash ON assets (sha256) WHERE sha256 IS NOT NULL;

CREATE TABLE asset_references (
    conversation INTEGER NOT NULL REFERENCES conversations (no),
    turn_seq     INTEGER NOT NULL,
    asset        TEXT NOT NULL,
    PRIMARY KEY (conversation, turn_seq, asset)
) WITHOUT ROWID;
CREATE INDEX asset_references_by_asset ON asset_references (conversation, asset);

-- Requests that may come again. The scope is a tenant (creations) or a conversation (appends).
CREATE TABLE idempotency (
    scope        TEXT NOT NULL,
    key          TEXT NOT NULL,
    fingerprint  BLOB NOT NULL,
    conversation INTEGER NOT NULL REFERENCES conversations (no),
    first_seq    INTEGER NOT NULL,
    last_seq     INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) WITHOUT ROWID;

-- What a conversation's events up to a place add up to, by ids and places and without words, so that its state can be
-- read without its history. A row every thousand events or so; any of them may be missing.
CREATE TABLE folds (
    conversation INTEGER NOT NULL REFERENCES conversations (no),
    seq          INTEGER NOT NULL,
    fold         TEXT NOT NULL,              -- JSON
    PRIMARY KEY (conversation, seq)
) WITHOUT ROWID;

CREATE TABLE conversation_facts (
    id           BLOB PRIMARY KEY,
    conversation INTEGER NOT NULL REFERENCES conversations (no),
    subject      TEXT NOT NULL,
    predicate    TEXT NOT NULL,
    object       TEXT NOT NULL,
    confidence   REAL NOT NULL,
    source_turn  BLOB NOT NULL,
    created      INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX conversation_facts_by_conversation ON conversation_facts (conversation);

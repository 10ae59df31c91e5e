-- Format 1. Times are microseconds since 1970 (UTC). Ids are the sixteen bytes of a ULID.
--
-- `events` is the ground: it is only ever appended to, at its end, and has no index of its own, so that a commit touches
-- as few pages as a plain log would. Rows about plain turns follow a moment later, many at a time (see `settled`). A body is
-- erased by overwriting its bytes in place (salt all zero means erased), never by changing the row's size and never by
-- deleting the row: SQLite would then move neighbouring rows and leave copies of their text behind. Everything else here
-- follows from `events`. The names `conversations`, `turns` and `conversation_facts` belong to the views that people read
-- (see views.sql); tables have others.

CREATE TABLE conversation_rows (
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
    began              INTEGER,              -- when its first turn was said; null before there is one
    said               INTEGER,              -- when its latest turn was said, else created: the order of listings
    summarized_through BLOB,
    ttl                INTEGER,              -- seconds
    expires            INTEGER,              -- updated + ttl
    retention          TEXT NOT NULL,
    policy             TEXT NOT NULL,        -- JSON object
    head_seq           INTEGER NOT NULL,
    head_hash          BLOB NOT NULL,
    turns              INTEGER NOT NULL,
    parent             INTEGER REFERENCES conversation_rows (no),
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
-- None of these is on an expression: where there is such an index, no text of the table can be overwritten in place.
CREATE INDEX conversations_by_change ON conversation_rows (tenant, updated, id) WHERE deleted IS NULL;
CREATE INDEX conversations_by_time ON conversation_rows (tenant, said, id) WHERE deleted IS NULL;
CREATE INDEX conversations_by_expiry ON conversation_rows (expires) WHERE expires IS NOT NULL AND deleted IS NULL;
CREATE INDEX conversations_by_parent ON conversation_rows (parent) WHERE parent IS NOT NULL;

CREATE TABLE events (
    no           INTEGER PRIMARY KEY,        -- order of arrival: rows are packed densely whatever conversation they are of
    conversation INTEGER NOT NULL REFERENCES conversation_rows (no),
    seq          INTEGER NOT NULL,
    id           BLOB NOT NULL,
    at           INTEGER NOT NULL,
    occurred_at  INTEGER,
    kind         TEXT NOT NULL,
    actor        TEXT,
    role         TEXT,
    visibility   TEXT NOT NULL,
    turn         BLOB,
    written_by   TEXT,                       -- id of the access key, or `jwt:` and the subject of a token
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

-- Who writes, and whether the database file is whole without its write-ahead log. One row.
CREATE TABLE ownership (
    epoch   INTEGER NOT NULL,                -- random, new with each open for writing; a writer's transactions check that it is still theirs
    in_use  INTEGER NOT NULL,                -- 1 from an open for writing until its clean end
    changes INTEGER NOT NULL                 -- durable changes so far that add no event: deletions and keys
);
INSERT INTO ownership VALUES (0, 0, 0);

-- One row a turn, without content: that is in the event at content_seq, or at seq where content_seq is null.
-- A fork has rows of its own only for inherited turns that it changed.
CREATE TABLE turn_rows (
    conversation   INTEGER NOT NULL REFERENCES conversation_rows (no),
    seq            INTEGER NOT NULL,
    id             BLOB NOT NULL,
    actor          TEXT,
    role           TEXT NOT NULL,
    status         TEXT NOT NULL,
    created        INTEGER NOT NULL,
    content_seq    INTEGER,
    superseded_by  TEXT,
    superseded_seq INTEGER,
    place          INTEGER,                  -- where it is read, if not at seq: the smallest seq of what it replaces
    placed_seq     INTEGER,                  -- the last event that moved it there
    PRIMARY KEY (conversation, seq)
) WITHOUT ROWID;
CREATE UNIQUE INDEX turns_by_id ON turn_rows (id, conversation);
CREATE INDEX turns_open ON turn_rows (conversation, seq) WHERE status = 'pending';
CREATE INDEX turns_moved ON turn_rows (conversation, place) WHERE place IS NOT NULL;
-- Turns that do not stand, which are few: a budget counts them.
CREATE INDEX turns_fallen ON turn_rows (conversation, seq) WHERE superseded_by IS NOT NULL;

-- What was said so far in open turns. Rows are overwritten when their turn ends, and all dropped when none is open.
CREATE TABLE chunks (
    no           INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL REFERENCES conversation_rows (no),
    turn_seq     INTEGER NOT NULL,
    offset       INTEGER NOT NULL,
    text         TEXT NOT NULL
);
CREATE INDEX chunks_by_turn ON chunks (conversation, turn_seq, offset);

CREATE TABLE assets (
    conversation INTEGER NOT NULL REFERENCES conversation_rows (no),
    id           TEXT NOT NULL,
    seq          INTEGER NOT NULL,           -- the asset.added event, whose body is the descriptor
    sha256       BLOB,
    PRIMARY KEY (conversation, id)
) WITHOUT ROWID;
CREATE INDEX assets_by_id ON assets (id);
CREATE INDEX assets_by_hash ON assets (sha256) WHERE sha256 IS NOT NULL;

CREATE TABLE asset_references (
    conversation INTEGER NOT NULL REFERENCES conversation_rows (no),
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
    conversation INTEGER NOT NULL REFERENCES conversation_rows (no),
    first_seq    INTEGER NOT NULL,
    last_seq     INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) WITHOUT ROWID;

-- What a conversation's events up to a place add up to, by ids and places and without words, so that its state can be
-- read without its history. A row every thousand events or so; any of them may be missing.
CREATE TABLE folds (
    conversation INTEGER NOT NULL REFERENCES conversation_rows (no),
    seq          INTEGER NOT NULL,
    fold         TEXT NOT NULL,              -- JSON
    turns        INTEGER,                    -- up to here, so that a fork need not count them from the start
    PRIMARY KEY (conversation, seq)
) WITHOUT ROWID;

-- One row a statement of a fact, without its words: those are in the event at seq, where they can be erased in place.
CREATE TABLE fact_rows (
    conversation INTEGER NOT NULL REFERENCES conversation_rows (no),
    seq          INTEGER NOT NULL,
    id           BLOB NOT NULL,              -- of the fact: several statements may be about the same one
    source_turn  BLOB,                       -- the turn that it was learned from: erased together
    corrects     BLOB,                       -- the fact that it corrects or takes back
    PRIMARY KEY (conversation, seq)
) WITHOUT ROWID;
CREATE INDEX conversation_facts_by_id ON fact_rows (id);
CREATE INDEX conversation_facts_by_source ON fact_rows (source_turn) WHERE source_turn IS NOT NULL;
CREATE INDEX conversation_facts_by_corrected ON fact_rows (corrects) WHERE corrects IS NOT NULL;

-- Erasing a turn must find everything that repeats its words without reading the log. Neither of these tables has words.

-- Events that sum up turns: checkpoints, also those that were taken back, and projections that begin with one.
CREATE TABLE summaries (
    conversation INTEGER NOT NULL REFERENCES conversation_rows (no),
    seq          INTEGER NOT NULL,
    through_seq  INTEGER NOT NULL,           -- may repeat turns up to here; 0: only decides which checkpoint is in force
    PRIMARY KEY (conversation, seq)
) WITHOUT ROWID;
CREATE INDEX summaries_by_reach ON summaries (conversation, through_seq);

-- Titles and imported lines, which may repeat a turn without naming it: see core's `echo`.
CREATE TABLE echoes (
    conversation INTEGER NOT NULL REFERENCES conversation_rows (no),
    seq          INTEGER NOT NULL,
    bucket       INTEGER NOT NULL,
    PRIMARY KEY (conversation, seq, bucket)
) WITHOUT ROWID;
CREATE INDEX echoes_by_bucket ON echoes (conversation, bucket);

-- Keys of whoever may ask a server. Of a secret only its SHA-256 is kept.
CREATE TABLE keys (
    id        BLOB PRIMARY KEY,
    tenant    TEXT NOT NULL,
    role      TEXT NOT NULL,
    actors    TEXT NOT NULL,                 -- JSON array: the actors that it is bound to
    label     TEXT,
    created   INTEGER NOT NULL,
    expires   INTEGER,
    revoked   INTEGER,
    last_used INTEGER,
    secret    BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX keys_by_tenant ON keys (tenant, id);

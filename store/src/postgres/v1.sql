-- Version 1. Times are microseconds since 1970 (UTC). Ids are the sixteen bytes of a ULID.
--
-- The names `conversations`, `turns` and `conversation_facts` belong to the views that people read; tables have others.
-- Nothing on the path of an append is shared by all conversations: a number is taken only when a conversation begins.

CREATE TABLE conversation_rows (
    no             bigint PRIMARY KEY,         -- short name inside this store; never used twice, because rows are never deleted
    tenant         text NOT NULL,
    id             bytea NOT NULL,
    title          bytea,                      -- UTF-8: a text column takes no zero byte
    state          text NOT NULL,
    updated        bigint NOT NULL,
    expires        bigint,                     -- updated + ttl
    parent         bigint,
    parent_seq     bigint,
    deleted        bigint,                     -- when; then this row is the tombstone
    deleted_reason text,
    replaced       boolean NOT NULL DEFAULT false, -- a tombstone whose id is used again
    row            text NOT NULL               -- JSON: the whole conversation
) WITH (fillfactor = 70);                      -- most updates change no indexed column but `updated`
CREATE SEQUENCE conversation_numbers;
CREATE UNIQUE INDEX conversation_rows_by_id ON conversation_rows (tenant, id) WHERE NOT replaced;
CREATE INDEX conversation_rows_by_change ON conversation_rows (tenant, updated, id) WHERE deleted IS NULL;
CREATE INDEX conversation_rows_by_expiry ON conversation_rows (expires) WHERE expires IS NOT NULL AND deleted IS NULL;
CREATE INDEX conversation_rows_by_parent ON conversation_rows (parent) WHERE parent IS NOT NULL;

-- The ground. A second event at a place is refused by the primary key, whatever a process believes about its locks.
CREATE TABLE events (
    conversation bigint NOT NULL,
    seq          bigint NOT NULL,
    id           bytea NOT NULL,
    at           bigint NOT NULL,
    occurred_at  bigint,
    kind         text NOT NULL,
    actor        text,
    role         text,
    visibility   text NOT NULL,
    turn         bytea,
    written_by   text,                         -- id of the access key
    body_hash    bytea NOT NULL,
    hash         bytea NOT NULL,               -- `prev` is the hash of the row before; it is not stored twice
    salt         bytea,                        -- null: no body
    body         text,                         -- JSON, exactly as it was written
    erased       boolean NOT NULL DEFAULT false, -- had a body here
    arrived      xid8 NOT NULL DEFAULT pg_current_xact_id(), -- order of arrival, complete below pg_snapshot_xmin
    PRIMARY KEY (conversation, seq)
) PARTITION BY HASH (conversation);
DO $$ BEGIN
    FOR part IN 0..7 LOOP
        EXECUTE format('CREATE TABLE events_%s PARTITION OF events FOR VALUES WITH (MODULUS 8, REMAINDER %s)', part, part);
    END LOOP;
END $$;
CREATE INDEX events_by_arrival ON events (arrived);

CREATE TABLE turn_rows (
    conversation   bigint NOT NULL,
    seq            bigint NOT NULL,
    id             bytea NOT NULL,
    actor          text,
    role           text NOT NULL,
    status         text NOT NULL,
    created        bigint NOT NULL,
    content_seq    bigint,
    superseded_by  text,
    superseded_seq bigint,
    place          bigint NOT NULL,
    placed_seq     bigint,
    PRIMARY KEY (conversation, seq)
) PARTITION BY HASH (conversation);
DO $$ BEGIN
    FOR part IN 0..7 LOOP
        EXECUTE format('CREATE TABLE turn_rows_%s PARTITION OF turn_rows FOR VALUES WITH (MODULUS 8, REMAINDER %s)', part, part);
    END LOOP;
END $$;
CREATE INDEX turn_rows_by_id ON turn_rows (id);
CREATE INDEX turn_rows_open ON turn_rows (conversation, seq) WHERE status = 'pending';

CREATE TABLE turn_chunks (
    conversation bigint NOT NULL,
    turn_seq     bigint NOT NULL,
    start        bigint NOT NULL,
    text         bytea NOT NULL,               -- UTF-8
    PRIMARY KEY (conversation, turn_seq, start)
);

CREATE TABLE asset_rows (
    conversation bigint NOT NULL,
    id           text NOT NULL,
    seq          bigint NOT NULL,
    sha256       bytea,
    PRIMARY KEY (conversation, id)
);
CREATE INDEX asset_rows_by_id ON asset_rows (id);
CREATE INDEX asset_rows_by_hash ON asset_rows (sha256) WHERE sha256 IS NOT NULL;

CREATE TABLE asset_references (
    conversation bigint NOT NULL,
    turn_seq     bigint NOT NULL,
    asset        text NOT NULL,
    PRIMARY KEY (conversation, turn_seq, asset)
);

CREATE TABLE answered_requests (
    tenant       text NOT NULL,
    scope        bigint NOT NULL,              -- the conversation's number; 0 for creations, whose keys are unique in a tenant
    key          bytea NOT NULL,
    fingerprint  bytea NOT NULL,
    conversation bigint NOT NULL,
    first_seq    bigint NOT NULL,
    last_seq     bigint NOT NULL,
    PRIMARY KEY (tenant, scope, key)
);
CREATE INDEX answered_requests_by_conversation ON answered_requests (conversation, last_seq);

CREATE TABLE kept_folds (
    conversation bigint NOT NULL,
    seq          bigint NOT NULL,
    fold         text NOT NULL,
    PRIMARY KEY (conversation, seq)
);

CREATE TABLE fact_statements (
    conversation bigint NOT NULL,
    seq          bigint NOT NULL,
    id           bytea NOT NULL,
    source_turn  bytea,
    corrects     bytea,
    PRIMARY KEY (conversation, seq)
);
CREATE INDEX fact_statements_by_id ON fact_statements (id);
CREATE INDEX fact_statements_by_source ON fact_statements (source_turn) WHERE source_turn IS NOT NULL;
CREATE INDEX fact_statements_by_corrected ON fact_statements (corrects) WHERE corrects IS NOT NULL;

CREATE TABLE summary_rows (
    conversation bigint NOT NULL,
    seq          bigint NOT NULL,
    through_seq  bigint NOT NULL,
    PRIMARY KEY (conversation, seq)
);

CREATE TABLE echo_rows (
    conversation bigint NOT NULL,
    seq          bigint NOT NULL,
    bucket       integer NOT NULL,
    PRIMARY KEY (conversation, seq, bucket)
);
CREATE INDEX echo_rows_by_bucket ON echo_rows (conversation, bucket);

-- Erased bodies of a tenant, counted in the order of commits: whoever adds one holds the tenant's lock.
CREATE TABLE erased_bodies (
    tenant       text NOT NULL,
    no           bigint NOT NULL,
    conversation bigint NOT NULL,
    seq          bigint NOT NULL,
    PRIMARY KEY (tenant, no)
);

CREATE TABLE access_keys (
    id        bytea PRIMARY KEY,
    tenant    text NOT NULL,
    role      text NOT NULL,
    actors    text NOT NULL,                   -- JSON array
    label     text,
    created   bigint NOT NULL,
    expires   bigint,
    revoked   bigint,
    last_used bigint,
    secret    bytea NOT NULL
);
CREATE INDEX access_keys_by_tenant ON access_keys (tenant, id);

CREATE TABLE schema_versions (version integer PRIMARY KEY);
INSERT INTO schema_versions VALUES (1);

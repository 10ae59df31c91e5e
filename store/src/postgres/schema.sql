-- Format 1. Times are microseconds since 1970 (UTC). Ids are the sixteen bytes of a ULID.
--
-- Every table begins with its tenant: the rows of a tenant are together on one shard where the tables are distributed, and
-- row-level security (at the end) compares it. The names `conversations`, `turns` and `conversation_facts` belong to the
-- views that people read; tables have others.
-- Nothing on the path of an append is shared by all conversations: a number is taken only when a conversation begins.

-- Format of the tables, and the program that made them.
CREATE TABLE schema_versions (
    version integer PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT now(),
    made_by text NOT NULL                      -- program and version
);

CREATE TABLE conversation_rows (
    tenant         text COLLATE "C" NOT NULL,
    no             bigint NOT NULL,            -- short name inside this store; never used twice, because rows are never deleted
    id             bytea NOT NULL,
    title          bytea,                      -- UTF-8: a text column takes no zero byte
    state          text NOT NULL,
    updated        bigint NOT NULL,
    said           bigint NOT NULL,            -- by the latest turn, else created: the order of listings
    expires        bigint,                     -- updated + ttl
    parent         bigint,
    parent_seq     bigint,
    head_seq       bigint NOT NULL,
    deleted        bigint,                     -- when; then this row is the tombstone
    deleted_reason text,
    replaced       boolean NOT NULL DEFAULT false, -- a tombstone whose id is used again
    row            text NOT NULL,              -- JSON: the whole conversation
    begun          xid8 NOT NULL DEFAULT pg_current_xact_id(), -- the transaction that inserted it,
    changed        xid8 NOT NULL DEFAULT pg_current_xact_id(), -- and the last one that changed it: see `feed.rs`
    PRIMARY KEY (tenant, no)
) WITH (fillfactor = 70);
CREATE SEQUENCE conversation_numbers;
CREATE UNIQUE INDEX conversation_rows_by_id ON conversation_rows (tenant, id) WHERE NOT replaced;
CREATE INDEX conversation_rows_by_time ON conversation_rows (tenant, said, id) WHERE deleted IS NULL;
CREATE INDEX conversation_rows_by_update ON conversation_rows (tenant, updated, id) WHERE deleted IS NULL;
CREATE INDEX conversation_rows_by_expiry ON conversation_rows (expires) WHERE expires IS NOT NULL AND deleted IS NULL;
CREATE INDEX conversation_rows_by_parent ON conversation_rows (tenant, parent) WHERE parent IS NOT NULL;
CREATE INDEX conversation_rows_by_change ON conversation_rows (changed);
CREATE INDEX conversation_rows_by_number ON conversation_rows (no);

-- The ground. A second event at a place is refused by the primary key, whatever a process believes about its locks.
CREATE TABLE events (
    tenant       text COLLATE "C" NOT NULL,
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
    PRIMARY KEY (tenant, conversation, seq)
) PARTITION BY HASH (tenant, conversation);

CREATE TABLE turn_rows (
    tenant         text COLLATE "C" NOT NULL,
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
    node           bigint,                     -- of an open turn: the process that has it open
    PRIMARY KEY (tenant, conversation, seq)
) PARTITION BY HASH (tenant, conversation);
CREATE INDEX turn_rows_by_id ON turn_rows (tenant, id);
CREATE INDEX turn_rows_open ON turn_rows (conversation, seq) WHERE status = 'pending';
-- Few turns are edits, and fewer were superseded: looking for these among all turns of a long conversation would read all of
-- them. A turn that was not moved has its `seq` for a place.
CREATE INDEX turn_rows_moved ON turn_rows (tenant, conversation, place) WHERE placed_seq IS NOT NULL;
CREATE INDEX turn_rows_fallen ON turn_rows (tenant, conversation, seq) WHERE superseded_seq IS NOT NULL;

CREATE TABLE answered_requests (
    tenant       text COLLATE "C" NOT NULL,
    scope        bigint NOT NULL,              -- the conversation's number; 0 for creations, whose keys are unique in a tenant
    key          bytea NOT NULL,
    fingerprint  bytea NOT NULL,
    conversation bigint NOT NULL,
    first_seq    bigint NOT NULL,
    last_seq     bigint NOT NULL,
    PRIMARY KEY (tenant, scope, key)
) PARTITION BY HASH (tenant, scope);
CREATE INDEX answered_requests_by_conversation ON answered_requests (tenant, conversation, last_seq);

DO $$ DECLARE name text; BEGIN
    FOREACH name IN ARRAY ARRAY['events', 'turn_rows', 'answered_requests'] LOOP
        FOR part IN 0..15 LOOP
            EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES WITH (MODULUS 16, REMAINDER %s)', name || '_' || part, name, part);
        END LOOP;
    END LOOP;
END $$;

CREATE TABLE turn_chunks (
    tenant       text COLLATE "C" NOT NULL,
    conversation bigint NOT NULL,
    turn_seq     bigint NOT NULL,
    start        bigint NOT NULL,
    text         bytea NOT NULL,               -- UTF-8
    PRIMARY KEY (tenant, conversation, turn_seq, start)
);

CREATE TABLE asset_rows (
    tenant       text COLLATE "C" NOT NULL,
    conversation bigint NOT NULL,
    id           text NOT NULL,
    seq          bigint NOT NULL,
    sha256       bytea,
    PRIMARY KEY (tenant, conversation, id)
);
CREATE INDEX asset_rows_by_id ON asset_rows (tenant, id);
CREATE INDEX asset_rows_by_hash ON asset_rows (tenant, sha256) WHERE sha256 IS NOT NULL;

CREATE TABLE asset_references (
    tenant       text COLLATE "C" NOT NULL,
    conversation bigint NOT NULL,
    turn_seq     bigint NOT NULL,
    asset        text NOT NULL,
    PRIMARY KEY (tenant, conversation, turn_seq, asset)
);

CREATE TABLE kept_folds (
    tenant       text COLLATE "C" NOT NULL,
    conversation bigint NOT NULL,
    seq          bigint NOT NULL,
    fold         text NOT NULL,
    PRIMARY KEY (tenant, conversation, seq)
);

CREATE TABLE fact_statements (
    tenant       text COLLATE "C" NOT NULL,
    conversation bigint NOT NULL,
    seq          bigint NOT NULL,
    id           bytea NOT NULL,
    source_turn  bytea,
    corrects     bytea,
    PRIMARY KEY (tenant, conversation, seq)
);
CREATE INDEX fact_statements_by_id ON fact_statements (tenant, id);
CREATE INDEX fact_statements_by_source ON fact_statements (tenant, source_turn) WHERE source_turn IS NOT NULL;
CREATE INDEX fact_statements_by_corrected ON fact_statements (tenant, corrects) WHERE corrects IS NOT NULL;

CREATE TABLE summary_rows (
    tenant       text COLLATE "C" NOT NULL,
    conversation bigint NOT NULL,
    seq          bigint NOT NULL,
    through_seq  bigint NOT NULL,
    PRIMARY KEY (tenant, conversation, seq)
);

CREATE TABLE echo_rows (
    tenant       text COLLATE "C" NOT NULL,
    conversation bigint NOT NULL,
    seq          bigint NOT NULL,
    bucket       integer NOT NULL,
    PRIMARY KEY (tenant, conversation, seq, bucket)
);
CREATE INDEX echo_rows_by_bucket ON echo_rows (tenant, conversation, bucket);

-- Erased bodies of a tenant, counted in the order of commits: an erasure holds the tenant's lock.
CREATE TABLE erased_bodies (
    tenant       text COLLATE "C" NOT NULL,
    no           bigint NOT NULL,
    conversation bigint NOT NULL,
    seq          bigint NOT NULL,
    changed      xid8 NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (tenant, no)
);
CREATE INDEX erased_bodies_by_change ON erased_bodies (changed);

CREATE TABLE access_keys (
    tenant    text COLLATE "C" NOT NULL,
    id        bytea NOT NULL PRIMARY KEY,      -- unique over all tenants: the key determines the tenant
    role      text NOT NULL,
    actors    text NOT NULL,                   -- JSON array
    label     text,
    created   bigint NOT NULL,
    expires   bigint,
    revoked   bigint,
    last_used bigint,
    secret    bytea NOT NULL,
    changed   xid8 NOT NULL DEFAULT pg_current_xact_id() -- not by use
);
CREATE INDEX access_keys_by_change ON access_keys (changed);
CREATE INDEX access_keys_by_tenant ON access_keys (tenant, id);

CREATE TABLE asset_bytes (
    tenant  text COLLATE "C" NOT NULL,
    sha256  bytea NOT NULL,
    written timestamptz NOT NULL DEFAULT now(),
    bytes   bytea NOT NULL,
    PRIMARY KEY (tenant, sha256)
);
ALTER TABLE asset_bytes ALTER COLUMN bytes SET STORAGE EXTERNAL; -- not compressed, so that a range is read without the rest

-- The store itself: one row. The place of its assets carries the same id.
CREATE TABLE store_identity (
    only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    id        uuid NOT NULL DEFAULT gen_random_uuid(),
    assets    text,                            -- URL of the place of the bytes; null: in `asset_bytes`
    -- Which database may delete in that place: a copy of the database has the same id. See `assets.rs`.
    mark      text,                            -- there when it was last renewed,
    next_mark text                             -- and the one that was then written there
);
INSERT INTO store_identity DEFAULT VALUES;

-- Processes that share the store. Each gives a sign every second.
CREATE TABLE nodes (
    no   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    seen timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Background work, so that one process does it: of a conversation (`name` is its id), or of the whole store (no tenant).
CREATE TABLE leases (
    tenant  text COLLATE "C" NOT NULL,
    name    text COLLATE "C" NOT NULL,
    node    bigint,                            -- the process that has it, for as long as it gives signs; null: none
    through bigint NOT NULL DEFAULT 0,         -- seq through which the work of a conversation is done
    due     bigint,                            -- when there is more to do although nothing is appended
    changed timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, name)
);
CREATE INDEX leases_due ON leases (due) WHERE due IS NOT NULL;

-- Recall. Derived from the log: `recall_feed` with its first values and the other tables empty means that everything is indexed
-- again. Whoever writes rows of a tenant holds the lock on its row in `recall_tenants` until the end of the transaction. See
-- `recall.rs`; the table of vectors is in `vectors.sql`, since it needs an extension.

CREATE TABLE recall_feed (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    version  integer NOT NULL,                 -- of the index: one of another version is dropped
    snapshot text NOT NULL                     -- changes of conversations that it sees are in `recall_conversations`
);
INSERT INTO recall_feed (version, snapshot) VALUES (0, '1:1:');

CREATE TABLE recall_conversations (
    tenant       text COLLATE "C" NOT NULL,
    conversation bigint NOT NULL,
    seq          bigint NOT NULL,              -- everything up to here is indexed
    head_seq     bigint NOT NULL,
    deleted      boolean NOT NULL,
    changed      xid8,                         -- a change that is not indexed yet
    PRIMARY KEY (tenant, conversation)
);
CREATE INDEX recall_conversations_waiting ON recall_conversations (tenant, changed) WHERE changed IS NOT NULL;

CREATE TABLE recall_tenants (
    tenant     text COLLATE "C" PRIMARY KEY,
    served     timestamptz NOT NULL DEFAULT '-infinity', -- the last time that somebody indexed something: tenants take turns
    events     bigint NOT NULL DEFAULT 0,      -- indexed so far
    last_entry integer NOT NULL DEFAULT 0,
    last_model integer NOT NULL DEFAULT 0,
    entries    bigint NOT NULL DEFAULT 0,      -- for everyone, and the words in them
    words      bigint NOT NULL DEFAULT 0,
    removed    boolean NOT NULL DEFAULT false  -- whether removed text may still be in old versions of rows
);

CREATE TABLE recall_entries (
    tenant       text COLLATE "C" NOT NULL,
    no           integer NOT NULL,             -- a later entry has a greater one
    conversation bigint NOT NULL,
    seq          bigint NOT NULL,
    kind         smallint NOT NULL,            -- 0: turn, 1: fact
    id           bytea NOT NULL,
    role         text,
    actor        text,
    at           bigint NOT NULL,
    fallen       bigint,                       -- `seq` of the event that superseded or aborted it
    prose        boolean NOT NULL,
    audience     text[],                       -- actors that may find it; null: everyone
    length       integer NOT NULL,             -- in words
    words        text NOT NULL,                -- in their order, with spaces between them
    others       text NOT NULL,                -- names and stems
    PRIMARY KEY (tenant, no)
) PARTITION BY HASH (tenant);
CREATE INDEX recall_entries_by_id ON recall_entries (tenant, id);
CREATE INDEX recall_entries_by_place ON recall_entries (tenant, conversation, seq);

-- The entries with a word, a few hundred in a row. Words of private entries begin with `!`, and what filters ask for with a
-- space: no word of a text does. The number of all entries with a word is that of the last row and of those before it.
CREATE TABLE recall_words (
    tenant  text COLLATE "C" NOT NULL,
    word    text COLLATE "C" NOT NULL,
    first   integer NOT NULL,                  -- not after the first of `entries`
    before  integer NOT NULL,                  -- in the last row of a word: number of entries in its other rows
    entries integer[] NOT NULL,                -- ascending
    PRIMARY KEY (tenant, word, first)
) PARTITION BY HASH (tenant);

CREATE TABLE recall_models (
    tenant     text COLLATE "C" NOT NULL,
    no         integer NOT NULL,
    name       text NOT NULL,
    dimensions integer,
    waiting    bigint NOT NULL,                -- entries without a vector of it
    vectors    bigint NOT NULL,
    PRIMARY KEY (tenant, no)
);
CREATE UNIQUE INDEX recall_models_by_name ON recall_models (tenant, name);

CREATE TABLE recall_waiting (
    tenant text COLLATE "C" NOT NULL,
    model  integer NOT NULL,
    prose  boolean NOT NULL,
    entry  integer NOT NULL,
    PRIMARY KEY (tenant, model, prose, entry)
);

DO $$ BEGIN
    FOR part IN 0..15 LOOP
        EXECUTE format('CREATE TABLE %I PARTITION OF recall_entries FOR VALUES WITH (MODULUS 16, REMAINDER %s)', 'recall_entries_' || part, part);
        EXECUTE format('CREATE TABLE %I PARTITION OF recall_words FOR VALUES WITH (MODULUS 16, REMAINDER %s) WITH (fillfactor = 80)', 'recall_words_' || part, part);
    END LOOP;
END $$;

-- Row-level security, on partitions too, since they can be queried directly. The server (the owner of the tables) names the
-- tenants of each transaction in the setting `everturn.tenants`, separated by spaces, or `*` for work on the whole store:
-- a query without its tenant then finds nothing of others.
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT c.relname FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')
        AND EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant')
    LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY server ON %I TO %I USING ((SELECT current_setting(''everturn.tenants'', true) = ''*'')
            OR tenant = ANY ((SELECT string_to_array(current_setting(''everturn.tenants'', true), '' ''))::text[]))', name, current_user);
    END LOOP;
END $$;

-- Ends what `let_read` began.
CREATE FUNCTION stop_reading(tenant text, reader name) RETURNS void LANGUAGE plpgsql AS $$ DECLARE policy record; BEGIN
    FOR policy IN SELECT p.policyname, p.tablename FROM pg_policies p WHERE p.schemaname = current_schema()
        AND p.policyname = 'reader ' || md5(stop_reading.tenant || ' ' || reader)
    LOOP
        EXECUTE format('DROP POLICY %I ON %I', policy.policyname, policy.tablename);
    END LOOP;
END $$;

-- Lets a role of the database read the conversations of one tenant, for reports. The setting above has no effect for it.
CREATE FUNCTION let_read(tenant text, reader name) RETURNS void LANGUAGE plpgsql AS $$ DECLARE name text; BEGIN
    PERFORM stop_reading(tenant, reader);
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), reader);
    EXECUTE format('GRANT SELECT ON conversations, turns, conversation_facts TO %I', reader);
    FOREACH name IN ARRAY ARRAY['conversation_rows', 'events', 'turn_rows', 'turn_chunks', 'fact_statements', 'asset_rows'] LOOP
        EXECUTE format('CREATE POLICY %I ON %I FOR SELECT TO %I USING (tenant = %L)', 'reader ' || md5(tenant || ' ' || reader), name, reader, tenant);
        EXECUTE format('GRANT SELECT ON %I TO %I', name, reader);
    END LOOP;
END $$;

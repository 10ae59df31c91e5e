-- What one tenant can find again. Derived from the log and kept apart from it: losing this file costs the time to make it
-- again. Its version is that of this schema and of how words are made; a file of another version is dropped.

CREATE TABLE position (
    event   INTEGER NOT NULL,                -- everything of the tenant up to this event, in the order of arrival, is taken in
    anchor  BLOB,                            -- its id: says whether this is the log that the words came from
    removed INTEGER NOT NULL,                -- whether words were removed that may still stand in unused space
    entries INTEGER NOT NULL,                -- how many there are
    words   INTEGER NOT NULL,                -- how many words they have
    counted INTEGER NOT NULL,                -- how many entries there were when `common` was counted
    gone    INTEGER NOT NULL                 -- how many were removed since
);
INSERT INTO position VALUES (0, NULL, 0, 0, 0, 0, 0);

CREATE TABLE actors (no INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE conversations (no INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE);

CREATE TABLE entries (
    no           INTEGER PRIMARY KEY AUTOINCREMENT,  -- also the row in `words`; a later entry has a greater one
    conversation INTEGER NOT NULL REFERENCES conversations (no),
    seq          INTEGER NOT NULL,
    kind         INTEGER NOT NULL,           -- 0: turn, 1: fact
    id           BLOB NOT NULL,
    role         TEXT,
    actor        INTEGER REFERENCES actors (no),
    at           INTEGER NOT NULL,
    fallen       INTEGER,                    -- the place of the event after which it does not stand any more
    prose        INTEGER NOT NULL,           -- 1: said or learned, 0: what tools were asked and answered
    length       INTEGER NOT NULL            -- in words
);
-- The whole key: by the conversation alone, a look-up would go through all of it.
CREATE UNIQUE INDEX entries_by_id ON entries (id, conversation, kind);
CREATE INDEX entries_by_conversation ON entries (conversation, seq);

-- Words come split, in lower case and with single spaces between them, so that every backend has the same ones: whatever
-- is not a space belongs to a word. The text itself is not kept here. `stems` has
-- stems of words that are not stems themselves. `scope` has what filters ask for, as words.
CREATE VIRTUAL TABLE words USING fts5 (
    scope, names, text, stems,
    content = '', contentless_delete = 1,
    tokenize = "unicode61 remove_diacritics 0 categories 'L* M* N* P* S* C*'"
);

-- Entries that are not for everyone, apart from the others: they are counted nowhere and have no vectors, so that they
-- influence no ranking but that of those who may find them. Outside this file their numbers are negative.
CREATE TABLE private_entries (
    no           INTEGER PRIMARY KEY AUTOINCREMENT,  -- also the row in `private_words`
    conversation INTEGER NOT NULL REFERENCES conversations (no),
    seq          INTEGER NOT NULL,
    kind         INTEGER NOT NULL,
    id           BLOB NOT NULL,
    role         TEXT,
    actor        INTEGER REFERENCES actors (no),
    at           INTEGER NOT NULL,
    fallen       INTEGER,
    length       INTEGER NOT NULL
);
CREATE UNIQUE INDEX private_entries_by_id ON private_entries (id, conversation, kind);
CREATE INDEX private_entries_by_conversation ON private_entries (conversation, seq);
CREATE VIRTUAL TABLE private_words USING fts5 (
    scope, names, text, stems,
    content = '', contentless_delete = 1,
    tokenize = "unicode61 remove_diacritics 0 categories 'L* M* N* P* S* C*'"
);
-- The actors that may find an entry.
CREATE TABLE audience (entry INTEGER NOT NULL, actor INTEGER NOT NULL, PRIMARY KEY (entry, actor)) WITHOUT ROWID;

-- In about how many entries very common words are. FTS5 counts a word by going through all its entries.
CREATE TABLE common (word TEXT PRIMARY KEY, entries INTEGER NOT NULL) WITHOUT ROWID;

-- Vectors, by model: those of different models are never compared. Their signs stand apart from them, with what filters ask
-- for, since all of these are read when the first question comes.
CREATE TABLE models (
    no         INTEGER PRIMARY KEY AUTOINCREMENT,
    name       TEXT NOT NULL UNIQUE,
    dimensions INTEGER,
    waiting    INTEGER NOT NULL DEFAULT 0    -- how many entries have no vector of it: every answer tells it
);
CREATE TABLE codes (
    no           INTEGER PRIMARY KEY AUTOINCREMENT,  -- also the row in `vectors`; a later one has a greater one
    model        INTEGER NOT NULL REFERENCES models (no),
    entry        INTEGER NOT NULL,
    conversation INTEGER NOT NULL,
    kind         INTEGER NOT NULL,
    role         TEXT,
    actor        INTEGER,
    at           INTEGER NOT NULL,
    code         BLOB,                       -- NULL: there is nothing in this entry that could have a vector
    UNIQUE (model, entry)
);
CREATE TABLE vectors (no INTEGER PRIMARY KEY, packed BLOB NOT NULL);
-- Copies of the rows of `codes` with their signs, thousands in one blob, since reading them one by one takes ten times as long.
-- Each holds all codes of its model from the first to the last number; what no block holds is read from `codes`.
CREATE TABLE blocks (
    model INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last  INTEGER NOT NULL,
    rows  BLOB NOT NULL,
    PRIMARY KEY (model, first)
);
-- What has no vector yet, in the order in which it gets one, from the end: prose before the rest, later before earlier.
CREATE TABLE waiting (
    model INTEGER NOT NULL,
    prose INTEGER NOT NULL,
    entry INTEGER NOT NULL,
    PRIMARY KEY (model, prose, entry)
) WITHOUT ROWID;
CREATE TRIGGER waiting_more AFTER INSERT ON waiting
    BEGIN UPDATE models SET waiting = waiting + 1 WHERE no = new.model; END;
CREATE TRIGGER waiting_less AFTER DELETE ON waiting
    BEGIN UPDATE models SET waiting = waiting - 1 WHERE no = old.model; END;
-- Numbers of codes that were removed, for those who keep codes in memory.
CREATE TABLE codes_gone (no INTEGER PRIMARY KEY AUTOINCREMENT, code INTEGER NOT NULL);

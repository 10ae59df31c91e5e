-- Version 3.

-- Who writes, and whether the database file is whole without its write-ahead log. One row.
CREATE TABLE ownership (
    epoch   INTEGER NOT NULL,                -- random, new with each open for writing; a writer's transactions check that it is still theirs
    in_use  INTEGER NOT NULL,                -- 1 from an open for writing until its clean end
    changes INTEGER NOT NULL                 -- durable changes so far that add no event: deletions and keys
);
INSERT INTO ownership VALUES (0, 0, 0);

-- Erasing a turn must find everything that repeats its words without reading the log. None of these tables has words.

-- Events that sum up turns: checkpoints, also those that were taken back, and projections that begin with one.
CREATE TABLE summaries (
    conversation INTEGER NOT NULL REFERENCES conversations (no),
    seq          INTEGER NOT NULL,
    through_seq  INTEGER NOT NULL,           -- may repeat turns up to here; 0: only decides which checkpoint is in force
    PRIMARY KEY (conversation, seq)
) WITHOUT ROWID;
CREATE INDEX summaries_by_reach ON summaries (conversation, through_seq);

-- Titles and imported lines, which may repeat a turn without naming it: see core's `echo`.
CREATE TABLE echoes (
    conversation INTEGER NOT NULL REFERENCES conversations (no),
    seq          INTEGER NOT NULL,
    bucket       INTEGER NOT NULL,
    PRIMARY KEY (conversation, seq, bucket)
) WITHOUT ROWID;
CREATE INDEX echoes_by_bucket ON echoes (conversation, bucket);

-- The fact that a statement corrects or takes back.
ALTER TABLE conversation_facts ADD COLUMN corrects BLOB;
CREATE INDEX conversation_facts_by_corrected ON conversation_facts (corrects) WHERE corrects IS NOT NULL;

-- Turns up to the place of a fold, so that a fork need not count them from the start.
ALTER TABLE folds ADD COLUMN turns INTEGER;

-- Turns that do not stand, which are few: a budget counts them.
CREATE INDEX turns_fallen ON turns (conversation, seq) WHERE superseded_by IS NOT NULL;

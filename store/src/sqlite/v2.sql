-- Version 2: facts. The table of version 1 was never written to; it had the words of facts in it, where they could not have
-- been erased in place.
DROP TABLE conversation_facts;

-- One row a statement of a fact, without its words: those are in the event at seq.
CREATE TABLE conversation_facts (
    conversation INTEGER NOT NULL REFERENCES conversations (no),
    seq          INTEGER NOT NULL,
    id           BLOB NOT NULL,              -- of the fact: several statements may be about the same one
    source_turn  BLOB,                       -- the turn that it was learned from: erased together
    PRIMARY KEY (conversation, seq)
) WITHOUT ROWID;
CREATE INDEX conversation_facts_by_id ON conversation_facts (id);
CREATE INDEX conversation_facts_by_source ON conversation_facts (source_turn) WHERE source_turn IS NOT NULL;

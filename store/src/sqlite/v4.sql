-- Version 4: a turn that replaces another is read in its place.
ALTER TABLE turns ADD COLUMN place INTEGER;      -- where it is read, if not at seq: the smallest seq of what it replaces
ALTER TABLE turns ADD COLUMN placed_seq INTEGER; -- the last event that moved it there
CREATE INDEX turns_moved ON turns (conversation, place) WHERE place IS NOT NULL;

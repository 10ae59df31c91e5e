-- Version 2. Few turns are edits, and fewer were superseded: looking for these among all turns of a long conversation read all of
-- them. Appends wait while the indexes are made, some seconds for a million turns.

CREATE INDEX turn_rows_moved ON turn_rows (tenant, conversation, place) WHERE placed_seq IS NOT NULL;
CREATE INDEX turn_rows_fallen ON turn_rows (tenant, conversation, seq) WHERE superseded_seq IS NOT NULL;

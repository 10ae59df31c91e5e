-- Version 3: who writes, and whether the database file is whole without its write-ahead log. One row.
CREATE TABLE ownership (
    epoch   INTEGER NOT NULL,                -- raised by each open for writing; a writer's transactions check that it is still theirs
    in_use  INTEGER NOT NULL,                -- 1 from an open for writing until its clean end
    changes INTEGER NOT NULL                 -- durable changes so far that add no event: deletions and keys
);
INSERT INTO ownership VALUES (0, 0, 0);

-- How far the indexes of all tenants are. Derived, as they are: losing this file costs the time to read the log once more.

CREATE TABLE position (
    event  INTEGER NOT NULL,                 -- every event up to this one, in the order of arrival, was handed to its tenant's index
    anchor BLOB                              -- its id: says whether this is the log that the indexes are made from
);
INSERT INTO position VALUES (0, NULL);

CREATE TABLE tenants (
    name    TEXT PRIMARY KEY,
    last    INTEGER NOT NULL,                -- the index is complete when its own position is not before this event
    entries INTEGER NOT NULL,
    removed INTEGER NOT NULL                 -- whether words were removed that may still stand in unused space of the file
) WITHOUT ROWID;

CREATE TABLE models (
    tenant  TEXT NOT NULL,
    model   TEXT NOT NULL,
    waiting INTEGER NOT NULL,                -- entries without a vector of this model
    vectors INTEGER NOT NULL,                -- whether there are any vectors of it
    PRIMARY KEY (tenant, model)
) WITHOUT ROWID;

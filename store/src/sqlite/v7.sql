-- Version 7: the times at which turns were said, as their author or importer states them.
ALTER TABLE conversation_rows ADD COLUMN began INTEGER; -- by the first turn; null before there is one
ALTER TABLE conversation_rows ADD COLUMN said INTEGER;  -- by the latest turn, else created: the order of listings
UPDATE conversation_rows SET (began, said) = (
    -- Of its own turns; nothing is said after it was stored.
    SELECT min(min(ifnull(e.occurred_at, e.at), e.at)), ifnull(max(min(ifnull(e.occurred_at, e.at), e.at)), conversation_rows.created)
    FROM turn_rows t JOIN places p ON p.conversation = t.conversation AND p.seq = t.seq JOIN events e ON e.no = p.event
    WHERE t.conversation = conversation_rows.no AND t.seq > ifnull(conversation_rows.parent_seq, 0)
) WHERE deleted IS NULL;
-- Not on an expression: where there is such an index, no text of the table can be overwritten in place.
CREATE INDEX conversations_by_time ON conversation_rows (tenant, said, id) WHERE deleted IS NULL;

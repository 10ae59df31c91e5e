-- Views that people and other programs read, with text ids and JSON taken apart; they need no function of ours. Columns
-- may only be added at the end. `@…@` becomes the text of an id: see `text_of_id`.

-- Neither deleted nor expired. An event that is not settled yet has put the expiry off.
CREATE VIEW conversation_ids AS
SELECT no, tenant, 'conv_' || @id@ AS id FROM conversation_rows c
WHERE deleted IS NULL AND (
    expires IS NULL OR expires > (julianday('now') - 2440587.5) * 86400000000.0 OR EXISTS (
        SELECT 1 FROM events e
        WHERE e.no > (SELECT event FROM settled) AND e.conversation = c.no AND e.seq > c.head_seq
            AND e.at + c.ttl * 1000000 > (julianday('now') - 2440587.5) * 86400000000.0
    )
);

CREATE VIEW conversations AS
WITH unsettled (conversation, seq, at, turns, began, said) AS MATERIALIZED (
    SELECT e.conversation, max(e.seq), max(e.at), count(*), min(min(ifnull(e.occurred_at, e.at), e.at)),
        max(min(ifnull(e.occurred_at, e.at), e.at))
    FROM events e JOIN conversation_rows c ON c.no = e.conversation AND e.seq > c.head_seq
    WHERE e.no > (SELECT event FROM settled) GROUP BY e.conversation
)
SELECT
    i.id, c.tenant, c.title, c.owner, c.participants, c.metadata, c.state, c.retention,
    strftime('%Y-%m-%dT%H:%M:%fZ', c.created / 1000000.0, 'unixepoch') AS created,
    strftime('%Y-%m-%dT%H:%M:%fZ', max(c.updated, ifnull(u.at, 0)) / 1000000.0, 'unixepoch') AS updated,
    c.turns + ifnull(u.turns, 0) AS turns,
    max(c.head_seq, ifnull(u.seq, 0)) AS head_seq,
    (SELECT p.id FROM conversation_ids p WHERE p.no = c.parent) AS parent,
    c.parent_seq,
    strftime('%Y-%m-%dT%H:%M:%fZ', min(ifnull(c.began, u.began), ifnull(u.began, c.began)) / 1000000.0, 'unixepoch') AS began,
    -- Without a turn, `said` is the time of creation.
    strftime('%Y-%m-%dT%H:%M:%fZ', CASE WHEN c.began IS NULL THEN u.said ELSE max(c.said, ifnull(u.said, 0)) END / 1000000.0, 'unixepoch')
        AS last_said
FROM conversation_rows c JOIN conversation_ids i ON i.no = c.no LEFT JOIN unsettled u ON u.conversation = c.no;

CREATE VIEW turns AS
-- A fork with its ancestors: events of `no` in (floor, cap] are its own.
WITH RECURSIVE lineage (fork, level, no, floor, cap) AS (
    SELECT no, 0, no, parent_seq, 9223372036854775807 FROM conversation_rows
    WHERE parent IS NOT NULL AND deleted IS NULL
    UNION ALL
    SELECT l.fork, l.level + 1, p.no, ifnull(p.parent_seq, 0), min(l.cap, l.floor)
    FROM lineage l JOIN conversation_rows c ON c.no = l.no JOIN conversation_rows p ON p.no = c.parent
    WHERE l.level < 100
),
ids (no, tenant, id) AS MATERIALIZED (SELECT no, tenant, id FROM conversation_ids),
found (conversation, seq, place, id, actor, role, status, created, superseded_by, event, chunks) AS (
    SELECT t.conversation, t.seq, ifnull(t.place, t.seq), t.id, t.actor, t.role, t.status, t.created, t.superseded_by, p.event,
        t.status = 'pending'
    FROM turn_rows t
    JOIN conversation_rows c ON c.no = t.conversation AND t.seq > ifnull(c.parent_seq, 0)
    LEFT JOIN places p ON p.conversation = t.conversation AND p.seq = ifnull(t.content_seq, t.seq)
    UNION ALL
    -- Committed, and not settled yet.
    SELECT e.conversation, e.seq, e.seq, e.id, e.actor, e.role, 'complete', e.at, NULL, e.no, 0
    FROM events e JOIN conversation_rows c ON c.no = e.conversation AND e.seq > c.head_seq
    WHERE e.no > (SELECT event FROM settled) AND e.kind IN ('message', 'tool_result')
    UNION ALL
    -- Inherited, as they were at the fork; the row of the youngest counts.
    SELECT l.fork, t.seq, CASE WHEN l.level > 0 AND t.placed_seq > l.cap THEN t.seq ELSE ifnull(t.place, t.seq) END,
        t.id, t.actor, t.role,
        CASE WHEN l.level > 0 AND (t.status = 'pending' OR t.content_seq > l.cap) THEN 'interrupted' ELSE t.status END,
        t.created,
        CASE WHEN l.level = 0 OR t.superseded_seq <= l.cap THEN t.superseded_by END,
        (SELECT p.event FROM lineage o JOIN places p ON p.conversation = o.no
            AND p.seq = CASE WHEN l.level > 0 AND t.content_seq > l.cap THEN t.seq ELSE ifnull(t.content_seq, t.seq) END
         WHERE o.fork = l.fork AND p.seq > o.floor AND p.seq <= o.cap),
        0
    FROM lineage l JOIN turn_rows t
        ON t.conversation = l.no AND t.seq <= CASE l.level WHEN 0 THEN l.floor ELSE l.cap END
    WHERE NOT EXISTS (
        SELECT 1 FROM lineage y JOIN turn_rows o ON o.conversation = y.no AND o.seq = t.seq
        WHERE y.fork = l.fork AND y.level < l.level
    )
)
SELECT *,
    CASE WHEN EXISTS (SELECT 1 FROM json_each(message, '$.content') b WHERE b.type = 'object' AND b.value ->> '$.type' = 'tool_result')
        AND NOT EXISTS (SELECT 1 FROM json_each(message, '$.content') b WHERE b.type = 'object' AND b.value ->> '$.type' = 'text')
        THEN 'tool' ELSE role END AS speaker,
    CASE WHEN status = 'pending' OR message IS NULL THEN content ELSE (
        SELECT group_concat(CASE
            WHEN b.type = 'text' THEN b.value
            WHEN b.type <> 'object' THEN NULL
            WHEN json_type(b.value, '$.text') = 'text' THEN b.value ->> '$.text'
            WHEN json_type(b.value, '$.content') = 'text' THEN b.value ->> '$.content'
            WHEN json_type(b.value, '$.content') = 'array' THEN (
                SELECT group_concat(c.value ->> '$.text', char(10)) FROM json_each(b.value, '$.content') c WHERE c.type = 'object'
            )
        END, char(10))
        FROM json_each(message, CASE WHEN json_type(message, '$.content') IN ('text', 'array') THEN '$.content' ELSE '$.output' END) b
    ) END AS text
FROM (
    SELECT
        'turn_' || @f.id@ AS id,
        i.id AS conversation, i.tenant, f.seq, f.place, f.actor, f.role, f.status,
        CASE
            WHEN e.salt = zeroblob(16) OR NOT json_valid(e.body) THEN NULL
            WHEN f.chunks THEN (
                -- A chunk that was written again overlaps the one before.
                SELECT group_concat(CAST(substr(CAST(text AS BLOB), 1 + max(0, ifnull(before, offset) - offset)) AS TEXT), '')
                    OVER (ORDER BY offset, no ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
                FROM (
                    SELECT no, offset, text, max(offset + length(CAST(text AS BLOB)))
                        OVER (ORDER BY offset, no ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
                    FROM chunks WHERE conversation = f.conversation AND turn_seq = f.seq
                ) ORDER BY offset DESC, no DESC LIMIT 1
            )
            ELSE json_extract(e.body, '$.message.content')
        END AS content,
        CASE WHEN e.salt <> zeroblob(16) AND json_valid(e.body) THEN json_extract(e.body, '$.message') END AS message,
        CASE WHEN e.salt <> zeroblob(16) AND json_valid(e.body) THEN json_extract(e.body, '$.model') END AS model,
        CASE WHEN e.salt <> zeroblob(16) AND json_valid(e.body) THEN json_extract(e.body, '$.tokens') END AS tokens,
        CASE WHEN e.salt <> zeroblob(16) AND json_valid(e.body) THEN json_extract(e.body, '$.metadata') END AS metadata,
        e.visibility,
        CASE WHEN e.salt <> zeroblob(16) AND json_valid(e.body) THEN json_extract(e.body, '$.audience') END AS audience,
        strftime('%Y-%m-%dT%H:%M:%fZ', f.created / 1000000.0, 'unixepoch') AS created,
        f.superseded_by
    FROM found f JOIN ids i ON i.no = f.conversation LEFT JOIN events e ON e.no = f.event
);

CREATE VIEW conversation_facts AS
WITH RECURSIVE lineage (reader, level, no, floor, cap) AS (
    SELECT no, 0, no, ifnull(parent_seq, 0), 9223372036854775807 FROM conversation_rows WHERE deleted IS NULL
    UNION ALL
    SELECT l.reader, l.level + 1, p.no, ifnull(p.parent_seq, 0), min(l.cap, l.floor)
    FROM lineage l JOIN conversation_rows c ON c.no = l.no JOIN conversation_rows p ON p.no = c.parent
    WHERE l.level < 100
),
ids (no, tenant, id) AS MATERIALIZED (SELECT no, tenant, id FROM conversation_ids),
statement (reader, fact, corrects, seq, kind, at, turn, visibility, body) AS MATERIALIZED (
    SELECT l.reader, r.id, r.corrects, r.seq, e.kind, e.at, e.turn, e.visibility, e.body
    FROM lineage l JOIN fact_rows r ON r.conversation = l.no AND r.seq > l.floor AND r.seq <= l.cap
    JOIN places p ON p.conversation = r.conversation AND p.seq = r.seq
    JOIN events e ON e.no = p.event AND e.salt <> zeroblob(16) AND json_valid(e.body)
),
-- A correction says only what differs.
fact (reader, fact, seq, at, turn, subject, predicate, object, confidence, visibility, audience) AS (
    SELECT reader, fact, min(seq), at, turn, json_extract(body, '$.subject'), json_extract(body, '$.predicate'),
        json_extract(body, '$.object'), json_extract(body, '$.confidence'), visibility, json_extract(body, '$.audience')
    FROM statement WHERE kind IN ('fact.added', 'fact.extracted') GROUP BY reader, fact
    UNION ALL
    SELECT s.reader, s.fact, s.seq, s.at, s.turn, ifnull(json_extract(s.body, '$.subject'), f.subject),
        ifnull(json_extract(s.body, '$.predicate'), f.predicate), ifnull(json_extract(s.body, '$.object'), f.object),
        json_extract(s.body, '$.confidence'), s.visibility, json_extract(s.body, '$.audience')
    FROM fact f JOIN statement s ON s.reader = f.reader AND s.corrects = f.fact AND s.kind = 'fact.corrected'
)
SELECT
    (SELECT json_extract(s.body, '$.fact') FROM statement s WHERE s.reader = f.reader AND s.seq = f.seq) AS id,
    i.id AS conversation, i.tenant, f.seq, f.subject, f.predicate, f.object, f.confidence, f.visibility, f.audience,
    CASE WHEN f.turn IS NOT NULL THEN 'turn_' || @f.turn@ END AS source_turn,
    strftime('%Y-%m-%dT%H:%M:%fZ', f.at / 1000000.0, 'unixepoch') AS created,
    (SELECT json_extract(s.body, '$.fact') FROM statement s
     WHERE s.reader = f.reader AND s.corrects = f.fact AND s.kind = 'fact.corrected') AS corrected_by,
    EXISTS (SELECT 1 FROM statement s WHERE s.reader = f.reader AND s.kind = 'fact.retracted'
        AND (s.corrects = f.fact OR s.fact = f.fact)) AS retracted
FROM fact f JOIN ids i ON i.no = f.reader;

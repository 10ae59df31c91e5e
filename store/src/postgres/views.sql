-- Views that people and other programs read, with text ids and JSON taken apart: those of SQLite, with types of PostgreSQL.
-- They have the rights of the role that asks, row-level security included. Columns may only be added at the end.

CREATE OR REPLACE FUNCTION text_of_id(prefix text, id bytea) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT prefix || string_agg(substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + substring(bits FROM n * 5 + 1 FOR 5)::bit(5)::int, 1), '' ORDER BY n)
    FROM (SELECT B'00' || ('x' || encode(id, 'hex'))::bit(128) AS bits) b, generate_series(0, 25) n
$$;

CREATE OR REPLACE FUNCTION time_of(micros bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT timestamptz '1970-01-01 00:00:00Z' + micros * interval '1 microsecond'
$$;

-- Whether a conversation with this time of expiry is over.
CREATE OR REPLACE FUNCTION is_over(expires bigint) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT expires IS NOT NULL AND expires <= extract(epoch FROM clock_timestamp()) * 1000000
$$;

-- UTF-8 as text; with a zero byte, which text cannot have, escaped.
CREATE OR REPLACE FUNCTION text_of(bytes bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$ BEGIN
    RETURN convert_from(bytes, 'UTF8');
EXCEPTION WHEN OTHERS THEN
    RETURN encode(bytes, 'escape');
END $$;

-- A value inside JSON. A zero character, which text cannot have, is shown as U+FFFD; in damaged JSON there is no value: one
-- row must not fail the whole query.
CREATE OR REPLACE FUNCTION json_in(body text, VARIADIC path text[]) RETURNS json LANGUAGE plpgsql IMMUTABLE STRICT AS $$ BEGIN
    RETURN nullif((body::json #> path)::text, 'null')::json;
EXCEPTION WHEN OTHERS THEN
    BEGIN
        RETURN replace(body, '\u0000', '\ufffd')::json #> path;
    EXCEPTION WHEN OTHERS THEN
        RETURN NULL;
    END;
END $$;

CREATE OR REPLACE FUNCTION text_in(body text, VARIADIC path text[]) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT json_in(body, VARIADIC path) #>> '{}'
$$;

-- The words of a message, and of results in it: one line for each block that has some.
CREATE OR REPLACE FUNCTION words_of(message json) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    said json := CASE WHEN json_typeof(message -> 'content') IN ('string', 'array') THEN message -> 'content' ELSE message -> 'output' END;
BEGIN
    RETURN CASE json_typeof(said) WHEN 'string' THEN said #>> '{}' WHEN 'array' THEN (
        SELECT string_agg(CASE
            WHEN json_typeof(b) = 'string' THEN b #>> '{}'
            WHEN json_typeof(b) <> 'object' THEN NULL
            WHEN json_typeof(b -> 'text') = 'string' THEN b ->> 'text'
            WHEN json_typeof(b -> 'content') = 'string' THEN b ->> 'content'
            WHEN json_typeof(b -> 'content') = 'array' THEN (
                SELECT string_agg(c ->> 'text', E'\n') FROM json_array_elements(b -> 'content') c WHERE json_typeof(c) = 'object'
            )
        END, E'\n') FROM json_array_elements(said) b
    ) END;
END $$;

-- Whether a message consists of results of tools, as Anthropic's shape has them in the name of the user.
CREATE OR REPLACE FUNCTION is_result(message json) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT coalesce(bool_or(b ->> 'type' = 'tool_result') AND NOT bool_or(b ->> 'type' = 'text'), false)
    FROM json_array_elements(CASE json_typeof(message -> 'content') WHEN 'array' THEN message -> 'content' ELSE '[]' END) b
    WHERE json_typeof(b) = 'object'
$$;

CREATE OR REPLACE VIEW conversations WITH (security_invoker = true) AS
SELECT
    text_of_id('conv_', c.id) AS id, c.tenant, text_of(c.title) AS title, text_in(c.row, 'owner') AS owner,
    json_in(c.row, 'participants') AS participants, json_in(c.row, 'metadata') AS metadata, c.state,
    text_in(c.row, 'retention') AS retention,
    text_in(c.row, 'created')::timestamptz AS created, time_of(c.updated) AS updated,
    text_in(c.row, 'turns')::bigint AS turns, c.head_seq,
    (SELECT text_of_id('conv_', p.id) FROM conversation_rows p WHERE p.tenant = c.tenant AND p.no = c.parent AND p.deleted IS NULL) AS parent,
    c.parent_seq,
    text_in(c.row, 'began')::timestamptz AS began, text_in(c.row, 'last_said')::timestamptz AS last_said
FROM conversation_rows c WHERE c.deleted IS NULL AND NOT is_over(c.expires);

CREATE OR REPLACE VIEW turns WITH (security_invoker = true) AS
-- A fork with its ancestors: events of `no` in (floor, cap] are its own.
WITH RECURSIVE lineage (tenant, fork, level, no, floor, cap) AS (
    SELECT tenant, no, 0, no, parent_seq, 9223372036854775807 FROM conversation_rows
    WHERE parent IS NOT NULL AND deleted IS NULL
    UNION ALL
    SELECT l.tenant, l.fork, l.level + 1, p.no, coalesce(p.parent_seq, 0), least(l.cap, l.floor)
    FROM lineage l JOIN conversation_rows c ON c.tenant = l.tenant AND c.no = l.no
    JOIN conversation_rows p ON p.tenant = c.tenant AND p.no = c.parent
    WHERE l.level < 100
),
found (tenant, conversation, seq, place, id, actor, role, status, created, superseded_by, event_of, event_seq, is_open) AS (
    SELECT t.tenant, t.conversation, t.seq, t.place, t.id, t.actor, t.role, t.status, t.created, t.superseded_by,
        t.conversation, coalesce(t.content_seq, t.seq), t.status = 'pending'
    FROM turn_rows t JOIN conversation_rows c
        ON c.tenant = t.tenant AND c.no = t.conversation AND t.seq > coalesce(c.parent_seq, 0)
    UNION ALL
    -- Inherited, as they were at the fork; the row of the youngest counts.
    SELECT l.tenant, l.fork, t.seq, CASE WHEN l.level > 0 AND t.placed_seq > l.cap THEN t.seq ELSE t.place END,
        t.id, t.actor, t.role,
        CASE WHEN l.level > 0 AND (t.status = 'pending' OR t.content_seq > l.cap) THEN 'interrupted' ELSE t.status END,
        t.created,
        CASE WHEN l.level = 0 OR t.superseded_seq <= l.cap THEN t.superseded_by END,
        o.no, s.seq, false
    FROM lineage l JOIN turn_rows t
        ON t.tenant = l.tenant AND t.conversation = l.no AND t.seq <= CASE l.level WHEN 0 THEN l.floor ELSE l.cap END
    CROSS JOIN LATERAL (
        SELECT CASE WHEN l.level > 0 AND t.content_seq > l.cap THEN t.seq ELSE coalesce(t.content_seq, t.seq) END AS seq
    ) s
    LEFT JOIN lineage o ON o.tenant = l.tenant AND o.fork = l.fork AND s.seq > o.floor AND s.seq <= o.cap
    WHERE NOT EXISTS (
        SELECT 1 FROM lineage y JOIN turn_rows n ON n.tenant = y.tenant AND n.conversation = y.no AND n.seq = t.seq
        WHERE y.tenant = l.tenant AND y.fork = l.fork AND y.level < l.level
    )
)
SELECT *,
    CASE WHEN is_result(message) THEN 'tool' ELSE role END AS speaker,
    CASE WHEN status = 'pending' OR message IS NULL THEN content ELSE words_of(message) END AS text
FROM (
    SELECT
        text_of_id('turn_', f.id) AS id, text_of_id('conv_', c.id) AS conversation, f.tenant, f.seq, f.place, f.actor, f.role, f.status,
        CASE
            WHEN e.body IS NULL THEN NULL
            WHEN f.is_open THEN (
                -- A chunk that was written again overlaps the one before.
                SELECT text_of(string_agg(substr(k.text, 1 + greatest(0, coalesce(k.before, k.start) - k.start)::int), ''::bytea ORDER BY k.start))
                FROM (
                    SELECT start, text, max(start + length(text))
                        OVER (ORDER BY start ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
                    FROM turn_chunks WHERE tenant = f.tenant AND conversation = f.conversation AND turn_seq = f.seq
                ) k
            )
            ELSE text_in(e.body, 'message', 'content')
        END AS content,
        json_in(e.body, 'message') AS message, text_in(e.body, 'model') AS model, json_in(e.body, 'tokens') AS tokens,
        json_in(e.body, 'metadata') AS metadata, e.visibility, json_in(e.body, 'audience') AS audience,
        time_of(f.created) AS created, f.superseded_by
    FROM found f JOIN conversation_rows c ON c.tenant = f.tenant AND c.no = f.conversation AND c.deleted IS NULL AND NOT is_over(c.expires)
    LEFT JOIN events e ON e.tenant = f.tenant AND e.conversation = f.event_of AND e.seq = f.event_seq
) t;

CREATE OR REPLACE VIEW conversation_facts WITH (security_invoker = true) AS
WITH RECURSIVE lineage (tenant, reader, level, no, floor, cap) AS (
    SELECT tenant, no, 0, no, coalesce(parent_seq, 0), 9223372036854775807 FROM conversation_rows WHERE deleted IS NULL
    UNION ALL
    SELECT l.tenant, l.reader, l.level + 1, p.no, coalesce(p.parent_seq, 0), least(l.cap, l.floor)
    FROM lineage l JOIN conversation_rows c ON c.tenant = l.tenant AND c.no = l.no
    JOIN conversation_rows p ON p.tenant = c.tenant AND p.no = c.parent
    WHERE l.level < 100
),
statement (tenant, reader, fact, corrects, seq, kind, at, turn, visibility, body) AS MATERIALIZED (
    SELECT l.tenant, l.reader, r.id, r.corrects, r.seq, e.kind, e.at, e.turn, e.visibility, e.body
    FROM lineage l
    JOIN fact_statements r ON r.tenant = l.tenant AND r.conversation = l.no AND r.seq > l.floor AND r.seq <= l.cap
    JOIN events e ON e.tenant = r.tenant AND e.conversation = r.conversation AND e.seq = r.seq AND e.body IS NOT NULL
),
-- A correction says only what differs.
fact (tenant, reader, fact, seq, at, turn, subject, predicate, object, confidence, visibility, audience) AS (
    SELECT * FROM (
        SELECT DISTINCT ON (tenant, reader, fact) tenant, reader, fact, seq, at, turn, text_in(body, 'subject'),
            text_in(body, 'predicate'), text_in(body, 'object'), text_in(body, 'confidence')::float8, visibility,
            json_in(body, 'audience')::text
        FROM statement WHERE kind IN ('fact.added', 'fact.extracted') ORDER BY tenant, reader, fact, seq
    ) first
    UNION ALL
    SELECT s.tenant, s.reader, s.fact, s.seq, s.at, s.turn, coalesce(text_in(s.body, 'subject'), f.subject),
        coalesce(text_in(s.body, 'predicate'), f.predicate), coalesce(text_in(s.body, 'object'), f.object),
        text_in(s.body, 'confidence')::float8, s.visibility, json_in(s.body, 'audience')::text
    FROM fact f JOIN statement s
        ON s.tenant = f.tenant AND s.reader = f.reader AND s.corrects = f.fact AND s.kind = 'fact.corrected'
)
SELECT
    text_of_id('fact_', f.fact) AS id, text_of_id('conv_', c.id) AS conversation, f.tenant, f.seq, f.subject, f.predicate,
    f.object, f.confidence, f.visibility, f.audience::json AS audience, text_of_id('turn_', f.turn) AS source_turn,
    time_of(f.at) AS created,
    (SELECT text_of_id('fact_', s.fact) FROM statement s WHERE s.tenant = f.tenant AND s.reader = f.reader
        AND s.corrects = f.fact AND s.kind = 'fact.corrected' ORDER BY s.seq LIMIT 1) AS corrected_by,
    EXISTS (SELECT 1 FROM statement s WHERE s.tenant = f.tenant AND s.reader = f.reader AND s.kind = 'fact.retracted'
        AND (s.corrects = f.fact OR s.fact = f.fact)) AS retracted
FROM fact f JOIN conversation_rows c ON c.tenant = f.tenant AND c.no = f.reader AND NOT is_over(c.expires);

-- Version 2.

-- Which database may delete in the place of the assets: a copy of the database has the same id. See `assets.rs`.
ALTER TABLE store_identity
    ADD COLUMN mark      text,                 -- in the place when it was last renewed,
    ADD COLUMN next_mark text;                 -- and the one that was then written there

-- Ends what `let_read` began. Policies are found by what they say: version 1 named them differently.
CREATE FUNCTION stop_reading(tenant text, reader name) RETURNS void LANGUAGE plpgsql AS $$ DECLARE found record; BEGIN
    FOR found IN SELECT p.policyname, p.tablename FROM pg_policies p WHERE p.schemaname = current_schema() AND p.roles = ARRAY[reader]
        AND p.cmd = 'SELECT' AND position(quote_literal(stop_reading.tenant) IN p.qual) > 0
    LOOP
        EXECUTE format('DROP POLICY %I ON %I', found.policyname, found.tablename);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION let_read(tenant text, reader name) RETURNS void LANGUAGE plpgsql AS $$ DECLARE name text; BEGIN
    PERFORM stop_reading(tenant, reader);
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), reader);
    EXECUTE format('GRANT SELECT ON conversations, turns, conversation_facts TO %I', reader);
    FOREACH name IN ARRAY ARRAY['conversation_rows', 'events', 'turn_rows', 'turn_chunks', 'fact_statements', 'asset_rows'] LOOP
        EXECUTE format('CREATE POLICY %I ON %I FOR SELECT TO %I USING (tenant = %L)', 'reader ' || md5(tenant || ' ' || reader), name, reader, tenant);
        EXECUTE format('GRANT SELECT ON %I TO %I', name, reader);
    END LOOP;
END $$;

-- Few turns are edits, and fewer were superseded: looking for these among all turns of a long conversation read all of
-- them. Appends wait while the indexes are made, some seconds for a million turns.

CREATE INDEX turn_rows_moved ON turn_rows (tenant, conversation, place) WHERE placed_seq IS NOT NULL;
CREATE INDEX turn_rows_fallen ON turn_rows (tenant, conversation, seq) WHERE superseded_seq IS NOT NULL;

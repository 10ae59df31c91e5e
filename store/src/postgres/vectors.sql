-- Vectors of entries, by pgvector. Made when the extension is there, at the first opening of the store that finds it.

CREATE TABLE recall_vectors (
    tenant    text COLLATE "C" NOT NULL,
    model     integer NOT NULL,
    entry     integer NOT NULL,
    embedding halfvec,                         -- of length 1; null: there is nothing in this entry that could have a vector
    PRIMARY KEY (tenant, model, entry)
) PARTITION BY HASH (tenant);

DO $$ DECLARE name text; BEGIN
    FOR part IN 0..15 LOOP
        EXECUTE format('CREATE TABLE %I PARTITION OF recall_vectors FOR VALUES WITH (MODULUS 16, REMAINDER %s)', 'recall_vectors_' || part, part);
    END LOOP;
    FOR name IN SELECT c.relname FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace AND c.relname ~ '^recall_vectors(_\d+)?$'
        AND c.relkind IN ('r', 'p')
    LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY server ON %I TO %I USING ((SELECT current_setting(''everturn.tenants'', true) = ''*'')
            OR tenant = ANY ((SELECT string_to_array(current_setting(''everturn.tenants'', true), '' ''))::text[]))', name, current_user);
    END LOOP;
END $$;

-- Version 6: these names are those of the views that people read (see views.sql).
ALTER TABLE conversations RENAME TO conversation_rows;
ALTER TABLE turns RENAME TO turn_rows;
ALTER TABLE conversation_facts RENAME TO fact_rows;

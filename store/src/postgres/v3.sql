-- Version 3: the view `turns` has `speaker` and `text` (see views.sql).

-- Every append wrote an entry here. Only turns that were moved have a place that is not their `seq`, and these are in
-- `turn_rows_moved`.
DROP INDEX turn_rows_by_place;

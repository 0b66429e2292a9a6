-- The tables of `cachalot export --to sqlite`: docs/export.md describes them. Sizes are in bytes, times in microseconds since 1970.
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE stacks (id INTEGER PRIMARY KEY, own_frame TEXT);
CREATE TABLE frames (
  stack_id INTEGER NOT NULL REFERENCES stacks (id), depth INTEGER NOT NULL, function TEXT NOT NULL, file TEXT NOT NULL,
  line INTEGER NOT NULL, PRIMARY KEY (stack_id, depth)
) WITHOUT ROWID;
CREATE TABLE segments (
  id INTEGER PRIMARY KEY, device INTEGER NOT NULL, address INTEGER NOT NULL, bytes INTEGER NOT NULL, stream INTEGER NOT NULL,
  pool TEXT NOT NULL, kind TEXT, is_expandable INTEGER, stack_id INTEGER REFERENCES stacks (id)
);
CREATE TABLE blocks (
  segment_id INTEGER NOT NULL REFERENCES segments (id), address INTEGER NOT NULL, bytes INTEGER NOT NULL,
  requested_bytes INTEGER, state TEXT NOT NULL, stack_id INTEGER REFERENCES stacks (id), PRIMARY KEY (segment_id, address)
) WITHOUT ROWID;
CREATE TABLE events (
  device INTEGER NOT NULL, number INTEGER NOT NULL, time_us INTEGER, action TEXT NOT NULL, address INTEGER,
  bytes INTEGER NOT NULL, stream INTEGER NOT NULL, pool TEXT, stack_id INTEGER REFERENCES stacks (id), note TEXT,
  reserved INTEGER NOT NULL, allocated INTEGER NOT NULL, pending INTEGER NOT NULL, PRIMARY KEY (device, number)
) WITHOUT ROWID;
CREATE TABLE annotations (device INTEGER NOT NULL, time_us INTEGER NOT NULL, stage TEXT NOT NULL, name TEXT NOT NULL);
CREATE VIEW live AS
  SELECT segments.device, stacks.own_frame, blocks.stack_id, count(*) AS blocks, sum(blocks.bytes) AS bytes,
    sum(CASE blocks.state WHEN 'active_allocated' THEN 0 ELSE blocks.bytes END) AS pending
  FROM blocks JOIN segments ON segments.id = blocks.segment_id LEFT JOIN stacks ON stacks.id = blocks.stack_id
  WHERE blocks.state <> 'inactive' GROUP BY segments.device, blocks.stack_id;

-- Where a lane began: what was before it was never for it. Written by who makes lanes, read by delivery/explain.py.

alter table lanes
    add column began_win bigint,                                     -- null: from the beginning, or made before this was kept
    add column began_seq bigint,
    add constraint lanes_began_check check ((began_win is null) = (began_seq is null));

-- A replay that is under way says in the end from where on it sent. Of these only the rest is known.
update lanes set began_win = win, began_seq = seq where side > 0 and state <> 'closed';

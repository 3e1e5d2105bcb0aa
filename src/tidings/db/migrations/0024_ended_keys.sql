-- The end of an access key that has no API key behind it; the ends of all others are in revoked_tails.
alter table access_keys add column revoked_at timestamptz;

-- The id of the master key that takes the place of this row's: a rotation under the former one would lock out who has it already.
alter table data_keys add column superseded_by text;

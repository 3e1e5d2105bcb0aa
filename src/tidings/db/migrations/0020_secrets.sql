-- Secrets are encrypted (docs/adr/0013). `seal_secrets.py` does that with the rows that are there, and drops the columns that held
-- them in clear, in the transaction of this file.

-- What secrets are encrypted with. A row is one data key, wrapped under one master key: a key has two rows while the master key changes.
create table data_keys (
    number     bigint not null,                                      -- the highest is the one to encrypt with
    id         uuid not null,
    master     text not null,                                        -- the id of the master key
    wrapped    bytea not null,
    created_at timestamptz not null default now(),
    retired_at timestamptz,                                          -- no secret is under it any more
    primary key (id, master)
);

alter table access_keys
    add column sealed_secret bytea,
    add column sealed_tail   bytea,                                  -- of the API key that it stands for
    add column caveats       bytea[];
alter table api_keys add column sealed_root bytea;

alter table subscriptions
    add column sealed_secrets bytea,                                 -- of Standard Webhooks: the newest first, separated by a space
    add column secret_count   smallint not null default 0;

-- Who has a tail has the key: of those that were revoked the hash is enough.
update revoked_tails set tail = sha256(tail);

-- What messages are signed with, if the settings name no files: the newest row that has a key. The certificate of one that was
-- replaced, or that the settings name no longer, stays: messages that were signed with it are verified by it.
create table signing_keys (
    id          text primary key,                                    -- in the URL of the certificate
    sealed_key  bytea,                                               -- PEM
    certificate text not null,                                       -- PEM
    created_at  timestamptz not null default now()
);

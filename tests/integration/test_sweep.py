from __future__ import annotations

import psycopg

from tidings.store.sweep import _ORPHANS


def test_looking_for_orphans_goes_through_the_rows_once(database: psycopg.Connection) -> None:
    """However many names are asked for: otherwise a sweep of 100,000 blobs would not come to an end."""
    database.execute("insert into projects (public_id, name) values ('p', 'p')")
    database.execute("insert into bucket_metainfos (project_id, name) select id, 'bucket' from projects")
    database.execute(
        "insert into heads"
        " (bucket_id, key, version_id, delete_marker, size, etag, content_type, metadata, tags, config, segments)"
        " select id, n::text, 'null', false, 1, '', '', '{}', '{}', config, jsonb_build_array(jsonb_build_array('b' || n, 1))"
        " from bucket_metainfos, generate_series(1, 20000) n"
    )
    names = [f"b{number}" for number in range(1, 10_001)] + ["orphan"]
    plan = "\n".join(row[0] for row in database.execute(f"explain {_ORPHANS}".encode(), [names]).fetchall())
    assert "Hash" in plan
    assert "Anti Join" in plan
    assert "Nested Loop Anti" not in plan
    assert database.execute(_ORPHANS.encode(), [names]).fetchall() == [("orphan",)]

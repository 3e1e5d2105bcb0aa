-- The trace that a change belongs to: the context of the request that made it, null where nobody records it. Written by store/.

alter table changes add column trace text;                           -- W3C traceparent, and behind a space the tracestate

"""The verdicts over all writes of a scenario, from the audit and the history of terms alone."""

TWICE = """
    SELECT worker, format('slot %s was written %s times: %s', slot, count(*) OVER (PARTITION BY slot),
                          string_agg(worker || ' token ' || token, ', ') OVER (PARTITION BY slot))
      FROM audit
     WHERE slot IN (SELECT slot FROM audit GROUP BY slot HAVING count(*) > 1)
     ORDER BY n"""

STRANGE = """
    SELECT worker, format('slot %s: %s had no term with token %s, or had not yet', slot, worker, token)
      FROM audit a
     WHERE done IS DISTINCT FROM true OR NOT EXISTS (
           SELECT FROM lease_history
            WHERE role = 'mail' AND fencing_token = a.token AND holder_id = a.worker AND acquired_at <= a.at)
     ORDER BY n"""

LATE = """
    SELECT worker, format('slot %s: written with token %s after a write with token %s', slot, token, highest)
      FROM (SELECT *, max(token) OVER (ORDER BY n) AS highest FROM audit) a
     WHERE token < highest
     ORDER BY n"""

EARLY = """
    SELECT worker, format('slot %s: the highest one before was %s', slot, highest)
      FROM (SELECT *, coalesce(max(slot) OVER before, 0) AS highest
              FROM audit WINDOW before AS (ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) a
     WHERE slot > highest + 1
     ORDER BY n"""

SHOWN = 5


def verdicts(server, workers):
    """Pairs of words and faults, for each worker and over all."""
    twice, early, strange, late = (server.query(sql) for sql in (TWICE, EARLY, STRANGE, LATE))
    for worker in workers:
        own = {*worker.holders, worker.holder}
        for words, found in (("each of its slots was done once", twice),
                             ("none of its slots comes before its turn", early),
                             ("each of its writes is of a term that it had", strange),
                             ("none of its writes comes after one of a later term", late)):
            yield f"{worker.name}: {words}", [text for holder, text in found if holder in own][:SHOWN]
    known = {holder for worker in workers for holder in (*worker.holders, worker.holder)}
    yield "nobody else has written", [text for holder, text in strange if holder not in known][:SHOWN]


def summary(server):
    (writes, terms), = server.query("SELECT count(*), count(DISTINCT token) FROM audit")
    log = server.log.read_text(errors="replace")
    return (f"-- {writes} jobs in {terms} terms; refused: {log.count(' LF001 ERROR: ')} by a stale fence, "
            f"{log.count(' LF002 ERROR: ')} without one")

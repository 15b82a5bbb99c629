-- begin
INSERT INTO shield_reconcile_run (run_id, scope, mode, who, started_at, lease_until, folder, basis)
VALUES ('sample', 'sample', 'sample', 'sample', strftime('%Y-%m-%d %H:%M:%f000', 'now'), strftime('%Y-%m-%d
    %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:param_1 AS FLOAT))), 'sample', 'sample')
ON CONFLICT DO NOTHING
RETURNING run_id;

-- set_right
UPDATE shield_reconcile_run
SET started_at=strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:param_1 AS FLOAT))),
    finished_at=CASE WHEN (shield_reconcile_run.finished_at > strftime('%Y-%m-%d %H:%M:%f000', 'now')) THEN
    strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:param_1 AS FLOAT))) ELSE
    shield_reconcile_run.finished_at END
WHERE shield_reconcile_run.scope = 'sample' AND shield_reconcile_run.started_at > strftime('%Y-%m-%d
    %H:%M:%f000', 'now');

-- shorten_leases
UPDATE shield_reconcile_run
SET lease_until=strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:param_1 AS FLOAT)))
WHERE shield_reconcile_run.scope = 'sample' AND shield_reconcile_run.outcome IS NULL AND
    shield_reconcile_run.lease_until > strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds',
    CAST(:param_2 AS FLOAT)));

-- give_up_dead
UPDATE shield_reconcile_run
SET finished_at=strftime('%Y-%m-%d %H:%M:%f000', 'now'), outcome='sample', problem='sample'
WHERE shield_reconcile_run.scope = 'sample' AND shield_reconcile_run.outcome IS NULL AND
    shield_reconcile_run.lease_until <= strftime('%Y-%m-%d %H:%M:%f000', 'now');

-- extend
UPDATE shield_reconcile_run
SET lease_until=strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:param_1 AS FLOAT)))
WHERE shield_reconcile_run.run_id = 'sample' AND shield_reconcile_run.outcome IS NULL;

-- judge
UPDATE shield_reconcile_run
SET mode='sample', basis='sample'
WHERE shield_reconcile_run.run_id = 'sample' AND shield_reconcile_run.outcome IS NULL;

-- finish
UPDATE shield_reconcile_run
SET finished_at=strftime('%Y-%m-%d %H:%M:%f000', 'now'), outcome='sample', good=True, watermarks='sample',
    totals='sample', problem='sample'
WHERE shield_reconcile_run.run_id = 'sample' AND shield_reconcile_run.outcome IS NULL;

-- old_good
SELECT shield_reconcile_run.run_id, shield_reconcile_run.basis
FROM shield_reconcile_run
WHERE shield_reconcile_run.scope = 'sample' AND shield_reconcile_run.good = 1 AND
    shield_reconcile_run.started_at < strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds',
    CAST(:param_1 AS FLOAT)))
ORDER BY shield_reconcile_run.started_at DESC, shield_reconcile_run.run_id DESC;

-- runs
SELECT shield_reconcile_run.run_id, shield_reconcile_run.scope, shield_reconcile_run.mode,
    shield_reconcile_run.who, shield_reconcile_run.started_at AS started_at, shield_reconcile_run.lease_until
    AS lease_until, shield_reconcile_run.finished_at AS finished_at, shield_reconcile_run.outcome,
    shield_reconcile_run.good, shield_reconcile_run.watermarks, shield_reconcile_run.totals,
    shield_reconcile_run.folder, shield_reconcile_run.problem, shield_reconcile_run.basis, strftime('%Y-%m-%d
    %H:%M:%f000', 'now') AS at, shield_reconcile_run.outcome IS NULL AND shield_reconcile_run.lease_until <=
    strftime('%Y-%m-%d %H:%M:%f000', 'now') AS dead
FROM shield_reconcile_run
WHERE shield_reconcile_run.scope = 'sample'
ORDER BY shield_reconcile_run.started_at DESC, shield_reconcile_run.run_id DESC;

-- scopes
SELECT shield_reconcile_run.scope
FROM shield_reconcile_run
WHERE shield_reconcile_run.outcome IS NOT NULL AND shield_reconcile_run.scope != 'sample'
GROUP BY shield_reconcile_run.scope
ORDER BY max(shield_reconcile_run.started_at) DESC, shield_reconcile_run.scope;

-- forget_old
DELETE FROM shield_reconcile_run
WHERE shield_reconcile_run.scope = 'sample' AND shield_reconcile_run.outcome IS NOT NULL AND
    shield_reconcile_run.started_at < strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds',
    CAST(:param_1 AS FLOAT))) AND (shield_reconcile_run.run_id NOT IN ('sample'));

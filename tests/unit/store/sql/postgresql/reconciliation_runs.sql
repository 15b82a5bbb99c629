-- begin
INSERT INTO shield_reconcile_run (run_id, scope, mode, who, started_at, lease_until, folder, basis)
VALUES ('sample', 'sample', 'sample', 'sample', statement_timestamp(), (statement_timestamp() + :param_1),
    'sample', 'sample')
ON CONFLICT DO NOTHING
RETURNING shield_reconcile_run.run_id;

-- set_right
UPDATE shield_reconcile_run
SET started_at=(statement_timestamp() + :param_1), finished_at=CASE WHEN (shield_reconcile_run.finished_at >
    statement_timestamp()) THEN statement_timestamp() + :param_1 ELSE shield_reconcile_run.finished_at END
WHERE shield_reconcile_run.scope = 'sample' AND shield_reconcile_run.started_at > statement_timestamp();

-- shorten_leases
UPDATE shield_reconcile_run
SET lease_until=(statement_timestamp() + :param_1)
WHERE shield_reconcile_run.scope = 'sample' AND shield_reconcile_run.outcome IS NULL AND
    shield_reconcile_run.lease_until > statement_timestamp() + :param_2;

-- give_up_dead
UPDATE shield_reconcile_run
SET finished_at=statement_timestamp(), outcome='sample', problem='sample'
WHERE shield_reconcile_run.scope = 'sample' AND shield_reconcile_run.outcome IS NULL AND
    shield_reconcile_run.lease_until <= statement_timestamp();

-- extend
UPDATE shield_reconcile_run
SET lease_until=(statement_timestamp() + :param_1)
WHERE shield_reconcile_run.run_id = 'sample' AND shield_reconcile_run.outcome IS NULL;

-- judge
UPDATE shield_reconcile_run
SET mode='sample', basis='sample'
WHERE shield_reconcile_run.run_id = 'sample' AND shield_reconcile_run.outcome IS NULL;

-- finish
UPDATE shield_reconcile_run
SET finished_at=statement_timestamp(), outcome='sample', good=True, watermarks='sample', totals='sample',
    problem='sample'
WHERE shield_reconcile_run.run_id = 'sample' AND shield_reconcile_run.outcome IS NULL;

-- old_good
SELECT shield_reconcile_run.run_id, shield_reconcile_run.basis
FROM shield_reconcile_run
WHERE shield_reconcile_run.scope = 'sample' AND shield_reconcile_run.good AND shield_reconcile_run.started_at
    < statement_timestamp() + :param_1
ORDER BY shield_reconcile_run.started_at DESC, shield_reconcile_run.run_id DESC;

-- runs
SELECT shield_reconcile_run.run_id, shield_reconcile_run.scope, shield_reconcile_run.mode,
    shield_reconcile_run.who, timezone('UTC', shield_reconcile_run.started_at) AS started_at, timezone('UTC',
    shield_reconcile_run.lease_until) AS lease_until, timezone('UTC', shield_reconcile_run.finished_at) AS
    finished_at, shield_reconcile_run.outcome, shield_reconcile_run.good, shield_reconcile_run.watermarks,
    shield_reconcile_run.totals, shield_reconcile_run.folder, shield_reconcile_run.problem,
    shield_reconcile_run.basis, timezone('UTC', statement_timestamp()) AS at, shield_reconcile_run.outcome IS
    NULL AND shield_reconcile_run.lease_until <= statement_timestamp() AS dead
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
    shield_reconcile_run.started_at < statement_timestamp() + :param_1 AND (shield_reconcile_run.run_id NOT IN
    ('sample'));

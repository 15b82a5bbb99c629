-- record
INSERT INTO shield_audit (at, who, action, subject, detail)
VALUES (strftime('%Y-%m-%d %H:%M:%f000', 'now'), 'sample', 'sample', 'sample', 'sample');

-- entries
INSERT INTO shield_audit (at, who, action, subject, detail)
VALUES (strftime('%Y-%m-%d %H:%M:%f000', 'now'), :who, :action, :subject, :detail);

-- purge
DELETE FROM shield_audit
WHERE shield_audit.id IN (SELECT shield_audit.id
  FROM shield_audit
  ORDER BY shield_audit.id
  LIMIT 100 OFFSET 0) AND shield_audit.at < strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds',
      CAST(:param_3 AS FLOAT)));

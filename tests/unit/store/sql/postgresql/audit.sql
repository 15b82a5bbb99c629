-- record
INSERT INTO shield_audit (at, who, action, subject, detail)
VALUES (statement_timestamp(), 'sample', 'sample', 'sample', 'sample');

-- entries
INSERT INTO shield_audit (at, who, action, subject, detail)
VALUES (statement_timestamp(), :who::VARCHAR, :action::VARCHAR, :subject::VARCHAR, :detail::VARCHAR);

-- purge
DELETE FROM shield_audit
WHERE shield_audit.id IN (SELECT shield_audit.id
  FROM shield_audit
  ORDER BY shield_audit.id
  LIMIT 100
  FOR UPDATE SKIP LOCKED) AND shield_audit.at < statement_timestamp() + :param_2;

-- due
SELECT summed.event_id, summed.event_type, summed.source, summed.topic, summed.payload, summed.event_time,
    summed.tx_kind, summed.operation, summed.key, summed.biz_key, summed.headers, summed.causation_id,
    summed.causation_source, summed.traceparent, summed.dataschema
FROM (SELECT line.event_id AS event_id, line.event_type AS event_type, line.source AS source, line.topic AS
    topic, line.payload AS payload, line.event_time AS event_time, line.tx_kind AS tx_kind, line.operation AS
    operation, line.key AS key, line.biz_key AS biz_key, line.headers AS headers, line.causation_id AS
    causation_id, line.causation_source AS causation_source, line.traceparent AS traceparent, line.dataschema
    AS dataschema, line.seq AS seq, line.size AS size, sum(line.size) OVER (ORDER BY line.seq ROWS BETWEEN
    UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
  FROM (SELECT waiting.event_id AS event_id, waiting.event_type AS event_type, waiting.source AS source,
      waiting.topic AS topic, waiting.payload AS payload, waiting.event_time AS event_time, waiting.tx_kind AS
      tx_kind, waiting.operation AS operation, waiting.key AS key, waiting.biz_key AS biz_key, waiting.headers
      AS headers, waiting.causation_id AS causation_id, waiting.causation_source AS causation_source,
      waiting.traceparent AS traceparent, waiting.dataschema AS dataschema, waiting.seq AS seq,
      octet_length(waiting.payload) AS size
    FROM shield_inbox AS waiting
    WHERE waiting.consumer_group = :of_group::VARCHAR AND waiting.settled_at IS NULL AND (waiting.tx_kind =
        'COMMIT' AND waiting.event_type = ANY (:handled_commits::TEXT[]) OR waiting.tx_kind = 'ROLLBACK' AND
        waiting.event_type = ANY (:handled_rollbacks::TEXT[])) AND waiting.due_at <= statement_timestamp() AND
        (waiting.lease_until IS NULL OR waiting.lease_until <= statement_timestamp()) AND NOT ((EXISTS (SELECT
        *
          FROM shield_inbox AS earlier
          WHERE earlier.consumer_group = waiting.consumer_group AND earlier.settled_at IS NULL AND
              earlier.topic = waiting.topic AND earlier.key = waiting.key AND earlier.seq < waiting.seq AND
              NOT (EXISTS (SELECT *
              FROM shield_inbox AS shield_inbox_1
              WHERE shield_inbox_1.consumer_group = earlier.consumer_group AND shield_inbox_1.settled_at IS
                  NULL AND earlier.tx_kind = 'ROLLBACK' AND shield_inbox_1.tx_kind = 'COMMIT' AND
                  shield_inbox_1.event_id = earlier.causation_id AND (earlier.causation_source IS NULL OR
                  shield_inbox_1.source = earlier.causation_source))))) OR (EXISTS (SELECT *
          FROM shield_inbox AS shield_inbox_2
          WHERE shield_inbox_2.consumer_group = waiting.consumer_group AND shield_inbox_2.settled_at IS NULL
              AND waiting.tx_kind = 'ROLLBACK' AND shield_inbox_2.tx_kind = 'COMMIT' AND
              shield_inbox_2.event_id = waiting.causation_id AND (waiting.causation_source IS NULL OR
              shield_inbox_2.source = waiting.causation_source))))
    ORDER BY waiting.seq
    LIMIT :most::INTEGER) AS line) AS summed
WHERE coalesce(summed.before, 0) < :bytes_at_most::BIGINT
ORDER BY summed.seq;

-- longest_due
SELECT waiting.event_id, waiting.event_type, waiting.source, waiting.topic, waiting.payload,
    waiting.event_time AS event_time, waiting.tx_kind, waiting.operation, waiting.key, waiting.biz_key,
    waiting.headers, waiting.causation_id, waiting.causation_source, waiting.traceparent, waiting.dataschema
FROM shield_inbox AS waiting
WHERE waiting.consumer_group = :of_group::VARCHAR AND waiting.settled_at IS NULL AND (waiting.tx_kind =
    'COMMIT' AND waiting.event_type = ANY (:handled_commits::TEXT[]) OR waiting.tx_kind = 'ROLLBACK' AND
    waiting.event_type = ANY (:handled_rollbacks::TEXT[])) AND waiting.due_at <= statement_timestamp() AND
    (waiting.lease_until IS NULL OR waiting.lease_until <= statement_timestamp()) AND NOT ((EXISTS (SELECT *
      FROM shield_inbox AS earlier
      WHERE earlier.consumer_group = waiting.consumer_group AND earlier.settled_at IS NULL AND earlier.topic =
          waiting.topic AND earlier.key = waiting.key AND earlier.seq < waiting.seq AND NOT (EXISTS (SELECT *
          FROM shield_inbox AS shield_inbox_1
          WHERE shield_inbox_1.consumer_group = earlier.consumer_group AND shield_inbox_1.settled_at IS NULL
              AND earlier.tx_kind = 'ROLLBACK' AND shield_inbox_1.tx_kind = 'COMMIT' AND
              shield_inbox_1.event_id = earlier.causation_id AND (earlier.causation_source IS NULL OR
              shield_inbox_1.source = earlier.causation_source))))) OR (EXISTS (SELECT *
      FROM shield_inbox AS shield_inbox_2
      WHERE shield_inbox_2.consumer_group = waiting.consumer_group AND shield_inbox_2.settled_at IS NULL AND
          waiting.tx_kind = 'ROLLBACK' AND shield_inbox_2.tx_kind = 'COMMIT' AND shield_inbox_2.event_id =
          waiting.causation_id AND (waiting.causation_source IS NULL OR shield_inbox_2.source =
          waiting.causation_source))))
ORDER BY waiting.due_at, waiting.seq
LIMIT 1;

-- newest_unattempted
SELECT waiting.event_id, waiting.event_type, waiting.source, waiting.topic, waiting.payload,
    waiting.event_time AS event_time, waiting.tx_kind, waiting.operation, waiting.key, waiting.biz_key,
    waiting.headers, waiting.causation_id, waiting.causation_source, waiting.traceparent, waiting.dataschema
FROM shield_inbox AS waiting
WHERE waiting.consumer_group = :of_group::VARCHAR AND waiting.settled_at IS NULL AND (waiting.tx_kind =
    'COMMIT' AND waiting.event_type = ANY (:handled_commits::TEXT[]) OR waiting.tx_kind = 'ROLLBACK' AND
    waiting.event_type = ANY (:handled_rollbacks::TEXT[])) AND waiting.due_at <= statement_timestamp() AND
    (waiting.lease_until IS NULL OR waiting.lease_until <= statement_timestamp()) AND NOT ((EXISTS (SELECT *
      FROM shield_inbox AS earlier
      WHERE earlier.consumer_group = waiting.consumer_group AND earlier.settled_at IS NULL AND earlier.topic =
          waiting.topic AND earlier.key = waiting.key AND earlier.seq < waiting.seq AND NOT (EXISTS (SELECT *
          FROM shield_inbox AS shield_inbox_1
          WHERE shield_inbox_1.consumer_group = earlier.consumer_group AND shield_inbox_1.settled_at IS NULL
              AND earlier.tx_kind = 'ROLLBACK' AND shield_inbox_1.tx_kind = 'COMMIT' AND
              shield_inbox_1.event_id = earlier.causation_id AND (earlier.causation_source IS NULL OR
              shield_inbox_1.source = earlier.causation_source))))) OR (EXISTS (SELECT *
      FROM shield_inbox AS shield_inbox_2
      WHERE shield_inbox_2.consumer_group = waiting.consumer_group AND shield_inbox_2.settled_at IS NULL AND
          waiting.tx_kind = 'ROLLBACK' AND shield_inbox_2.tx_kind = 'COMMIT' AND shield_inbox_2.event_id =
          waiting.causation_id AND (waiting.causation_source IS NULL OR shield_inbox_2.source =
          waiting.causation_source)))) AND waiting.status = 'INIT'
ORDER BY waiting.seq DESC
LIMIT 1;

-- pending
SELECT shield_inbox.topic, shield_inbox.tx_kind, shield_inbox.record_partition, count(*) AS count_1
FROM shield_inbox
WHERE shield_inbox.consumer_group = :of_group::VARCHAR AND shield_inbox.settled_at IS NULL AND
    (shield_inbox.tx_kind = 'COMMIT' AND shield_inbox.event_type = ANY (:handled_commits::TEXT[]) OR
    shield_inbox.tx_kind = 'ROLLBACK' AND shield_inbox.event_type = ANY (:handled_rollbacks::TEXT[])) AND
    shield_inbox.record_partition IS NOT NULL
GROUP BY shield_inbox.topic, shield_inbox.tx_kind, shield_inbox.record_partition;

-- unfinished
SELECT count(*) AS count_1
FROM (SELECT shield_inbox.seq AS seq
  FROM shield_inbox
  WHERE shield_inbox.consumer_group = :of_group::VARCHAR AND shield_inbox.settled_at IS NULL
  ORDER BY shield_inbox.seq
  LIMIT :most::INTEGER) AS anon_1;

-- unhandled
SELECT anon_1.event_type, anon_1.tx_kind, count(*) AS count_1
FROM (SELECT shield_inbox.event_type AS event_type, shield_inbox.tx_kind AS tx_kind
  FROM shield_inbox
  WHERE shield_inbox.consumer_group = :of_group::VARCHAR AND shield_inbox.settled_at IS NULL AND NOT
      (shield_inbox.tx_kind = 'COMMIT' AND shield_inbox.event_type = ANY (:handled_commits::TEXT[]) OR
      shield_inbox.tx_kind = 'ROLLBACK' AND shield_inbox.event_type = ANY (:handled_rollbacks::TEXT[]))
  LIMIT :most::INTEGER) AS anon_1
GROUP BY anon_1.event_type, anon_1.tx_kind;

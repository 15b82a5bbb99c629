-- Only for services with half messages, after grants.sql: shop_web also prepares and resolves them. It then reads and changes
-- rows of the outbox. The grant on shield_barrier is for the database of the local transactions.
GRANT SELECT, UPDATE ON shield_outbox TO shop_web;
GRANT SELECT, INSERT ON shield_barrier TO shop_web;

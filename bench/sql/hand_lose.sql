-- somebody else leads: the usual upsert
INSERT INTO hand_lease AS l VALUES ('job', 'somebody else', 1, clock_timestamp() + '30 s')
    ON CONFLICT (role) DO UPDATE
   SET holder_id = EXCLUDED.holder_id, fencing_token = l.fencing_token + 1, expires_at = EXCLUDED.expires_at
 WHERE l.expires_at <= clock_timestamp() OR l.holder_id = EXCLUDED.holder_id
RETURNING fencing_token;

UPDATE hand_lease SET expires_at = clock_timestamp() + '30 s'
 WHERE role = 'renew' || :client_id AND holder_id = 'leader' AND fencing_token = 1 AND expires_at > clock_timestamp()
RETURNING expires_at;

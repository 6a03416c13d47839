SELECT lease_renew('renew' || :client_id, 'leader', 1);

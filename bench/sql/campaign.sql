-- waits for a lease whose holder lives on
CALL lease_campaign('job', 'somebody else', max_wait => ':wait seconds');

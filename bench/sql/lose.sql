-- somebody else leads
SELECT lease_acquire('job', 'somebody else');

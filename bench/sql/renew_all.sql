SELECT count(*) FROM lease_renew_all('worker');

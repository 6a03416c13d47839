-- What wrk asks of etcd: to prolong one of eight leases in turn.  ETCD_KIND txn: if the key is still the holder's, put it
-- anew, which goes to the log.  keepalive: etcd's own renewal, which it keeps in memory.
local digits = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'

local function base64(s)
	local out = s:gsub('..?.?', function(group)
		local a, b, c = group:byte(1, 3)
		local n = a * 65536 + (b or 0) * 256 + (c or 0)
		local four = ''
		for shift = 18, 0, -6 do
			local i = math.floor(n / 2 ^ shift) % 64 + 1
			four = four .. digits:sub(i, i)
		end
		return four:sub(1, #group + 1) .. ('='):rep(3 - #group)
	end)
	return out
end

local path = os.getenv('ETCD_KIND') == 'txn' and '/v3/kv/txn' or '/v3/lease/keepalive'
local bodies = {}
for id in os.getenv('ETCD_LEASES'):gmatch('%x+') do
	local key, holder = base64('renew' .. #bodies), base64('leader')
	-- the gateway wants the number in decimal, as a string, and Lua's numbers do not hold it
	local decimal = '0'
	for hex in id:gmatch('%x') do
		local carry, sum = tonumber(hex, 16), ''
		for d in decimal:reverse():gmatch('%d') do
			carry = carry + 16 * tonumber(d)
			sum = (carry % 10) .. sum
			carry = math.floor(carry / 10)
		end
		decimal = (carry > 0 and carry or '') .. sum
	end
	if path == '/v3/kv/txn' then
		table.insert(bodies, ('{"compare":[{"key":"%s","target":"VALUE","value":"%s"}],"success":[{"requestPut":{"key":"%s","value":"%s","lease":"%s"}}]}')
			:format(key, holder, key, holder, decimal))
	else
		table.insert(bodies, ('{"ID":"%s"}'):format(decimal))
	end
end

local turn = 0
function request()
	turn = turn % #bodies + 1
	return wrk.format('POST', path, { ['Content-Type'] = 'application/json' }, bodies[turn])
end

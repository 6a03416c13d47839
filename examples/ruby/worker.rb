#!/usr/bin/ruby
# frozen_string_literal: true

# A worker that works only while it leads: Ruby with the gem pg. Copy it.
#
#     ./run          (ruby worker.rb)
#
# PGHOST, PGUSER, PGDATABASE and so on say where the database is; LEASE_ROLE, LEASE_TTL (seconds), WORK_MS and
# WORKER_NAME are optional. SIGTERM or SIGINT: finish the job in hand, give the lease back, exit 0.
#
# Two clocks guard the work. The worker's own deadline stops it early, but a pause can come right after the look at the
# clock. The proof is the fence: the write carries the token of the term, and the database refuses it (SQLSTATE LF001)
# when that term is over.

require "io/wait"
require "pg"
require "securerandom"
require "timeout"

ROLE = ENV.fetch("LEASE_ROLE", "mail")
TTL = Float(ENV.fetch("LEASE_TTL", "10"))
BEAT = TTL / 3 # so two renewals may fail before the term is lost
WORK = Integer(ENV.fetch("WORK_MS", "200")) / 1000.0
MAX_WAIT = 10 # of one campaign. A limit, so that a connection that has died unnoticed does not wait for ever
# New for every run: two processes with one holder id would both lead.
HOLDER = "#{ENV.fetch("WORKER_NAME", "ruby")}-#{SecureRandom.hex(4)}"

$stdout.sync = true

# Seconds on a clock that nobody can set and that also runs while the machine is suspended.
def now = Process.clock_gettime(Process::CLOCK_BOOTTIME)

def say(event) = puts("#{HOLDER} #{event}")

def one_line(error) = error.message.gsub(/\s+/, " ").strip

# The wish to leave is a byte in a pipe. A signal handler may write one (it may not take a mutex), nobody takes it out,
# and every thread can wait for it.
LEAVING, leave = IO.pipe
%w[TERM INT].each { |signal| trap(signal) { leave.write_nonblock(".", exception: false) } }

def leaving?(wait = 0) = !!LEAVING.wait_readable([wait, 0].max)

class TermOver < StandardError; end

# One term of leadership. It is over when its deadline has passed or somebody has ended it.
class Term
  attr_reader :token
  attr_accessor :deadline

  def initialize(token)
    @token = token
    @deadline = 0
    @mutex = Mutex.new
    @changed = ConditionVariable.new
  end

  def left = @why ? 0 : @deadline - now

  def end!(why)
    @mutex.synchronize do
      @why ||= why
      @changed.broadcast
    end
  end

  def check!
    raise TermOver, @why || "its deadline has passed" unless left.positive?
  end

  # Sleeps, but not past the end of the term. A renewal in the meantime moves the deadline, so look again.
  def sleep(time)
    wake = now + time
    @mutex.synchronize do
      @changed.wait(@mutex, [wake - now, left].min) while now < wake && left.positive?
    end
  end
end

def connect
  # Without parameters for the database itself: libpq takes them from PGHOST and so on.
  PG.connect(connect_timeout: 2, application_name: HOLDER, keepalives_idle: 5, keepalives_interval: 2)
end

# The first row of a statement, or nil. Parameters without a prepared statement: they go with the unnamed one, which is
# what a pooler in transaction mode needs. Values come as strings, and Integer() makes bigint of any size of them.
#
# Waiting for an answer in block() lets the other threads run. After a limit that has passed the connection is good for
# nothing but to be closed, since the answer may still come.
def ask(db, limit, sql, *params)
  db.send_query_params(sql, params)
  db.block([limit, 0.001].max) or raise PG::UnableToSend, "no answer within #{limit.round(1)} s"
  db.get_last_result.values.first
end

def stale?(error)
  error.is_a?(PG::Error) && error.result&.error_field(PG::PG_DIAG_SQLSTATE) == "LF001"
end

def renew(db, term, limit)
  asked = now # before the request: the server's ttl starts later, so our deadline comes first
  ttl, = ask(db, limit, "SELECT EXTRACT(epoch FROM lease_renew($1, $2, $3, make_interval(secs => $4)))",
    ROLE, HOLDER, term.token, TTL)
  if ttl
    term.deadline = asked + Float(ttl)
  else
    term.end!("it was not renewed")
  end
end

# Waits in turn for the lease; nil when leaving. While it waits, the call uses up a server connection, behind a pooler
# too. And it may be granted the lease while this process is stopped, where one that polls would not have asked.
def campaign(db)
  until leaving?
    db.send_query_params("CALL lease_campaign($1, $2, make_interval(secs => $3), make_interval(secs => $4))",
      [ROLE, HOLDER, TTL, MAX_WAIT]) # outside of a transaction: it is a procedure that commits
    limit = now + MAX_WAIT + 5
    until db.block(0.1)
      # Again and again, in case the first one came before the call. It waits for the server to hang up, without a limit.
      Timeout.timeout(TTL / 3) { db.cancel } if leaving?
      raise PG::UnableToSend, "no answer to the campaign" if now > limit
    end
    token, = db.get_last_result.values.first
    next unless token # NULL: not within MAX_WAIT

    # How long ago the lease was granted is not known, since the call waited: the deadline begins with a renewal.
    term = Term.new(Integer(token))
    renew(db, term, TTL)
    return term if term.left.positive?
  end
rescue PG::QueryCanceled
  raise unless leaving?

  # The cancel may have hit a call that had just got the lease, or the renewal after it: give back what there is.
  token, = ask(db, TTL, <<~SQL, ROLE, HOLDER)
    SELECT fencing_token FROM lease_status
     WHERE role = $1 AND holder_id = $2 AND live AND lease_release(role, holder_id, fencing_token)
  SQL
  say("released token=#{token}") if token
  nil
end

# The heartbeat: a thread and a connection of its own, so that no slow statement of the work delays it.
def keep_alive(term)
  db = nil
  pause = BEAT
  loop do
    term.sleep(pause)
    break unless term.left.positive?

    begin
      db ||= connect
      term.check!
      renew(db, term, [BEAT, term.left].min)
      pause = BEAT
    rescue PG::Error => e
      # An error or no answer changes nothing: the old deadline stands, and until then we try again.
      warn "#{HOLDER} heartbeat: #{one_line(e)}"
      db&.close
      db = nil
      pause = TTL / 20
    end
  end
rescue TermOver
  # while connecting
ensure
  db&.close
end

# Works until the term is over, the connection is lost, or we leave.
def lead(db, term)
  say("leads token=#{term.token}")
  heartbeat = Thread.new { keep_alive(term) }
  until leaving?
    term.check!
    slot, = ask(db, term.left, "SELECT slot FROM job WHERE completed_at IS NULL ORDER BY slot LIMIT 1")
    next leaving?([1, term.left].min) unless slot

    term.sleep(WORK) # the work: whatever it is, it has to look at the term now and then
    term.check!
    done, = ask(db, term.left, <<~SQL, ROLE, HOLDER, term.token, slot)
      UPDATE job
         SET worker = $2, completed_at = clock_timestamp(), completed_by_token = lease_require_fence($1, $2, $3)
       WHERE slot = $4 AND completed_at IS NULL
      RETURNING slot
    SQL
    say("completed slot=#{done} token=#{term.token}") if done
  end
  released, = ask(db, [BEAT, 2].min, "SELECT lease_release($1, $2, $3)", ROLE, HOLDER, term.token)
  say(released == "t" ? "released token=#{term.token}" : "lost token=#{term.token}: it had ended before")
rescue TermOver, PG::Error => e
  say("lost token=#{term.token}: #{one_line(e)}")
  raise unless e.is_a?(TermOver) || stale?(e)
ensure
  # Whatever happened: no renewal after this, or a worker that does nothing would lead.
  term.end!("stepped down")
  heartbeat&.join
end

backoff = 0.1
failed = -Float::INFINITY
until leaving?
  begin
    db = nil
    db = connect
    while (term = campaign(db))
      lead(db, term)
    end
  rescue => e
    break if leaving?

    say("reconnecting: #{one_line(e)}")
    # A term is no success: what fails may be the work, such as a table that is missing.
    backoff = now - failed < 10 ? [backoff * 2, 2].min : 0.1
    failed = now
    leaving?(backoff * rand(0.5..1.5))
  ensure
    db&.close
  end
end
say("exits")
